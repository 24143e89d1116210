"""`RayExecutor`, which runs clients on a Ray cluster in place of `LocalExecutor`; its workers' start and watchdog."""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from raydiff.experiment.config import Runtime
from raydiff.experiment.trial import Trial
from raydiff.federated import heartbeat
from raydiff.federated.method import Metrics, Upload
from raydiff.federated.sums import Partial, UploadValidator
from raydiff.privacy.release import already_private
from raydiff.runtime import device_faults
from raydiff.runtime.cluster import memory_kill
from raydiff.runtime.place import Slot
from raydiff.runtime.worker import NotHosted, Worker
from raydiff.storage.staging import StorageCredentials
from raydiff.tree import Params, arrays, tensors

Ask = Callable[[Any, list[int], bool], Any]
"""(worker, clients, whether each result is sent alone) -> reference to the first message."""
ATTEMPTS = 4  # deaths of a worker at one client after which the trial fails
MESSAGE_S = 0.05  # age of a message of uploads
PART_S = 30.0  # longest computation of one partial sum, which is lost if the worker dies
CHECKS = 8  # checks of heartbeats per timeout
CHECK_S = 30.0  # longest time between two checks
KILL_S = 30.0  # time for a killed process to end: Ray takes 6 s for a stopped one
DIED = (RayActorError, OutOfMemoryError)  # The second is of a worker that was killed while it started.
LOST = (*DIED, NotHosted, ObjectLostError)  # of a call whose worker has died, or its node with the result


class WorkersLost(RuntimeError):
    """A worker did not come back in time; Tune retries the trial from its last commit."""


class WorkerCrashLoop(RuntimeError):
    """A worker died ATTEMPTS times at the same client."""


def start_workers(slot: Slot, group: PlacementGroup | None) -> list[Any]:
    """Start a slot's workers, each in its own bundle of the placement group (None: on any node)."""
    restarting = ray.remote(max_restarts=-1, max_task_retries=0)(Worker)
    handles = []
    for i, bundle in enumerate(slot.bundles[1:], start=1):
        where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=i) if group else "DEFAULT"
        needed = restarting.options(num_cpus=bundle["CPU"], num_gpus=bundle.get("GPU", 0), scheduling_strategy=where)
        handles.append(needed.remote())
    return handles


class HeartbeatMonitor:
    """Waits for the workers of one trial, and kills those without a message or a sign in `federated.heartbeat`."""

    def __init__(self, workers: Sequence[Any], folder: Path, runtime: Runtime) -> None:
        self._workers, self._folder = workers, folder
        self._timeout_s, self._revive_s = runtime.client_timeout_s, runtime.revive_s
        self.names: dict[int, str] = {}  # worker -> its process's name in `heartbeat`
        self.killed = set[int]()  # Workers that were killed but whose death Ray has not reported yet.
        self._silent_s = dict.fromkeys(range(len(workers)), 0.0)
        self._last: dict[int, object] = {}

    def first(self, pending: Mapping[Any, int], task: Callable[[int], str]) -> Any:
        """Return the first of the pending references (-> worker) that is ready or lost. `task` describes what a worker
        computes. Raises WorkersLost if one that starts has no node."""
        last = time.monotonic()
        while True:
            ready, _ = ray.wait(list(pending), timeout=min(CHECK_S, self._timeout_s / CHECKS))
            before, last = last, time.monotonic()
            if ready:
                self._silent_s[pending[ready[0]]] = 0.0
                return ready[0]
            for i in pending.values():
                self._check(i, last - before, task)

    def _check(self, i: int, seconds: float, task: Callable[[int], str]) -> None:
        latest, timeout_s = None, max(self._timeout_s, self._revive_s)  # It may still be starting.
        if i in self.names:
            latest, timeout_s = heartbeat.sign(self._folder, self.names[i]), self._timeout_s
        self._silent_s[i] = self._silent_s[i] + seconds if latest == self._last.get(i) else 0.0
        self._last[i] = latest
        if i not in self.names and self._silent_s[i] >= self._revive_s:
            # Calls on a worker whose bundle waits for a node never end.
            group = ray.util.get_current_placement_group()
            if group and ray.util.placement_group_table(group)["state"] != "CREATED":
                raise WorkersLost(f"worker {i} has had no node for {self._revive_s:g} s")
        if self._silent_s[i] < timeout_s:
            return
        self._silent_s[i] = -KILL_S
        reason = f"no heartbeat for {timeout_s:g} s (runtime.client_timeout_s), {task(i)}"
        device_faults.record(self._folder, f"worker {i}: {reason}")
        self.killed.add(i)
        ray.kill(self._workers[i], no_restart=False)


