"""`RayExecutor`, which runs clients on a Ray cluster in place of `LocalExecutor`, and the start of its workers.

Tensors travel as numpy arrays, which Ray maps without copying.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayActorError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from raydiff.experiment.trial import Trial
from raydiff.federated.method import Metrics, Upload
from raydiff.federated.sums import Partial, UploadValidator
from raydiff.privacy.release import already_private
from raydiff.runtime import device_faults
from raydiff.runtime.slots import Slot
from raydiff.runtime.watchdog import HeartbeatMonitor
from raydiff.runtime.worker import NotHosted, Worker
from raydiff.storage.staging import StorageCredentials
from raydiff.tree import Params, arrays, tensors

Ask = Callable[[Any, list[int], bool], Any]
ATTEMPTS = 4  # deaths of a worker at one client after which the trial fails
MESSAGE_S = 0.05  # age of a message of uploads
PART_S = 30.0  # longest computation of one partial sum, which is lost if the worker dies


LOST = (RayActorError, NotHosted, ObjectLostError)
"""Errors of a call whose worker has died, or whose node is gone with the result."""


class WorkersLost(RuntimeError):
    """A worker did not come back in time; Tune retries the trial from its last commit."""


class WorkerCrashLoop(RuntimeError):
    """A worker died ATTEMPTS times at the same client."""


def start_workers(slot: Slot, group: PlacementGroup | None) -> list[Any]:
    """Start a slot's workers, each in its own bundle of the placement group (None: on any node)."""
    handles = []
    for i, bundle in enumerate(slot.bundles[1:], start=1):
        options: dict[str, Any] = {}
        if group is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=i)
        actor = ray.remote(
            num_cpus=bundle.get("CPU", 0), num_gpus=bundle.get("GPU", 0), max_restarts=-1, max_task_retries=0
        )(Worker)
        handles.append(actor.options(**options).remote())
    return handles


