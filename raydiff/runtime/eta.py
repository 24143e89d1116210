"""How long a sweep still takes, from its trials that have ended. They are unlike: the first may be the short ones."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from raydiff.experiment.config import Experiment
from raydiff.runtime.gpu_memory import trainings

EVERY_S = 15.0  # between lines that say where things are
Setting = str
"""A trial's digest, but for its seed."""


def setting(experiment: Experiment) -> Setting:
    """What trials that differ in their seed alone have in common, and so take as long as each other."""
    return replace(experiment, seed=0, data_digest="").digest


def work(experiment: Experiment) -> float:
    """Records that its trainings go through: the server's once, every other one at each client."""

    def of(path: str, steps: int, batch: int) -> int:
        return steps * batch * (1 if path.startswith("server") else experiment.clients)

    found = [(path, t) for path, t in trainings(experiment.method) if t.epochs is None]
    return float(sum(of(path, t.steps, t.batch) for path, t in found))


@dataclass
class RemainingTime:
    """Seconds of trials that have not ended: the mean of their setting where one of it has; else those of a straight
    line over `work`, times how far off that is for the trials of the same method that have ended."""

    ended: dict[Setting, list[tuple[Experiment, float]]] = field(default_factory=dict)
    """Trials and their seconds."""

    def add(self, experiment: Experiment, seconds: float) -> None:
        """A trial has ended."""
        self.ended.setdefault(setting(experiment), []).append((experiment, seconds))

    def of(self, experiment: Experiment) -> float:
        """Seconds that this one takes, from its start. Raises ValueError while none has ended."""
        if same := self.ended.get(setting(experiment)):
            return _mean(seconds for _, seconds in same)
        every = [trial for trials in self.ended.values() for trial in trials]
        if not every:
            raise ValueError("no trial has ended")
        line = _line(every)
        kind = type(experiment.method)
        off = [seconds / (line @ _features(e)) for e, seconds in every if type(e.method) is kind]
        return float(line @ _features(experiment)) * (_mean(off) if off else 1.0)

    def seconds(
        self, waiting: Iterable[Experiment], running: Iterable[tuple[Experiment, float]], *, slots: int
    ) -> float | None:
        """Until all have ended, on so many slots; None while none has. `running`: each with the seconds that it runs
        already; one that takes longer than foreseen is taken to be at its end."""
        if not self.ended:
            return None
        going = [max(0.0, self.of(e) - since) for e, since in running]
        every = [*going, *(self.of(e) for e in waiting)]
        seconds = max(sum(every) / slots, *every) if every else 0.0
        return seconds if math.isfinite(seconds) else None


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _features(experiment: Experiment) -> np.ndarray:
    return np.array([work(experiment), 1.0])


def _line(ended: list[tuple[Experiment, float]]) -> np.ndarray:
    """Seconds = line @ (work, 1), none of both negative; with one kind of work alone all of it is its trainings'."""
    works = np.array([work(e) for e, _ in ended])
    seconds = np.array([s for _, s in ended])
    if np.ptp(works) == 0:
        return np.array([seconds.mean() / works[0], 0.0]) if works[0] else np.array([0.0, seconds.mean()])
    from scipy.optimize import nnls  # half a second, and coordinators load this module without asking for a line

    scale = works.max()
    found, _ = nnls(np.stack([works / scale, np.ones(len(works))], 1), seconds)
    return np.array([found[0] / scale, found[1]])


def duration(seconds: float) -> str:
    """ "2:05 min", or "40 s"."""
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes}:{seconds:02d} min" if minutes else f"{seconds} s"
