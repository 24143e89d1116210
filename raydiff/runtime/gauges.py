"""Gauges for Prometheus: of each trial, from its coordinator, and of the sweep, from its driver."""

import functools
import math
from collections.abc import Mapping
from typing import Any

from ray.util.metrics import Gauge

from raydiff.experiment.trial import Trial
from raydiff.formats.metric_records import REJECTED
from raydiff.runtime import device_faults

TAGS = ("sweep", "trial", "method")
GAUGES = {
    "raydiff_trials": ("Trials of a sweep that are waiting, running, done or failed.", ("sweep", "state")),
    "raydiff_rounds": ("Committed rounds.", TAGS),
    "raydiff_epsilon": ("Epsilon against the server; absent if it is infinite.", TAGS),
    "raydiff_unprotected": ("1 if that epsilon is infinite, else 0.", TAGS),
    "raydiff_bytes_sent": ("Bytes of all uploads so far.", TAGS),
    "raydiff_rejected": ("Clients whose upload was rejected in the last round.", TAGS),
    "raydiff_processes_lost": ("Processes of the trial that died, hung, or lost their accelerator.", TAGS),
}
"""Name -> description, tags. Ray adds the prefix `ray_`."""


def export_trial(trial: Trial, result: Mapping[str, Any]) -> None:
    """Set the gauges to a round's result; the trial's last result is skipped."""
    if result.get("finished") or (epsilon := result.get("privacy/epsilon_server")) is None:
        return
    values = {
        "raydiff_rounds": result["round"] + 1,
        "raydiff_unprotected": epsilon == math.inf,
        "raydiff_bytes_sent": result["comm/bytes_up"],
        "raydiff_rejected": result.get(REJECTED.name, 0),
        "raydiff_processes_lost": len(device_faults.read_losses(trial.folder)),
    }
    if epsilon < math.inf:  # Ray 2.60 exports no gauge of a process while one is infinite.
        values["raydiff_epsilon"] = epsilon
    described = trial.sweep.name, trial.experiment.digest, type(trial.experiment.method).__name__
    for name, value in values.items():
        _gauge(name).set(float(value), dict(zip(TAGS, described, strict=True)))


def export_sweep(sweep: str, counts: Mapping[str, int]) -> None:
    """Set the numbers of the sweep's trials by state."""
    for state, count in counts.items():
        _gauge("raydiff_trials").set(float(count), {"sweep": sweep, "state": state})


@functools.cache
def _gauge(name: str) -> Gauge:
    description, tags = GAUGES[name]
    return Gauge(name, description, tag_keys=tags)
