"""Optuna's study: repeats run once, results come from the trials' files, and damage is mended or named."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from planned import planned_as

from raydiff.experiment import trial
from raydiff.experiment.config import Experiment
from raydiff.runtime import launch, search
from raydiff.runtime.follow import SweepProgress
from raydiff.runtime.plan import Planned, SweepRequest
from raydiff.runtime.search import LOG, Suggestions

RATE = "method.local.learning_rate"


@pytest.fixture
def plan_of(tmp_path, tiny):
    """(the space, number of samples) -> a sweep without planned trials."""

    def plan_of(space: dict, samples: int) -> Planned:
        asked = SweepRequest(search="optuna", sample=space, samples=samples)
        return dataclasses.replace(planned_as(tmp_path / "s", [], base=tiny, asked=asked), metric="eval/fd_cnn/all")

    (tmp_path / "s").mkdir()
    return plan_of


def finish(plan: Planned, experiment: Experiment, value: float) -> None:
    this = trial.Trial(experiment, plan.folder)
    this.folder.mkdir(parents=True, exist_ok=True)
    (this.folder / "metrics.jsonl").write_text(json.dumps({"step": 0, search.metric(plan): value}) + "\n")
    trial.end(this.folder, "finished", final={"time/seconds": 1.0})


def run(plan: Planned) -> tuple[list[Experiment], SweepProgress]:
    """What Optuna lets run, each finished at once, and what the user reads."""
    suggestions, progress, ran = Suggestions(plan), SweepProgress(plan), []
    progress.total -= len(suggestions.experiments) - len(suggestions.distinct)
    for experiment in [
        *progress.begin_fit((e, trial.Trial(e, plan.folder).outcome()) for e in suggestions.distinct.values())
    ]:
        finish(plan, experiment, 1.0)
    for experiment in suggestions.more(progress.skip):
        finish(plan, experiment, float(len(ran)))
        progress._done(experiment, 1.0)
        ran.append(experiment)
    suggestions.learn()
    return ran, progress


@pytest.mark.parametrize(
    ("space", "distinct"),
    [
        ({RATE: ("choice", (0.001, 0.002))}, 2),
        ({RATE: ("choice", (0.001,))}, 1),
        ({RATE: ("choice", (0.1, 0.10000000000000001))}, 1),
        ({RATE: ("uniform", (0.1, 0.1))}, 1),
        ({"seed": ("randint", (0, 2))}, 2),
        ({"seed": ("choice", (0, 0, 1))}, 2),
        ({RATE: ("loguniform", (1e-4, 1e-2))}, 8),
    ],
)
def test_repeats_run_once_and_leave_no_fraction_above_one(plan_of, space, distinct, capsys):
    plan = plan_of(space, 8)
    ran, progress = run(plan)
    assert len({e.digest for e in ran}) == len(ran) == distinct
    assert (progress.done, progress.failed, progress.total) == (distinct, 0, distinct)
    assert capsys.readouterr().out.count("suggested again, has the result of its one trial") == 8 - distinct
    study = search._study(plan)
    assert [t.state.name for t in study.trials] == ["COMPLETE"] * 8 and launch._finished(plan)
    for each in study.trials:
        assert each.value == next(
            n for n, e in enumerate(ran) if search.overrides.flat(e).items() >= each.params.items()
        )


def test_the_same_suggestion_on_two_slots_waits_for_the_one_trial_that_runs(plan_of):
    plan, repeats = plan_of({RATE: ("choice", (0.001,))}, 4), []
    suggestions = Suggestions(plan)
    (only,) = suggestions.more(repeats.append)
    assert repeats == [only] * 3 and {t.state.name for t in search._study(plan).trials} == {"RUNNING"}
    assert [*Suggestions(plan).distinct] == [only.digest] and not launch._finished(plan)
    finish(plan, only, 5.0)
    suggestions.learn()
    assert [t.value for t in search._study(plan).trials] == [5.0] * 4 and launch._finished(plan)


def test_a_suggestion_that_is_no_experiment_fails_by_name(plan_of, capsys):
    ran, progress = run(plan_of({"method.local.steps": ("choice", (-1,))}, 3))
    assert not ran and (progress.done, progress.failed) == (0, 3)
    assert capsys.readouterr().out.splitlines()[0].startswith("[1/3] steps=-1: FAILED, ")


DAMAGE = {
    "cut short": lambda text: text[:-40],
    "the last newline": lambda text: text[:-1],
    "all but one line": lambda text: text[: text.index(b"\n") + 1],
    "within the first line": lambda text: text[:20],
    "empty": lambda text: b"",
    "NULs at the end": lambda text: text[:-40] + b"\0" * 40,
    "only NULs": lambda text: b"\0" * len(text),
    "gone": None,
    "its lock is left": lambda text: text,
    "a byte of garbage": lambda text: text[:300] + b"\xff" + text[301:],
    "NULs within": lambda text: text[:300] + b"\0" * 30 + text[330:],
    "another file": lambda text: b"{}\n",
    "a list": lambda text: b"[1]\n" + text,
    "a folder": "folder",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_study_goes_on_or_is_named_and_its_remedy_works(plan_of, damage):
    """What is removed is asked again: the same seed suggests the same."""
    plan, change = plan_of({RATE: ("loguniform", (1e-4, 1e-2))}, 4), DAMAGE[damage]
    run(dataclasses.replace(plan, asked=dataclasses.replace(plan.asked, samples=3)))
    log, finished = plan.folder / LOG, sorted(plan.folder.glob("trials/*/outcome.json"))
    text = log.read_bytes()
    log.unlink()
    if change == "folder":
        log.mkdir()
    elif change is not None:
        log.write_bytes(change(text))
    if damage == "its lock is left":
        Path(f"{log}.lock").symlink_to(log)
    if damage in ("a byte of garbage", "NULs within", "another file", "a list", "a folder"):
        with pytest.raises(ValueError, match=f"Optuna's study {log} (is damaged.*: remove it|cannot be read)"):
            launch._finished(plan)
        log.rmdir() if log.is_dir() else log.unlink()
    _, progress = run(plan)
    assert launch._finished(plan) and progress.total == progress.done + progress.failed <= 4
    assert len([*plan.folder.glob("trials/*")]) >= 4 and all(path.exists() for path in finished)
    states = [t.state.name for t in search._study(plan).trials]
    assert states.count("COMPLETE") == 4, states


def test_the_best_trial_is_shown_once(plan_of):
    plan = plan_of({RATE: ("choice", (0.001,))}, 2)
    suggestions = Suggestions(plan)
    assert len([*search.best(plan)]) == 1
    (only,) = suggestions.more(lambda _: None)
    finish(plan, only, 2.0)
    suggestions.learn()
    assert [*search.best(plan)][:-1] == [f"Optuna's best trial by validation/fd_cnn/all: 2: {RATE}=0.001"]
