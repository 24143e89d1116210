"""Schedulers: Ray Tune's classes that stop trials early."""

from __future__ import annotations

import inspect
import math
from typing import Any

from ray.tune.schedulers import TrialScheduler

from raydiff.experiment.searchers import Chosen, named
from raydiff.lookup import Door, resolve

REFUSED = {
    "HyperBandScheduler": "it pauses trials until a bracket is full, and a sweep starts no more trials than run "
    "concurrently: asha does the same without waiting",
    "PopulationBasedTraining": "it copies one trial's model into another and changes its settings, so no ledger says "
    "what the records of a trial have spent",
    "PopulationBasedTrainingReplay": "it changes a trial's settings while it runs, and a trial is one experiment",
    "ResourceChangingScheduler": "all trials of a sweep have the same resources",
}
"""Class of Tune's -> why no scheduler of this class works here."""


def _check_class(cls: Any) -> None:
    if not (isinstance(cls, type) and issubclass(cls, TrialScheduler)):
        raise ValueError(f"{cls!r} is no scheduler: it must be a subclass of ray.tune.schedulers.TrialScheduler")
    for base in cls.__mro__:
        if base.__module__.startswith("ray.tune.") and base.__name__ in REFUSED:
            raise ValueError(f"{cls.__name__} cannot work here: {REFUSED[base.__name__]}")


ENTRIES = {"asha": "ray.tune.schedulers:ASHAScheduler", "median": "ray.tune.schedulers:MedianStoppingRule"}
SCHEDULERS: Door[Any] = Door("scheduler", ENTRIES, check=_check_class)


def build_scheduler(chosen: Chosen, *, objective: str, lower_is_better: bool, rounds: int) -> TrialScheduler:
    """Return Tune's scheduler, by rounds as time.

    Raises ValueError where there is none, where it cannot work here or refuses its arguments.

    Args:
        chosen: An entry of SCHEDULERS or `module:Name`, maybe with keyword arguments.
        objective: The metric in a round's result.
        lower_is_better: Whether it is to be minimized.
        rounds: The most rounds of a trial.
    """
    name, keywords = named(chosen)
    cls = resolve("scheduler", SCHEDULERS, name)
    defaults = {
        "time_attr": "round",
        "metric": objective,
        "mode": "min" if lower_is_better else "max",
        "max_t": rounds,
        "grace_period": 1,
        "min_time_slice": math.inf,  # MedianStoppingRule would pause trials for others that wait.
    }
    taken = inspect.signature(cls).parameters
    try:
        scheduler: TrialScheduler = cls(**{**{k: v for k, v in defaults.items() if k in taken}, **keywords})
    except Exception as e:  # Code from outside may raise anything.
        raise ValueError(f"the scheduler {name} refuses its arguments: {e}") from None
    return scheduler
