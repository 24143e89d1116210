"""A trial's numbers for whoever watches the cluster: its coordinator tells Ray, which gives them to Prometheus beside
its own. `cluster/grafana.json` draws them. Instruments are not among them: they have no more than `--protocol-only`
tells."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ray.util.metrics import Gauge

from raydiff.experiment.trial import Trial
from raydiff.runtime import device_faults as lost

TAGS = ("sweep", "trial", "method")
TOLD = {
    "raydiff_rounds": "Rounds that count.",
    "raydiff_epsilon": "Epsilon spent against the server; nothing where it is infinite.",
    "raydiff_unprotected": "1 where that epsilon is infinite, else 0.",
    "raydiff_bytes_sent": "Bytes of all uploads so far.",
    "raydiff_rejected": "Clients whose upload was rejected in the last round.",
    "raydiff_processes_lost": "Processes of the trial that died, hung, or lost their accelerator.",
}
"""Name -> what it is. Ray puts `ray_` before each."""


class Gauges:
    """Those of one process: it may have one trial after the other."""

    def __init__(self) -> None:
        self._gauges = {name: Gauge(name, says, tag_keys=TAGS) for name, says in TOLD.items()}

    def tell(self, trial: Trial, result: Mapping[str, Any]) -> None:
        """What a round's result says; of one that is none of a round, nothing."""
        if result.get("finished") or (epsilon := result.get("privacy/epsilon_server")) is None:
            return
        values = {
            "raydiff_rounds": result["round"] + 1,
            "raydiff_unprotected": epsilon == math.inf,
            "raydiff_bytes_sent": result["comm/bytes_up"],
            "raydiff_rejected": result.get("clients/rejected", 0),
            "raydiff_processes_lost": len(lost.words(trial.folder)),
        }
        method = type(trial.experiment.method).__name__
        tags = dict(zip(TAGS, (trial.sweep.name, trial.experiment.digest, method), strict=True))
        if epsilon < math.inf:  # Ray 2.60 passes on none of a process's gauges as long as one is infinite.
            values["raydiff_epsilon"] = epsilon
        for name, value in values.items():
            self._gauges[name].set(float(value), tags)
