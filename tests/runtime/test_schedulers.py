"""Tune's schedulers by name: which ones work here, and with what arguments."""

from __future__ import annotations

import pytest
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, MedianStoppingRule

from raydiff.experiment.overrides import override
from raydiff.experiment.study import Study
from raydiff.runtime.plan import SweepRequest, plan
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
        ("hyperband", "scheduler: must be one of asha, median"),
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
        plan("p", study, SweepRequest(scheduler=chosen), name="s")
    assert not list(tmp_path.iterdir())
