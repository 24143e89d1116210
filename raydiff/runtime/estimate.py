"""How long a sweep will take, from the first rounds of a few of its trials: for `--dry-run`."""

from __future__ import annotations

import dataclasses
import importlib
import math
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from raydiff.experiment import trial
from raydiff.experiment.config import Experiment
from raydiff.experiment.overrides import override
from raydiff.runtime.gpu_memory import trainings
from raydiff.runtime.slots import Slot, cap_memory

TRIED = 100  # steps of a training at least
SHARE = 20  # and this part of them: classifiers that judge rows train longer on those of a model that has learned
START_S = 15.0  # until Ray and its workers are there
Times = tuple[float, float]
"""Seconds of the first round, and of each that follows."""


def probe(experiment: Experiment) -> Times:
    """Run the first rounds of a trial in this process, without instruments, in a folder that is then deleted.

    Two where there are as many: a method may send everything in its first round, and train the server in the others.
    """
    # It hosts all clients and the server, so it may take a whole GPU.
    cap_memory(float(experiment.runtime.gpu_per_worker != 0))
    _import_what_an_optimiser_does()
    # The probe draws noise of its own, so that the trial's secret noise is drawn only once.
    runtime = dataclasses.replace(experiment.runtime, noise_secret=None)
    alone = dataclasses.replace(experiment, evaluation=None, newcomers=None, runtime=runtime)
    with tempfile.TemporaryDirectory(prefix="raydiff-probe-") as folder:
        this = trial.open_trial(alone, Path(folder) / "sweep")
        results = trial.run(this, trial.local_executor(this))
        first = next(results)["time/seconds"]
        return first, next(results)["time/seconds"] if this.experiment.method.rounds > 1 else first


def alone(experiment: Experiment) -> float:
    """Seconds that the trial takes on this machine, evaluation and all, by one in this process whose trainings are a
    SHARE-th as long, or TRIED steps."""
    method, runtime = experiment.method, dataclasses.replace(experiment.runtime, noise_secret=None)
    found = {f"method.{path}.steps": t.steps for path, t in trainings(method) if t.epochs is None}
    short = {path: min(steps, max(TRIED, steps // SHARE)) for path, steps in found.items()}
    longer = max([steps / short[path] for path, steps in found.items() if steps], default=1.0)
    workers = min(experiment.clients, runtime.workers or os.cpu_count() or 1) if runtime.pool == "ray" else 1
    _import_what_an_optimiser_does()
    began, rounds_s, whole_s = time.perf_counter(), 0.0, 0.0
    with tempfile.TemporaryDirectory(prefix="raydiff-probe-") as folder:
        this = trial.open_trial(override(dataclasses.replace(experiment, runtime=runtime), short), Path(folder) / "s")
        for result in trial.run(this, trial.local_executor(this)):
            if not result["finished"]:
                clients = result["round"] < method.participating_rounds
                rounds_s += result["time/seconds"]
                whole_s += longer * result["time/seconds"] / (workers if clients else 1)
    return time.perf_counter() - began - rounds_s + whole_s + START_S * (runtime.pool == "ray")


def _import_what_an_optimiser_does() -> None:
    """Once in each process, at its first optimiser: 2 s that are no training."""
    importlib.import_module("torch._dynamo")


def representatives(trials: Sequence[Experiment]) -> Iterator[Experiment]:
    """Of each method the trial with the fewest clients, which is the quickest to probe."""
    fewest: dict[str, Experiment] = {}
    for experiment in sorted(trials, key=lambda e: e.clients):
        fewest.setdefault(type(experiment.method).__name__, experiment)
    yield from fewest.values()


def seconds(trials: Sequence[Experiment], probed: Mapping[str, tuple[int, Times]], *, slot: Slot, slots: int) -> float:
    """A whole sweep's time. `probed`: method -> (clients of the trial that was probed, its times).

    A round's time goes with its clients, and is divided by the workers among which they are dealt; with epochs it goes
    with the records, which more clients only share. Trials are spread over the slots; evaluation, and the 10 to 20 s in
    which processes start, come on top.
    """

    def of(experiment: Experiment) -> float:
        clients, (first, later) = probed[type(experiment.method).__name__]
        # The busiest worker has this many clients, which train one after the other.
        turns = math.ceil(experiment.clients / slot.workers)
        shares = experiment.clients if any(t.epochs is not None for _, t in trainings(experiment.method)) else clients
        return (first + later * (experiment.method.rounds - 1)) * turns / shares

    every = [of(experiment) for experiment in trials]
    return max(sum(every) / slots, *every) if every else 0.0
