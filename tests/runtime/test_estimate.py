"""Remaining time of a simulated sweep."""

import random

import pytest

from raydiff.experiment.config import Experiment
from raydiff.experiment.overrides import override
from raydiff.experiment.presets import study
from raydiff.experiment.study import trials
from raydiff.methods.fedavg import FedAvg
from raydiff.runtime.estimate import RemainingTime, format_duration, training_cost


def seconds_of(experiment: Experiment) -> float:
    """A trial takes 10 s and 5 ms per hundred records of its trainings, within a tenth."""
    return (10 + 5e-5 * training_cost(experiment)) * random.Random(experiment.digest).uniform(0.9, 1.1)


def test_an_unequal_sweep_is_estimated_within_a_quarter_after_its_first_tenth() -> None:
    """The main job's trials with two to four clients and 500 to 4,000 steps, on two slots."""
    digits = study("digits")
    waiting = [
        override(e, {"clients": 2 + number % 3, "method.local.steps": 500 * 2 ** (number % 4)})
        for number, e in enumerate(trials(digits.experiment, digits.grid, digits.beside))
    ]
    assert max(map(seconds_of, waiting)) > 4 * min(map(seconds_of, waiting))
    left, clock, estimates, first = RemainingTime(), 0.0, list[tuple[float, float]](), len(waiting) // 10
    running = [(waiting.pop(0), 0.0) for _ in range(2)]
    while running:
        experiment, since = ended = min(running, key=lambda r: r[1] + seconds_of(r[0]))
        running.remove(ended)
        clock = since + seconds_of(experiment)
        left.add(experiment, seconds_of(experiment))
        if waiting:
            running.append((waiting.pop(0), clock))
        estimate = left.seconds(waiting, [(e, clock - began) for e, began in running], slots=2)
        assert estimate is not None
        estimates.append((clock, estimate))
    assert all(0.75 < (at + estimate) / clock < 1.25 for at, estimate in estimates[first:])
    assert estimates[-1][1] == 0


def test_the_pace_of_the_same_method_counts_and_else_that_of_all(tiny: Experiment) -> None:
    left = RemainingTime()
    assert left.seconds([tiny], [], slots=1) is None
    twice, thrice = (override(tiny, {"method.local.steps": n, "method.server.steps": n}) for n in (16, 24))
    assert training_cost(tiny) == 1 + 8 * 8 * (2 + 1) and training_cost(thrice) == 1 + 3 * 8 * 8 * (2 + 1)
    left.add(override(tiny, {"method": FedAvg}), 1000.0)
    assert left.of(tiny) == pytest.approx(
        1000 * training_cost(tiny) / training_cost(override(tiny, {"method": FedAvg}))
    )
    left.add(tiny, 30.0)
    left.add(thrice, 70.0)
    assert left.of(twice) == pytest.approx(50, rel=0.01)


def test_epochs_are_work_too(tiny: Experiment) -> None:
    few, many = (override(tiny, {"method": FedAvg, "method.local.epochs": n}) for n in (10, 500))
    assert training_cost(many) - 1 == 50 * (training_cost(few) - 1) > 0
    assert training_cost(override(few, {"clients": 2 * few.clients})) == training_cost(few)


def test_slots_share_the_rest_and_the_longest_trial_bounds_it(tiny: Experiment) -> None:
    left = RemainingTime()
    left.add(tiny, 30.0)
    assert left.seconds([tiny] * 3, [(tiny, 10.0)], slots=2) == pytest.approx((3 * 30 + 20) / 2)
    assert left.seconds([tiny], [(tiny, 100.0)], slots=4) == 30  # An overdue trial counts as finished.
    assert left.seconds([], [], slots=2) == 0
    assert format_duration(40.9) == "40 s" and format_duration(125) == "2:05 min"
