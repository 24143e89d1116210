"""Workers that hang or die: `WorkerSupervisor` kills those without a heartbeat, and revives those that are dead."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, OutOfMemoryError, RayActorError

from raydiff.experiment.trial import Trial
from raydiff.federated import heartbeat
from raydiff.runtime import cluster, device_faults

ATTEMPTS = 4  # deaths of a worker at one client after which the trial fails
CHECKS = 8  # checks of heartbeats per timeout
CHECK_S = 30.0  # longest time between two checks
KILL_S = 30.0  # time for a killed process to end: Ray takes 6 s for a stopped one
DIED = (RayActorError, OutOfMemoryError)  # The second is of a worker that was killed while it started.


class WorkersLost(RuntimeError):
    """A worker did not come back in time; Tune retries the trial from its last commit."""


class WorkerCrashLoop(RuntimeError):
    """A worker died ATTEMPTS times at the same client."""


class WorkerSupervisor:
    """Lets the workers of one trial host their clients, and waits for them. Raises WorkersLost.

    Args:
        workers: The actors.
        trial: The trial whose clients they host.
        host: Lets the worker of this index host its clients; the reference is to its process's name in `heartbeat`.
    """

    def __init__(self, workers: Sequence[Any], trial: Trial, host: Callable[[int], Any]) -> None:
        self._workers = workers
        self._trial = trial
        self._host = host
        self._timeout_s = trial.experiment.runtime.client_timeout_s
        self._revive_s = trial.experiment.runtime.revive_s
        self._names: dict[int, str] = {}  # worker -> its process's name in `heartbeat`
        self._killed = set[int]()  # Workers that were killed but whose death Ray has not reported yet.
        self._silent_s = dict.fromkeys(range(len(workers)), 0.0)
        self._last: dict[int, object] = {}
        self._recorded = self._recorded_by_workers()
        for i, ref in enumerate([self._host(i) for i in range(len(self._workers))]):
            self.first({ref: i}, lambda _: "before it had loaded its clients")
            try:
                self._names[i] = ray.get(ref)
            except DIED:
                self._revive(i)

    def first(self, pending: Mapping[Any, int], task: Callable[[int], str]) -> Any:
        """Return the first of the pending references (-> worker) that is ready or lost.

        `task` describes what a worker computes. Raises WorkersLost if one that starts has no node.
        """
        last = time.monotonic()
        while True:
            ready, _ = ray.wait(list(pending), timeout=min(CHECK_S, self._timeout_s / CHECKS))
            before = last
            last = time.monotonic()
            if ready:
                self._silent_s[pending[ready[0]]] = 0.0
                return ready[0]
            for i in pending.values():
                self._check(i, last - before, task)

    def _check(self, i: int, seconds: float, task: Callable[[int], str]) -> None:
        # It may still be starting.
        latest = None
        timeout_s = max(self._timeout_s, self._revive_s)
        if i in self._names:
            latest = heartbeat.last_sign(self._trial.folder, self._names[i])
            timeout_s = self._timeout_s
        self._silent_s[i] = self._silent_s[i] + seconds if latest == self._last.get(i) else 0.0
        self._last[i] = latest
        if i not in self._names and self._silent_s[i] >= self._revive_s:
            # Calls on a worker whose bundle waits for a node never end.
            group = ray.util.get_current_placement_group()
            if group and ray.util.placement_group_table(group)["state"] != "CREATED":
                raise WorkersLost(f"worker {i} has had no node for {self._revive_s:g} s")
        if self._silent_s[i] < timeout_s:
            return
        self._silent_s[i] = -KILL_S
        device_faults.record_loss(
            self._trial.folder, f"worker {i}: no heartbeat for {timeout_s:g} s (runtime.client_timeout_s), {task(i)}"
        )
        self._killed.add(i)
        ray.kill(self._workers[i], no_restart=False)

    def recover(self, i: int, client: int, *, deaths: int) -> None:
        """Revive a worker that has died, and record why unless it or the watchdog did. Raises WorkerCrashLoop."""
        before = self._recorded
        self._recorded = self._recorded_by_workers()
        if i in self._killed:
            self._killed.discard(i)
        elif self._recorded == before:
            reason = cluster.explain_memory_kill() or (
                f"it died without a reason at client {client}, in {type(self._trial.experiment.method).__name__} or "
                "what evaluates it: out of memory, an exit, a native crash, or its node is gone"
            )
            device_faults.record_loss(self._trial.folder, f"worker {i}: {reason}")
        if deaths == ATTEMPTS:
            died = f"worker {i} died {ATTEMPTS} times before client {client} had its result"
            raise WorkerCrashLoop("; ".join([died, *device_faults.read_losses(self._trial.folder)[-1:]])) from None
        self._revive(i)

    def _recorded_by_workers(self) -> int:
        return sum(reason.startswith("a worker: ") for reason in device_faults.read_losses(self._trial.folder))

    def _revive(self, i: int) -> None:
        """Wait for Ray to restart worker i, and let it host its clients again. Raises WorkersLost at the deadline."""
        deadline = time.monotonic() + self._revive_s
        while (left := deadline - time.monotonic()) > 0:
            try:
                self._names[i] = ray.get(self._host(i), timeout=left)
                return
            except (*DIED, GetTimeoutError):
                time.sleep(0.2)  # Calls on an actor that has not restarted may fail at once.
        raise WorkersLost(f"worker {i} did not come back within {self._revive_s:g} s")
