"""Watchdog: kill a worker that sends no heartbeat; it then counts as dead.

A message from the worker is a heartbeat, and so is each step of a training or piece of another computation
(`federated.heartbeat`): a training may take any time as long as it takes steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from raydiff.experiment.config import Runtime
from raydiff.federated import heartbeat
from raydiff.runtime import device_faults

CHECKS = 8  # checks per timeout
CHECK_S = 30.0  # longest time between two checks
KILL_S = 30.0  # time for a killed process to end: Ray takes 6 s for a stopped one


class HeartbeatMonitor:
    """Waits for the workers of one trial, and kills those without a heartbeat. Only waiting counts as silence."""

    def __init__(self, workers: Sequence[Any], folder: Path, runtime: Runtime) -> None:
        self._workers, self._folder = workers, folder
        self._timeout_s = runtime.client_timeout_s
        self._start_timeout_s = max(runtime.client_timeout_s, runtime.revive_s)
        self.names: dict[int, str] = {}  # worker -> its process's name in `heartbeat`
        self.killed = set[int]()  # Workers that were killed but whose death Ray has not reported yet.
        self._silent_s = dict.fromkeys(range(len(workers)), 0.0)
        self._last: dict[int, object] = {}

    def first(self, pending: Mapping[Any, int], task: Callable[[int], str], seconds: float = math.inf) -> Any:
        """Return the first of the pending references that is ready or lost; None after these seconds.

        Args:
            pending: Reference -> the worker that it comes from.
            task: Describes what a worker is computing.
        """
        began = last = time.monotonic()
        while True:
            left = max(0.0, began + seconds - last)
            ready, _ = ray.wait(list(pending), timeout=min(left, CHECK_S, self._timeout_s / CHECKS))
            before, last = last, time.monotonic()
            if ready:
                self._silent_s[pending[ready[0]]] = 0.0
                return ready[0]
            if last - began >= seconds:
                return None
            for i in pending.values():
                self._check(i, last - before, task)

    def _check(self, i: int, seconds: float, task: Callable[[int], str]) -> None:
        latest, timeout_s = None, self._start_timeout_s  # A worker without a name may still be starting.
        if i in self.names:
            latest, timeout_s = heartbeat.sign(self._folder, self.names[i]), self._timeout_s
        self._silent_s[i] = self._silent_s[i] + seconds if latest == self._last.get(i) else 0.0
        self._last[i] = latest
        if self._silent_s[i] < timeout_s:
            return
        self._silent_s[i] = -KILL_S
        reason = f"no heartbeat for {timeout_s:g} s (runtime.client_timeout_s), {task(i)}"
        device_faults.record(self._folder, f"worker {i}: {reason}")
        self.killed.add(i)
        ray.kill(self._workers[i], no_restart=False)
