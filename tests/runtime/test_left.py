"""How long a sweep still takes, foreseen in a simulated one."""

from __future__ import annotations

import dataclasses
import random

import pytest

from raydiff.experiment.config import Experiment
from raydiff.experiment.overrides import override
from raydiff.experiment.presets import study
from raydiff.experiment.study import trials
from raydiff.runtime.eta import RemainingTime, duration, setting, work


def seconds_of(experiment: Experiment) -> float:
    """A world in which a trial takes 10 s and 5 ms for a hundred records trained on, give or take a tenth."""
    return (10 + 5e-5 * work(experiment)) * random.Random(experiment.digest).uniform(0.9, 1.1)


def test_an_unequal_sweep_is_foreseen_within_a_quarter_from_its_first_tenth_on() -> None:
    """The main job's trials with two to four clients and 500 to 4,000 steps, on two slots."""
    digits = study("digits")
    every = [
        override(e, {"clients": 2 + number % 3, "method.local.steps": 500 * 2 ** (number % 4)})
        for number, e in enumerate(trials(digits.experiment, digits.grid, digits.beside))
    ]
    assert max(map(seconds_of, every)) > 4 * min(map(seconds_of, every))
    left, waiting, clock = RemainingTime(), list(every), 0.0
    running = [(waiting.pop(0), 0.0) for _ in range(2)]
    said: list[tuple[float, float]] = []
    while running:
        experiment, since = first = min(running, key=lambda r: r[1] + seconds_of(r[0]))
        running.remove(first)
        clock = since + seconds_of(experiment)
        left.add(experiment, seconds_of(experiment))
        if waiting:
            running.append((waiting.pop(0), clock))
        guess = left.seconds(waiting, [(e, clock - began) for e, began in running], slots=2)
        assert guess is not None
        said.append((clock, guess))
    late = [(at + guess) / clock for at, guess in said[len(every) // 10 :]]
    assert all(0.75 < ratio < 1.25 for ratio in late)
    assert said[-1][1] == 0


def test_a_setting_that_has_ended_tells_of_itself_and_its_method_of_other_sizes(tiny: Experiment) -> None:
    left = RemainingTime()
    assert left.seconds([tiny], [], slots=1) is None
    with pytest.raises(ValueError, match="no trial has ended"):
        left.of(tiny)
    left.add(tiny, 30.0)
    again = dataclasses.replace(tiny, seed=5)
    assert setting(again) == setting(tiny) and left.of(again) == 30
    twice = override(tiny, {"method.local.steps": 16, "method.server.steps": 16})
    assert work(tiny) == 8 * 8 * (2 + 1) and work(twice) == 2 * work(tiny)
    assert left.of(twice) == pytest.approx(60)
    left.add(twice, 40.0)
    thrice = override(tiny, {"method.local.steps": 24, "method.server.steps": 24})
    assert left.of(thrice) == pytest.approx(50)


def test_slots_share_the_rest_and_the_longest_trial_bounds_it(tiny: Experiment) -> None:
    left = RemainingTime()
    left.add(tiny, 30.0)
    assert left.seconds([tiny] * 3, [(tiny, 10.0)], slots=2) == pytest.approx((3 * 30 + 20) / 2)
    assert left.seconds([tiny], [(tiny, 100.0)], slots=4) == 30  # what is overdue is taken to be at its end
    assert left.seconds([], [], slots=2) == 0


def test_a_duration_is_said_in_minutes() -> None:
    assert duration(40.9) == "40 s" and duration(125) == "2:05 min"
