"""Tune's schedulers by name: which ones work here, and with what arguments."""

from dataclasses import replace

import pytest
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, MedianStoppingRule

from raydiff.experiment import trial
from raydiff.experiment.overrides import override
from raydiff.experiment.searchers import Search
from raydiff.experiment.study import Study
from raydiff.formats import json_files
from raydiff.runtime import tuner
from raydiff.runtime.follow import SweepProgress
from raydiff.runtime.plan import SweepRequest, plan_sweep
from raydiff.runtime.schedulers import build_scheduler

TUNE = "ray.tune.schedulers"


class Patient(FIFOScheduler):
    """A scheduler from outside that stops nothing."""

    def __init__(self, metric: str, patience: int = 3) -> None:
        super().__init__()
        self.read = (metric, patience)


def build(chosen):
    """The scheduler of a sweep of ten rounds."""
    return build_scheduler(chosen, objective="validation/m", lower_is_better=False, rounds=10)


@pytest.mark.parametrize(
    ("chosen", "cls"),
    [
        ("asha", AsyncHyperBandScheduler),
        ("median", MedianStoppingRule),
        ((f"{TUNE}:ASHAScheduler", {"grace_period": 2, "reduction_factor": 3}), AsyncHyperBandScheduler),
        (f"{TUNE}:FIFOScheduler", FIFOScheduler),
    ],
)
def test_tunes_own_classes_are_taken(chosen, cls):
    assert type(build(chosen)) is cls


def test_a_scheduler_from_outside_gets_the_objective_and_its_keywords():
    assert build(("test_schedulers:Patient", {"patience": 5})).read == ("validation/m", 5)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ("hyperband", "scheduler must be one of asha, median"),
        ("test_schedulers:build", "is no scheduler: it must be a subclass"),
        (f"{TUNE}:HyperBandScheduler", "pauses trials until a bracket is full"),
        (f"{TUNE}:HyperBandForBOHB", "pauses trials until a bracket is full"),
        (f"{TUNE}:PopulationBasedTraining", "copies one trial's model into another"),
        (f"{TUNE}.pb2:PB2", "copies one trial's model into another"),
        (("asha", {"grace_period": 99}), "the scheduler asha refuses its arguments"),
        (("asha", {"patience": 1}), "unexpected keyword argument 'patience'"),
    ],
)
def test_a_scheduler_that_cannot_work_is_refused_before_anything_runs(chosen, message, tiny, tmp_path):
    study = Study(experiment=override(tiny, {"runtime.storage": str(tmp_path)}), grid={"seed": (0, 1)})
    with pytest.raises(ValueError, match=message):
        plan_sweep("p", replace(study, search=Search(scheduler=chosen)), SweepRequest(), name="s")
    assert not list(tmp_path.iterdir())


@pytest.mark.ray
@pytest.mark.slow
def test_a_search_and_a_scheduler_share_a_sweep_and_a_failed_trial_stops_neither(tmp_path, tiny, workers, capsys):
    base = override(
        tiny, {"runtime.storage": str(tmp_path), "runtime.pool": "ray", "runtime.workers": 1, "evaluation.every": 2}
    )
    space = {"method.server.learning_rate": ("choice", (1e-3, 1e30)), "seed": ("randint", (0, 100))}
    median = ("median", {"min_samples_required": 1})
    search = Search(searcher="optuna", space=space, samples=4, scheduler=median)
    planned = plan_sweep("p", Study(experiment=base, search=search), SweepRequest(), name="s")
    planned.folder.mkdir(parents=True)
    trial.keep_secret(planned.folder, planned.secret)
    progress = SweepProgress(planned)
    assert tuner.run_on_tune(planned, tuner.choose_slot(planned, [{"CPU": 2.0}]), progress).interrupted == 0
    outcomes = [outcome["outcome"] for _, outcome in json_files.outcomes(planned.folder)]
    assert len(outcomes) == progress.total == progress.done + progress.failed == 4
    assert "failed" in outcomes and "finished" in outcomes
    assert "the search proposed 4 settings for 4 experiments" in capsys.readouterr().out
    again = SweepProgress(planned)
    assert (
        tuner.run_on_tune(planned, tuner.choose_slot(planned, [{"CPU": 2.0}]), again).interrupted == 0
        and again.done + again.failed == 4
    )