class RayExecutor:
    """`rounds.ClientExecutor` over workers: client i runs in worker i modulo the number of workers."""

    def __init__(self, workers: Sequence[Any], trial: Trial, *, gpu: float = 0.0) -> None:
        self.workers, self.trial, self.gpu = list(workers), trial, gpu
        self._clients = tuple(range(trial.experiment.clients))
        self._digest = trial.experiment.digest
        self._monitor = HeartbeatMonitor(self.workers, trial.folder, trial.experiment.runtime)
        self._recorded = self._recorded_by_workers()
        self._sent = replace(trial, credentials=StorageCredentials.of(trial.sweep))
        hosting = [w.host.remote(self._sent, self._ids_of(i), gpu) for i, w in enumerate(self.workers)]
        for i, ref in enumerate(hosting):
            wait_s = trial.experiment.runtime.revive_s
            while self._monitor.first({ref: i}, lambda _: "before it had loaded its clients", wait_s) is None:
                if not _has_its_nodes():
                    raise WorkersLost(f"worker {i} has had no node for {wait_s:g} s")
            try:
                self._monitor.names[i] = ray.get(ref)
            except RayActorError:
                self._revive(i)

    @property
    def clients(self) -> Sequence[int]:
        """Client numbers without newcomers, ascending."""
        return self._clients

    def run(self, ids: Sequence[int], server: Params, number: int) -> Iterator[tuple[Upload, Metrics]]:
        """Yield `Client.run` of each client."""
        if not ids:
            return
        ref = ray.put(arrays(server))

        def ask(worker: Any, part: list[int], alone: bool) -> Any:
            return worker.run.remote(self._digest, part, ref, number, 0.0 if alone else MESSAGE_S)

        for client, examples, value, event, metrics in self._in_order(ids, ask):
            yield Upload(client, examples, already_private(tensors(value), event, copy=False)), metrics

    def sums(self, ids: Sequence[int], validator: UploadValidator) -> Iterator[Partial]:
        """Yield partial sums of the clients' uploads: one per worker, or more where its clients take long.

        A worker that has died sends each client's upload by itself.
        """
        if not ids:
            return
        ref = ray.put(arrays(validator.server))
        seconds = min(PART_S, self.trial.experiment.runtime.client_timeout_s / 4)

        def ask(worker: Any, part: list[int], alone: bool) -> Any:
            return worker.sums.remote(self._digest, part, ref, validator.number, 0.0 if alone else seconds)

        for _, message in self._messages(ids, ask):
            yield message

    def evaluate(self, ids: Sequence[int], server: Params, number: int, split: str) -> Iterator[Any]:
        """Yield `Client.evaluate` of each client on a split that no client holds."""
        ref = ray.put(arrays(server))
        yield from self._in_order(ids, lambda w, part, _: w.evaluate.remote(self._digest, part, ref, number, split))

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
        """Yield (worker, message) until each client's result has arrived.

        A worker that dies is asked again for the missing results.

        Args:
            ids: The clients.
            ask: (worker, clients, whether each result is sent alone) -> reference to the first message.
            wanted: Whether a worker should compute its next message now.
        """
        parts = self._dealt(ids)
        pending = {ask(self.workers[i], [*part], False): i for i, part in parts.items()}
        died, idle, deaths = set[int](), set[int](), dict.fromkeys(parts, 0)

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
                died.add(i)
                deaths[i] += 1
                self._recover(i, next(iter(parts[i])), deaths=deaths[i])
                pending[ask(self.workers[i], [*parts[i]], True)] = i
                continue
            deaths[i] = 0
            if isinstance(message, list):
                clients = [*itertools.islice(parts[i], len(message))]
            else:
                clients = [sent.client for sent in message.sent]
            for client in clients:
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
            reason = "it died without a reason: out of memory, a crash in native code, or its node is gone"
            device_faults.record(self.trial.folder, f"worker {i}: {reason}")
        if deaths == ATTEMPTS:
            why = device_faults.last_reason(self.trial.folder)
            died = f"worker {i} died {ATTEMPTS} times before client {client} had its result; {why}"
            raise WorkerCrashLoop(died) from None
        self._revive(i)

    def _recorded_by_workers(self) -> int:
        return sum(reason.startswith("a worker: ") for reason in device_faults.reasons(self.trial.folder))

    def _revive(self, i: int) -> None:
        """Wait for Ray to restart worker i, and let it host its clients again. Raises WorkersLost at the deadline."""
        wait_s = self.trial.experiment.runtime.revive_s
        deadline = time.monotonic() + wait_s
        while True:
            try:
                left = max(0.1, deadline - time.monotonic())
                hosting = self.workers[i].host.remote(self._sent, self._ids_of(i), self.gpu)
                self._monitor.names[i] = ray.get(hosting, timeout=left)
                return
            except (RayActorError, ray.exceptions.GetTimeoutError):
                time.sleep(0.2)  # Calls on an actor that has not restarted may fail at once.
                if time.monotonic() >= deadline:
                    raise WorkersLost(f"worker {i} did not come back within {wait_s:g} s") from None

    def _current(self, clients: Mapping[int, None], *, alone: bool) -> str:
        """Describe what a worker computes that still owes these clients, and sends each `alone` or several at once."""
        sure = len(clients) == 1 or (alone and not self.trial.experiment.numerics.vectorize)
        return f"at client {next(iter(clients))}{'' if sure else ' or a later one'}"

    def _ids_of(self, i: int) -> list[int]:
        return [*self.trial.experiment.everyone[i :: len(self.workers)]]

    def _dealt(self, ids: Sequence[int]) -> dict[int, dict[int, None]]:
        """Worker -> its clients, in order: a dict, from which a client is removed in constant time."""
        parts: dict[int, dict[int, None]] = {i: {} for i in range(len(self.workers))}
        for client in ids:
            parts[client % len(self.workers)][client] = None
        return {i: part for i, part in parts.items() if part}


def _has_its_nodes() -> bool:
    """Whether all bundles of this trial are placed. Calls on the worker of a bundle that waits for a node never end."""
    group = ray.util.get_current_placement_group()
    return group is None or ray.util.placement_group_table(group)["state"] == "CREATED"