class RayExecutor:
    """`rounds.ClientExecutor` over workers: client i runs in worker i modulo the number of workers."""

    def __init__(self, workers: Sequence[Any], trial: Trial, *, gpu: float = 0.0) -> None:
        self.workers, self.trial, self.gpu = list(workers), trial, gpu
        self.clients: Sequence[int] = tuple(range(trial.experiment.clients))  # without unseen clients, ascending
        self._digest, self._revive_s = trial.experiment.digest, trial.experiment.runtime.revive_s
        self._monitor = HeartbeatMonitor(self.workers, trial.folder, trial.experiment.runtime)
        self._recorded = self._recorded_by_workers()
        self._sent = replace(trial, credentials=StorageCredentials.of(trial.sweep))
        for i, ref in enumerate([self._host(i) for i in range(len(self.workers))]):
            self._monitor.first({ref: i}, lambda _: "before it had loaded its clients")
            try:
                self._monitor.names[i] = ray.get(ref)
            except DIED:
                self._revive(i)

    def _host(self, i: int) -> Any:
        clients = [*self.trial.experiment.everyone[i :: len(self.workers)]]
        return self.workers[i].host.remote(self._sent, clients, self.gpu)

    def run(self, ids: Sequence[int], server: Params, number: int) -> Iterator[tuple[Upload, Metrics]]:
        """Yield `Client.run` of each client."""
        for client, examples, value, event, metrics in self._in_order(ids, self._ask("run", server, number, MESSAGE_S)):
            yield Upload(client, examples, already_private(tensors(value), event, copy=False)), metrics

    def sums(self, ids: Sequence[int], validator: UploadValidator) -> Iterator[Partial]:
        """Yield partial sums of the clients' uploads: one per worker, or more if it takes long or has died."""
        seconds = min(PART_S, self.trial.experiment.runtime.client_timeout_s / 4)
        ask = self._ask("sums", validator.server, validator.number, seconds)
        yield from (message for _, message in self._messages(ids, ask))

    def evaluate(self, ids: Sequence[int], server: Params, number: int, split: str) -> Iterator[Any]:
        """Yield `Client.evaluate` of each client on a split that no client holds."""
        ref = ray.put(arrays(server))
        yield from self._in_order(ids, lambda w, part, _: w.evaluate.remote(self._digest, part, ref, number, split))

    def _ask(self, call: str, server: Params, number: int, seconds: float) -> Ask:
        ref = ray.put(arrays(server))  # numpy arrays, which Ray maps without copying
        return lambda worker, part, alone: getattr(worker, call).remote(
            self._digest, part, ref, number, 0.0 if alone else seconds
        )

    def _in_order(self, ids: Sequence[int], ask: Ask) -> Iterator[Any]:
        """Yield the clients' results in the order of `ids`, from messages that are lists of results."""
        arrived: dict[int, deque[Any]] = {i: deque() for i in range(len(self.workers))}
        # A worker waits once the coordinator has two of its results: memory is bounded by workers, not by clients.
        messages = self._messages(ids, ask, wanted=lambda i: len(arrived[i]) < 2)
        for client in ids:
            i = client % len(self.workers)
            while not arrived[i]:
                sender, results = next(messages)
                arrived[sender].extend(results)
            yield arrived[i].popleft()

    def _messages(
        self, ids: Sequence[int], ask: Ask, *, wanted: Callable[[int], bool] = lambda _: True
    ) -> Iterator[tuple[int, Any]]:
        """Yield (worker, message) until each client's result has arrived. A worker that dies is asked again for the
        missing results. `wanted`: whether a worker should compute its next message now."""
        parts: dict[int, dict[int, None]] = {}  # worker -> its clients: a client is removed in constant time
        for client in ids:
            parts.setdefault(client % len(self.workers), {})[client] = None
        pending = {ask(self.workers[i], [*part], False): i for i, part in parts.items()}
        died, idle, deaths = set[int](), set[int](), Counter[int]()  # workers, workers, at each client

        def resume() -> None:
            for i in [i for i in idle if wanted(i)]:
                idle.remove(i)
                pending[self.workers[i].more.remote(self._digest)] = i

        while pending:
            ready = self._monitor.first(pending, lambda i: self._current(parts[i], alone=i in died))
            i = pending.pop(ready)
            try:
                message = ray.get(ready)
            except LOST:
                client = next(iter(parts[i]))
                died.add(i)
                deaths[client] += 1
                self._recover(i, client, deaths=deaths[client])
                pending[ask(self.workers[i], [*parts[i]], True)] = i
                continue
            in_order = isinstance(message, list)
            clients = itertools.islice(parts[i], len(message)) if in_order else (sent.client for sent in message.sent)
            for client in [*clients]:
                parts[i].pop(client, None)
            if parts[i]:
                idle.add(i)
            resume()  # It computes while the caller reads this message.
            yield i, message
            resume()

    def _recover(self, i: int, client: int, *, deaths: int) -> None:
        """Revive a worker that has died, and record why unless it or the watchdog did. Raises WorkerCrashLoop."""
        before, self._recorded = self._recorded, self._recorded_by_workers()
        if i in self._monitor.killed:
            self._monitor.killed.discard(i)
        elif self._recorded == before:
            where = f"at client {client}, in {type(self.trial.experiment.method).__name__} or what evaluates it"
            unknown = f"it died without a reason {where}: out of memory, an exit, a native crash, or its node is gone"
            reason = memory_kill() or unknown
            device_faults.record(self.trial.folder, f"worker {i}: {reason}")
        if deaths == ATTEMPTS:
            died = f"worker {i} died {ATTEMPTS} times before client {client} had its result"
            raise WorkerCrashLoop("; ".join([died, *device_faults.reasons(self.trial.folder)[-1:]])) from None
        self._revive(i)

    def _recorded_by_workers(self) -> int:
        return sum(reason.startswith("a worker: ") for reason in device_faults.reasons(self.trial.folder))

    def _revive(self, i: int) -> None:
        """Wait for Ray to restart worker i, and let it host its clients again. Raises WorkersLost at the deadline."""
        deadline = time.monotonic() + self._revive_s
        while (left := deadline - time.monotonic()) > 0:
            try:
                self._monitor.names[i] = ray.get(self._host(i), timeout=left)
                return
            except (*DIED, ray.exceptions.GetTimeoutError):
                time.sleep(0.2)  # Calls on an actor that has not restarted may fail at once.
        raise WorkersLost(f"worker {i} did not come back within {self._revive_s:g} s")

    def _current(self, clients: Mapping[int, None], *, alone: bool) -> str:
        """Describe what a worker computes that still owes these clients, and sends each `alone` or several at once."""
        sure = len(clients) == 1 or (alone and not self.trial.experiment.numerics.vectorize)
        return f"at client {next(iter(clients))}{'' if sure else ' or a later one'}"
