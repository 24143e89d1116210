"""A worker of which nothing is heard hangs: it is killed, and is then lost like any that has died.

Heard is a message, or that its process goes on with what it is at (`federated.heartbeat`): a step of a training, a
piece of what is computed otherwise. So a training may take for ever, as long as it takes steps.
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
from raydiff.runtime import device_faults as lost

LOOKS = 8  # in the time that a worker may be silent
LOOK_S = 30.0  # between two of them at most
KILLING_S = 30.0  # What it may take until a process is gone: one that is stopped takes Ray 6 s.


class HeartbeatMonitor:
    """Waits for what a trial's workers send. Only time in which it waits counts as silence."""

    def __init__(self, workers: Sequence[Any], folder: Path, runtime: Runtime) -> None:
        self._workers, self._folder = workers, folder
        self._seconds, self._hosting_s = runtime.client_timeout_s, max(runtime.client_timeout_s, runtime.revive_s)
        self.names: dict[int, str] = {}  # Of the workers' processes, as `heartbeat` calls them.
        self._silent = dict.fromkeys(range(len(workers)), 0.0)
        self._signs: dict[int, object] = {}  # The latest that each has given.
        self.killed = set[int]()  # Workers of which it was told why, and that are not noticed to be gone yet.

    def first(self, asked: Mapping[Any, int], at: Callable[[int], str], seconds: float = math.inf) -> Any:
        """The first that is there, or that is lost, of what workers were `asked` for: reference or stream -> which
        worker's. None after so many seconds. `at` says in words what a worker is at."""
        began = last = time.monotonic()
        while True:
            left = max(0.0, began + seconds - last)
            ready, _ = ray.wait(list(asked), timeout=min(left, LOOK_S, self._seconds / LOOKS))
            before, last = last, time.monotonic()
            if ready:
                self._silent[asked[ready[0]]] = 0.0
                return ready[0]
            if last - began >= seconds:
                return None
            for i in asked.values():
                self._listen(i, last - before, at)

    def _listen(self, i: int, seconds: float, at: Callable[[int], str]) -> None:
        hosts = i in self.names  # Before that its process may be starting still.
        sign, most = None, self._seconds if hosts else self._hosting_s
        if hosts:
            sign = heartbeat.sign(self._folder, self.names[i])
        self._silent[i] = self._silent[i] + seconds if sign == self._signs.get(i) else 0.0
        self._signs[i] = sign
        if self._silent[i] < most:
            return
        self._silent[i] = -KILLING_S
        why = f"nothing was heard of it for {most:g} s (runtime.client_timeout_s), {at(i)}"
        lost.tell(self._folder, f"worker {i}: {why}")
        self.killed.add(i)
        ray.kill(self._workers[i], no_restart=False)
