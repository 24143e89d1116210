"""Lines of `raydiff bench sweep`: where the time of a sweep goes, as the sweep itself says it.

Each is a whole `raydiff sweep digits` in a process of its own, with its report and MLflow in a folder that is removed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OUTSIDE = 0.15  # share of the slots' time that may go into anything but training, sampling and evaluation


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much to measure."""

    trials: Sequence[int] = (4, 16)
    """Trials in each sweep."""
    arguments: Sequence[str] = ()
    """More for the sweep's command line."""


QUICK = Effort(trials=(2,), arguments=("--protocol-only", "--method.local.steps", "5", "--method.server.steps", "5"))


def lines(effort: Effort) -> Iterator[tuple[str, dict[str, Any]]]:
    """What each line is about, and its fields."""
    for trials in effort.trials:
        with tempfile.TemporaryDirectory(prefix="raydiff-bench-") as folder:
            yield "sweep", _measured(trials, effort.arguments, Path(folder))


def _measured(trials: int, arguments: Sequence[str], folder: Path) -> dict[str, Any]:
    seeds = ",".join(map(str, range(trials)))
    where = ["--name", "bench", "--runtime.storage", str(folder), "--grid", f"seed={seeds}", "--no-baselines"]
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "raydiff", "sweep", "digits", "--method.epsilon", "10", *where, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise OSError(f"the sweep ended with code {done.returncode}: {(done.stderr or done.stdout).strip()[-500:]}")
    split = json.loads((folder / "sweeps" / "bench" / "split.json").read_text())
    outside = split["outside"] / split["slots_s"]
    return {
        "trials": trials,
        "whole_s": time.perf_counter() - started,
        **split,
        "outside_over_slots": outside,
        "targets": {"outside_over_slots": OUTSIDE},
        "met": {"outside_over_slots": outside <= OUTSIDE},
    }
