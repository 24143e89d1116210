"""What the driver's machine is at, for the tab of system metrics that MLflow's page of a run has."""

from __future__ import annotations

import contextlib
import time
from typing import Any

PERIOD_S = 10.0  # between measurements, as MLflow's own monitor has it


class Machine:
    """MLflow's monitors, asked by the one who writes to MLflow: the thread that `mlflow.start_run` has for them would
    be a second writer, and ends for good when its server is away.

    A monitor that fails, of a GPU that is not there or of packets that nobody counts, is left out from then on.
    """

    def __init__(self) -> None:
        from mlflow.system_metrics.metrics import cpu_monitor, disk_monitor, gpu_monitor, network_monitor, rocm_monitor

        self._monitors: list[Any] = []
        for kind in (
            cpu_monitor.CPUMonitor,
            disk_monitor.DiskMonitor,
            network_monitor.NetworkMonitor,
            gpu_monitor.GPUMonitor,
            rocm_monitor.ROCMMonitor,
        ):
            with contextlib.suppress(Exception):  # MLflow's own thread takes any as "there is none" as well
                self._monitors.append(kind())
        self._next = 0.0

    def measured(self) -> dict[str, float]:
        """{"system/cpu_utilization_percentage": percent, ...}, once in `PERIOD_S`; between them nothing."""
        if time.monotonic() < self._next:
            return {}
        self._next = time.monotonic() + PERIOD_S
        found: dict[str, float] = {}
        for monitor in list(self._monitors):
            try:
                monitor.collect_metrics()
            except Exception:  # whatever it is, the trials' numbers must not wait for it
                self._monitors.remove(monitor)
                continue
            found |= {f"system/{name}": value for name, value in monitor.aggregate_metrics().items()}
            monitor.clear_metrics()
        return found
