"""Time of a trial before it runs, from a shortened run of it in this process: for `raydiff init` and `--dry-run`."""

from __future__ import annotations

import dataclasses
import importlib
import os
import tempfile
import time
from pathlib import Path

from raydiff.experiment import trial
from raydiff.experiment.config import Experiment
from raydiff.experiment.overrides import override
from raydiff.runtime.eta import trainings

MIN_STEPS = 100  # of each training in the shortened run
SHORTENED = 20  # Otherwise this part of its steps: classifiers of rows train longer on rows of a trained model.
START_S = 15.0  # until Ray and its workers have started


def alone(experiment: Experiment) -> float:
    """Return the seconds that a trial takes on this machine, from the command to its end."""
    return seconds(experiment) + START_S * (experiment.runtime.pool == "ray")


def seconds(experiment: Experiment) -> float:
    """Return the seconds that a trial takes on this machine in processes that have started, evaluation included.

    The probe has a noise secret of its own, so that the trial's noise is drawn only once. Its folder is deleted.
    """
    method, runtime = experiment.method, dataclasses.replace(experiment.runtime, noise_secret=None)
    full = {f"method.{path}.steps": t.steps for path, t in trainings(method) if t.epochs is None}
    short = {path: min(steps, max(MIN_STEPS, steps // SHORTENED)) for path, steps in full.items()}
    factor = max([steps / short[path] for path, steps in full.items() if steps], default=1.0)
    workers = min(experiment.clients, runtime.workers or os.cpu_count() or 1) if runtime.pool == "ray" else 1
    importlib.import_module("torch._dynamo")  # The first optimiser of a process imports it, which takes 2 s.
    began, probe_s, rounds_s = time.perf_counter(), 0.0, 0.0
    with tempfile.TemporaryDirectory(prefix="raydiff-probe-") as folder:
        probe = override(dataclasses.replace(experiment, runtime=runtime), short)
        this = trial.open_trial(probe, Path(folder) / "s")
        for result in trial.run(this, trial.local_executor(this)):
            if not result["finished"]:
                with_clients = result["round"] < method.participating_rounds
                probe_s += result["time/seconds"]
                rounds_s += factor * result["time/seconds"] / (workers if with_clients else 1)
    return time.perf_counter() - began - probe_s + rounds_s
