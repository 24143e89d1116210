"""A sweep of many trials of one round each, whose cost must not depend on how many there are."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from analysis.bench.ways import Fields, Lines, resident_mb
from raydiff.tracking.mlflow_store import MOST_RUNS, connect

TRIAL = [
    "digits",
    "--method=fedavg",
    "--no-baselines",
    "--protocol-only",
    "--method.rounds=1",
    "--method.local.steps=1",
    "--method.model.network.width=32",
]
GROWTH_MB = 1.0  # of the driver, in a hundred trials
EVERY_S = 1.0


def sweep(quick: bool) -> Lines:
    """A sweep of 2,000 trials, through the command."""
    with tempfile.TemporaryDirectory() as folder:
        yield "sweep", of(8 if quick else 2000, Path(folder))


def of(trials: int, storage: Path) -> Fields:
    """What a sweep of so many trials took, in all and as it went on."""
    arguments = [*TRIAL, "--name=many", f"--runtime.storage={storage}", "--grid"]
    arguments.append(f"seed={','.join(map(str, range(trials)))}")
    at = storage / "sweeps" / "many"
    log = storage / "log"
    seen: list[tuple[int, float, float]] = []  # (trials that have ended, when, the driver's memory)
    with log.open("w") as out:
        command = [sys.executable, "-m", "raydiff", "sweep", *arguments]
        env = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
        driver = subprocess.Popen(command, stdout=out, stderr=out, env=env)
        while driver.poll() is None:
            ended = len(list(at.glob("trials/*/outcome.json")))
            with contextlib.suppress(FileNotFoundError, IndexError):  # It has just ended.
                if ended > (seen[-1][0] if seen else 0):
                    seen.append((ended, time.monotonic(), resident_mb(driver.pid)))
            time.sleep(EVERY_S)
    if driver.returncode:
        raise ValueError(f"the sweep ended with code {driver.returncode}: {log.read_text()[-2000:]}")
    late = seen[len(seen) // 4 :]
    fields = {
        "trials": trials,
        "minutes": (seen[-1][1] - seen[0][1]) / 60,
        "trial_s": (seen[-1][1] - seen[0][1]) / max(1, seen[-1][0] - seen[0][0]),
        "driver_mb": seen[-1][2],
        "growth_mb": 100 * _slope([n for n, _, _ in late], [mb for _, _, mb in late]),
        "slower_s": 100 * _slope(*_pace(late)),
        "mlflow_runs": _runs(storage),
    }
    targets = {"growth_mb": GROWTH_MB}
    return {**fields, "targets": targets, "met": {name: fields[name] <= most for name, most in targets.items()}}


def _pace(seen: Sequence[tuple[int, float, float]]) -> tuple[list[float], list[float]]:
    """(trials that had ended, seconds for each at that time)."""
    pairs = list(itertools.pairwise(seen))
    return [float(b[0]) for _, b in pairs], [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs]


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    """By least squares; 0 of fewer than two points."""
    return float(np.polyfit(x, y, 1)[0]) if len(x) > 1 else 0.0


def _runs(storage: Path) -> int:
    """Trials' runs that MLflow has as finished, each with its round."""
    client = connect(f"sqlite:///{storage}/mlflow.db")
    (experiment,) = [e for e in client.search_experiments() if e.name.startswith("raydiff")]
    query = "tags.`raydiff.kind` = 'trial'"
    runs = client.search_runs([experiment.experiment_id], query, max_results=MOST_RUNS)
    return sum(run.info.status == "FINISHED" and run.data.metrics.get("round") == 0 for run in runs)
