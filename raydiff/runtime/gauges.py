"""Prometheus gauges of a trial, which its coordinator exports through Ray; `cluster/grafana.json` draws them.

They hold only what `--protocol-only` leaves: no evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ray.util.metrics import Gauge

from raydiff.experiment.trial import Trial
from raydiff.runtime import device_faults

TAGS = ("sweep", "trial", "method")
GAUGES = {
    "raydiff_rounds": "Committed rounds.",
    "raydiff_epsilon": "Epsilon spent against the server; absent if it is infinite.",
    "raydiff_unprotected": "1 if that epsilon is infinite, else 0.",
    "raydiff_bytes_sent": "Bytes of all uploads so far.",
    "raydiff_rejected": "Clients whose upload was rejected in the last round.",
    "raydiff_processes_lost": "Processes of the trial that died, hung, or lost their accelerator.",
}
"""Name -> description. Ray adds the prefix `ray_`."""


class Gauges:
    """The gauges of one process, which may run several trials one after the other."""

    def __init__(self) -> None:
        self._gauges = {name: Gauge(name, text, tag_keys=TAGS) for name, text in GAUGES.items()}

    def tell(self, trial: Trial, result: Mapping[str, Any]) -> None:
        """Export a round's result; the trial's last result is skipped."""
        if result.get("finished") or (epsilon := result.get("privacy/epsilon_server")) is None:
            return
        values = {
            "raydiff_rounds": result["round"] + 1,
            "raydiff_unprotected": epsilon == math.inf,
            "raydiff_bytes_sent": result["comm/bytes_up"],
            "raydiff_rejected": result.get("clients/rejected", 0),
            "raydiff_processes_lost": len(device_faults.reasons(trial.folder)),
        }
        if epsilon < math.inf:  # Ray 2.60 exports no gauge of a process while one is infinite.
            values["raydiff_epsilon"] = epsilon
        method = type(trial.experiment.method).__name__
        tags = dict(zip(TAGS, (trial.sweep.name, trial.experiment.digest, method), strict=True))
        for name, value in values.items():
            self._gauges[name].set(float(value), tags)
