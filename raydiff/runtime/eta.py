"""Remaining time of a sweep, estimated from the trials that have finished.

Trials differ in cost: the first ones may be the cheap ones.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from raydiff.experiment.config import Experiment
from raydiff.models.training import Training

EVERY_S = 15.0  # between two lines of progress


def trainings(method: Any, prefix: str = "") -> Iterator[tuple[str, Training]]:
    """Yield (path, training) for each training of a method."""
    for each in dataclasses.fields(method):
        value = getattr(method, each.name)
        if isinstance(value, Training):
            yield prefix + each.name, value
        elif dataclasses.is_dataclass(value):
            yield from trainings(value, f"{prefix}{each.name}.")


def setting(experiment: Experiment) -> str:
    """Return the digest of an experiment without its seed. Trials of one setting take equally long."""
    return replace(experiment, seed=0, data_digest="").digest


def work(experiment: Experiment) -> float:
    """Return the number of records in all training steps: the server's once, every other training at each client."""
    return float(
        sum(
            training.steps * training.batch * (1 if path.startswith("server") else experiment.clients)
            for path, training in trainings(experiment.method)
            if training.epochs is None
        )
    )


@dataclass
class RemainingTime:
    """Estimates seconds of trials that have not finished.

    A trial takes the mean of its setting's finished trials. If there are none: a line in `work` over all finished
    trials, corrected by the mean error of that line for the trial's method.
    """

    finished: dict[str, list[tuple[Experiment, float]]] = field(default_factory=dict)
    """Setting -> its finished trials and their seconds."""

    def add(self, experiment: Experiment, seconds: float) -> None:
        """Record a finished trial."""
        self.finished.setdefault(setting(experiment), []).append((experiment, seconds))

    def of(self, experiment: Experiment) -> float:
        """Return the seconds that a trial takes from its start. Raises ValueError while none has finished."""
        if same := self.finished.get(setting(experiment)):
            return float(np.mean([seconds for _, seconds in same]))
        known = [trial for trials in self.finished.values() for trial in trials]
        if not known:
            raise ValueError("no trial has ended")
        slope, start = _line(known)
        same_method = [(e, seconds) for e, seconds in known if type(e.method) is type(experiment.method)]
        factors = [seconds / (slope * work(e) + start) for e, seconds in same_method]
        return float((slope * work(experiment) + start) * (np.mean(factors) if factors else 1.0))

    def seconds(
        self, waiting: Iterable[Experiment], running: Iterable[tuple[Experiment, float]], *, slots: int
    ) -> float | None:
        """Return the seconds until all trials have finished.

        Args:
            waiting: Trials that have not started.
            running: Trials that run, each with its seconds so far. An overdue trial counts as finished.
            slots: Trials that run concurrently.

        Returns:
            The seconds; None while no trial has finished.
        """
        if not self.finished:
            return None
        left = [*(max(0.0, self.of(e) - so_far) for e, so_far in running), *(self.of(e) for e in waiting)]
        seconds = max(sum(left) / slots, *left) if left else 0.0
        return seconds if math.isfinite(seconds) else None


def _line(trials: list[tuple[Experiment, float]]) -> tuple[float, float]:
    """Fit seconds = slope * work + start, neither negative. If all trials do the same work, start is 0."""
    works, seconds = np.array([work(e) for e, _ in trials]), np.array([s for _, s in trials])
    if np.ptp(works) == 0:
        return (seconds.mean() / works[0], 0.0) if works[0] else (0.0, seconds.mean())
    from scipy.optimize import nnls  # Takes 0.5 s to import, and coordinators do not need it.

    scale = works.max()
    (slope, start), _ = nnls(np.stack([works / scale, np.ones(len(works))], 1), seconds)
    return slope / scale, start


def duration(seconds: float) -> str:
    """Format seconds as "2:05 min" or "40 s"."""
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes}:{seconds:02d} min" if minutes else f"{seconds} s"
