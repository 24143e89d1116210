"""Where a running trial is, and the time of a trial before it runs."""

import dataclasses
import math
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raydiff.data import datasets
from raydiff.experiment import overrides, trial
from raydiff.experiment.config import Experiment
from raydiff.federated import heartbeat
from raydiff.models.training import Training

EVERY_S = 15.0  # between two lines of progress
MIN_STEPS = 100  # of each training in a shortened run
SHORTENED = 20  # Of a table this part of the steps: classifiers train longer on rows of a trained model.
MOST_STEPS = 200  # of a training of pictures, whose evaluation takes as long after few steps
READERS = 2  # processes that read the data one after the other: the driver, then the trial's at once
UNKNOWN = 1000  # training records of a data set that has not been read
START_S = 15.0  # until Ray and its workers have started


@dataclass
class Running:
    """A trial in its slot."""

    folder: Path
    experiment: Experiment
    name: str = ""
    round: int = -1  # its last committed round
    faults: int = 0  # number of its lost processes that were reported
    silence: heartbeat.SilenceTimer = field(default_factory=heartbeat.SilenceTimer)

    def place(self) -> str:
        """Return its round and step, the remaining time of the round, and whether it may hang."""
        silent_s = self.silence.silent_s(self.folder)
        hangs = ""
        if silent_s > self.experiment.runtime.client_timeout_s:
            hangs = f"; no heartbeat for {format_duration(silent_s)}"
        number = self.round + 1
        if number >= self.experiment.method.rounds:
            return f"evaluation{hangs}"
        beat = next((beat for beat in heartbeat.read_heartbeats(self.folder) if beat.round == number), None)
        where = f": {beat}, about {format_duration(beat.left_s)} left" if beat and not hangs else ""
        return f"round {number + 1}{where}{hangs}"


def trainings(method: Any, prefix: str = "") -> Iterator[tuple[str, Training]]:
    """Yield (path, training) for each training of a method."""
    for each in dataclasses.fields(method):
        value = getattr(method, each.name)
        if isinstance(value, Training):
            yield prefix + each.name, value
        elif dataclasses.is_dataclass(value):
            yield from trainings(value, f"{prefix}{each.name}.")


def training_cost(experiment: Experiment) -> float:
    """Return the records in all training steps (the server's once, the others at each client), and 1 for the rest."""

    def records(path: str, training: Training) -> int:
        if training.epochs is not None:  # Together the clients have every record once.
            return training.epochs * (experiment.data.train or UNKNOWN)
        return training.steps * training.batch * (1 if path.startswith("server") else experiment.clients)

    return 1.0 + sum(records(path, training) for path, training in trainings(experiment.method))


def format_duration(seconds: float) -> str:
    """Format seconds as "2:05 min" or "40 s"."""
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes}:{seconds:02d} min" if minutes else f"{seconds} s"


def estimate_trial_s(experiment: Experiment, *, reading_s: float = 0.0) -> float:
    """Return the seconds from a trial's command to its end on this machine, where a process reads for `reading_s`.

    They are measured by a shortened run that leaves nothing.
    """
    clients = experiment.clients
    evaluation = experiment.evaluation
    runtime = experiment.runtime
    on_ray = runtime.pool == "ray"
    workers = min(clients, runtime.workers or os.cpu_count() or 1) if on_ray else 1
    fewer = _shorten_trainings(experiment)
    waves = 1
    if evaluation is not None:
        waves = math.ceil(min(clients, evaluation.clients or clients) / workers)
        fewer["evaluation.clients"] = 1
    probe = overrides.override(replace(experiment, runtime=replace(runtime, noise_secret=None)), fewer)
    scale = training_cost(experiment) / training_cost(probe)
    print("timing a shortened trial here ...", flush=True)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="raydiff-probe-") as folder:
        this = trial.open_trial(probe, Path(folder) / "s")
        pool = trial.local_executor(this)
        started = time.perf_counter()
        rounds = [result for result in trial.run_trial(this, pool) if not result["finished"]]
    evaluated_s: float = time.perf_counter() - started - sum(result["time/seconds"] for result in rounds)
    at_clients = experiment.method.participating_rounds
    rounds_s: float = sum(
        result["time/seconds"] / (workers if result["round"] < at_clients else 1) for result in rounds
    )
    start_s = START_S + READERS * reading_s if on_ray else reading_s
    return start_s + started - began + scale * rounds_s + waves * evaluated_s


def _shorten_trainings(experiment: Experiment) -> dict[str, int]:
    """Fewer steps, or epochs, for each training of the method: field path -> value."""
    most = MOST_STEPS if experiment.audit is None else math.inf
    records = math.ceil(len(datasets.load_dataset(experiment.data).splits["train"]) / experiment.clients)
    fewer = {}
    for path, training in trainings(experiment.method):
        steps = training.of(records).steps
        name, count = ("steps", steps) if training.epochs is None else ("epochs", training.epochs)
        if steps:
            wanted = max(MIN_STEPS, min(most, steps // SHORTENED))
            fewer[f"method.{path}.{name}"] = min(count, math.ceil(count * wanted / steps))
    return fewer
