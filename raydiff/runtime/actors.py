"""Clients on a Ray cluster: `Worker` actors that host them, and `RayExecutor`, which looks to the round loop like
`LocalExecutor`.

A worker hosts any number of clients; packing many into one is the same code. It keeps their private state, and writes
it to the store itself: nothing of it passes through the coordinator. Tensors travel as numpy arrays, which Ray maps
without copying.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import ray
import torch
from ray.exceptions import ObjectLostError, RayActorError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from raydiff import process
from raydiff.experiment.trial import Trial, compute, localized, make_clients, make_instruments
from raydiff.federated import heartbeat
from raydiff.federated.client import Client, noted, run_clients
from raydiff.federated.heartbeat import beating
from raydiff.federated.method import Metrics, Upload
from raydiff.federated.sums import Partial, UploadValidator, partial_sum
from raydiff.privacy.release import already_private
from raydiff.runtime import device_faults as lost
from raydiff.runtime import gpu_memory
from raydiff.runtime.slots import Slot, cap_memory
from raydiff.runtime.watchdog import HeartbeatMonitor
from raydiff.storage.staging import StorageCredentials
from raydiff.tree import Arrays, Params, arrays, tensors

T = TypeVar("T")
ATTEMPTS = 4  # deaths of a worker without a result between them that are put up with
IN_FLIGHT = 2  # messages that a worker may be ahead of the coordinator: bounds memory by workers, not clients
MESSAGE_BYTES = 8 * 2**20  # a message takes 2 ms of CPU time whatever it carries, so small uploads travel together:
PART_S = 30.0  # of a partial sum: what a worker that dies has to do again
MESSAGE_S = 0.05  # it is sent once it holds so much, or is so old that the coordinator should not wait for more


class NotHosted(RuntimeError):
    """The worker has been restarted, or hosts another trial: host first, then ask again."""


LOST = (RayActorError, NotHosted, ObjectLostError)
"""How it shows that a worker has died; an object is lost with a node: what a worker there had ready."""


class WorkersLost(RuntimeError):
    """A worker did not come back in time; Tune then retries the trial from its last commit."""


class WorkerCrashLoop(RuntimeError):
    """A worker died again and again at the same clients: trying once more would not help."""


class Worker:
    """Hosts the clients of one trial at a time. `host` replaces everything: trial B after A equals B alone."""

    def __init__(self) -> None:
        process.begin()
        self._trial: str | None = None
        self._clients: dict[int, Client] = {}
        self._instruments: Any = None
        self._federation = 0  # Its number of clients, newcomers apart.
        self._gpu = 0.0
        self._folder = Path()
        self._messages: Iterator[Any] = iter(())

    def host(self, trial: Trial, ids: Sequence[int], gpu: float) -> str:
        """Become the home of these clients of this trial: how this process is called. Raises `lost.GpuLost`."""
        trial = localized(trial)
        compute(trial.experiment)
        self._gpu, self._folder = gpu, trial.folder
        self._messages = iter(())  # What is left of another trial's holds its clients.
        lost.check_gpu(gpu)
        with lost.ending(self._folder, "a worker"):
            cap_memory(gpu)
            if gpu and (meter := gpu_memory.here()):
                meter.start()  # The peak of an earlier trial is not this one's.
            self._instruments = make_instruments(trial)
            self._clients = {c.number: c for c in make_clients(trial, ids)}
        self._trial, self._federation = trial.experiment.digest, trial.experiment.clients
        return heartbeat.process()

    def run(self, trial: str, ids: Sequence[int], server: Arrays, number: int, seconds: float) -> Iterator[Any]:
        """`Client.run` of each, streamed, in messages that are so old at least."""
        params = tensors(server)
        results = self._results(trial, ids, params, number, alone=not seconds)
        yield from _messages(results, seconds=seconds)

    def sums(self, trial: str, ids: Sequence[int], server: Arrays, number: int, seconds: float) -> Any:
        """The sum of what `Client.run` sends of as many as end within `seconds`, one at least; `more` gives that of the
        others."""
        clients, params = self._of(trial, ids), tensors(server)
        validator = UploadValidator(clients[0].method, params, number, self._federation)
        results = self._in_its_slice(ids, number, run_clients(clients, params, number))
        folded = functools.partial(partial_sum, validator, results, store=clients[0].store)
        self._messages = (folded(seconds=seconds) for _ in ids)
        return self.more(trial)

    def more(self, trial: str) -> Any:
        """The next message of what was asked for last. What nobody asks for is not computed."""
        if self._trial != trial:
            raise NotHosted(trial)
        return next(self._messages)

    def evaluate(self, trial: str, ids: Sequence[int], server: Arrays, number: int, split: str) -> Iterator[Any]:
        """`Client.evaluate` of each, streamed."""
        params, read, clients = tensors(server), self._instruments.of_client(split), self._of(trial, ids)
        began, turns = time.time(), len(clients)

        def reports() -> Iterator[Any]:
            for turn, client in enumerate(clients):
                who = f"client {client.number}"
                with beating(self._folder, who, number, turn=turn, turns=turns, began=began, loss=True):
                    report = client.evaluate(params, number, read)
                yield report

        yield from ([report] for report in self._in_its_slice(ids, number, reports()))

    def _results(
        self, trial: str, ids: Sequence[int], server: Params, number: int, *, alone: bool
    ) -> Iterator[tuple[Upload, Metrics]]:
        clients = self._of(trial, ids)
        results = self._in_its_slice(ids, number, run_clients(clients, server, number))
        return noted(clients, number, results, alone=alone)

    def _in_its_slice(self, ids: Sequence[int], number: int, results: Iterator[T]) -> Iterator[T]:
        """The clients' results. Raises `memory.OutOfMemory` at the first for which the slice is too small."""
        done = 0
        try:
            with lost.ending(self._folder, "a worker"):
                for result in results:
                    yield result
                    done += 1
        except torch.OutOfMemoryError:
            if not self._gpu:
                raise
            raise gpu_memory.exceeded(f"client {ids[done]}", number, "gpu_per_worker", self._gpu) from None

    def _of(self, trial: str, ids: Sequence[int]) -> list[Client]:
        if self._trial != trial:
            raise NotHosted(trial)
        return [self._clients[i] for i in ids]


def start_workers(slot: Slot, group: PlacementGroup | None) -> list[Any]:
    """The workers of a slot, each in its own bundle of the trial's placement group (None: wherever there is room)."""
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
    """`federation.ClientExecutor` over workers: clients are dealt round-robin, results come back in client order."""

    def __init__(self, workers: Sequence[Any], trial: Trial, *, gpu: float = 0.0) -> None:
        self.workers, self.trial, self.gpu = list(workers), trial, gpu
        self._clients = tuple(range(trial.experiment.clients))
        self._digest = trial.experiment.digest
        self._ear = HeartbeatMonitor(self.workers, trial.folder, trial.experiment.runtime)
        self._own_words = self._of_workers()
        self._sent = replace(trial, credentials=StorageCredentials.of(trial.sweep))
        hosting = [w.host.remote(self._sent, self._ids_of(i), gpu) for i, w in enumerate(self.workers)]
        for i, ref in enumerate(hosting):
            wait_s = trial.experiment.runtime.revive_s
            while self._ear.first({ref: i}, lambda _: "before it had its clients", wait_s) is None:
                if not _has_its_nodes():
                    raise WorkersLost(f"worker {i} has had no node for {wait_s:g} s")
            try:
                self._ear.names[i] = ray.get(ref)
            except RayActorError:
                self._revive(i)

    @property
    def clients(self) -> Sequence[int]:
        """All client numbers but newcomers', ascending."""
        return self._clients

    def run(self, ids: Sequence[int], server: Params, number: int) -> Iterator[tuple[Upload, Metrics]]:
        """`Client.run` of each."""
        if not ids:
            return
        ref = ray.put(arrays(server))

        def ask(worker: Any, part: list[int], deaths: int) -> Any:
            return _streaming(worker.run).remote(self._digest, part, ref, number, 0.0 if deaths else MESSAGE_S)

        for client, examples, value, event, metrics in self._stream(ids, ask):
            yield Upload(client, examples, already_private(tensors(value), event, copy=False)), metrics

    def sums(self, ids: Sequence[int], validator: UploadValidator) -> Iterator[Partial]:
        """The sum of what `Client.run` of each sends: one part of each worker, or more where its clients take long.

        In a worker that has died, each client is a part by itself.
        """
        if not ids:
            return
        ref, seconds = (
            ray.put(arrays(validator.server)),
            min(PART_S, self.trial.experiment.runtime.client_timeout_s / 4),
        )

        def ask(worker: Any, part: list[int], deaths: int) -> Any:
            return worker.sums.remote(self._digest, part, ref, validator.number, 0.0 if deaths else seconds)

        yield from self._arrivals(ids, ask)

    def evaluate(self, ids: Sequence[int], server: Params, number: int, split: str) -> Iterator[Any]:
        """`Client.evaluate` of each, against a split that no client holds."""
        ref = ray.put(arrays(server))
        yield from self._stream(
            ids, lambda w, part, _: _streaming(w.evaluate).remote(self._digest, part, ref, number, split)
        )

    def _stream(self, ids: Sequence[int], ask: Callable[[Any, list[int], int], Any]) -> Iterator[Any]:
        """Ask every worker for its part of `ids`; give the results in the order of `ids`. `ask` is as in `_arrivals`.

        A worker that dies is given its clients again once it is back, and asked for what has not arrived.
        """
        parts = self._dealt(ids)
        streams = {i: ask(self.workers[i], [*part], 0) for i, part in parts.items()}
        arrived: dict[int, deque[Any]] = {i: deque() for i in streams}
        died = set[int]()

        def at(i: int) -> str:
            return self._at(parts[i], alone=i in died)

        for client in ids:
            i = client % len(self.workers)
            for attempt in itertools.count(1):
                if arrived[i]:
                    break
                try:
                    self._ear.first({streams[i]: i}, at)
                    arrived[i].extend(ray.get(next(streams[i])))
                except LOST:
                    self._tell_lost(i)
                    if attempt == ATTEMPTS:
                        raise self._poisoned(i, client) from None
                    died.add(i)
                    self._revive(i)
                    streams[i] = ask(self.workers[i], [*parts[i]], attempt)
            del parts[i][client]
            yield arrived[i].popleft()

    def _arrivals(self, ids: Sequence[int], ask: Callable[[Any, list[int], int], Any]) -> Iterator[Partial]:
        """Partial sums as they come, in any order, until each client is in one. `ask` is told how often the worker has
        died since its last message.

        A worker that dies before is waited for, then asked for what has not arrived.
        """
        parts = self._dealt(ids)
        asked = {ask(self.workers[i], [*part], 0): i for i, part in parts.items()}
        deaths = dict.fromkeys(asked.values(), 0)
        while asked:
            ready = self._ear.first(asked, lambda i: self._at(parts[i], alone=deaths[i] > 0))
            i = asked.pop(ready)
            try:
                message = ray.get(ready)
            except LOST:
                self._tell_lost(i)
                deaths[i] += 1
                if deaths[i] == ATTEMPTS:
                    raise self._poisoned(i, next(iter(parts[i]))) from None
                self._revive(i)
                asked[ask(self.workers[i], [*parts[i]], deaths[i])] = i
                continue
            for sent in message.sent:
                parts[i].pop(sent.client, None)
            deaths[i] = 0
            if parts[i]:
                asked[self.workers[i].more.remote(self._digest)] = i
            yield message

    def _tell_lost(self, i: int) -> None:
        """A worker has died: say so where neither it nor `HeartbeatMonitor` has."""
        before, self._own_words = self._own_words, self._of_workers()
        if i in self._ear.killed:
            self._ear.killed.discard(i)
        elif self._own_words == before:
            says = "it died without a word: out of memory, a crash in native code, or its node is gone"
            lost.tell(self.trial.folder, f"worker {i}: {says}")

    def _of_workers(self) -> int:
        """How often a worker has told itself why it ends."""
        return sum(says.startswith("a worker: ") for says in lost.words(self.trial.folder))

    def _revive(self, i: int) -> None:
        """Host worker i's clients again, waiting for Ray to restart it. Raises WorkersLost at the deadline."""
        wait_s = self.trial.experiment.runtime.revive_s
        deadline = time.monotonic() + wait_s
        while True:
            try:
                left = max(0.1, deadline - time.monotonic())
                hosting = self.workers[i].host.remote(self._sent, self._ids_of(i), self.gpu)
                self._ear.names[i] = ray.get(hosting, timeout=left)
                return
            except (RayActorError, ray.exceptions.GetTimeoutError):
                time.sleep(0.2)  # Calls on an actor that is not back yet may fail at once.
                if time.monotonic() >= deadline:
                    raise WorkersLost(f"worker {i} did not come back within {wait_s:g} s") from None

    def _at(self, clients: Mapping[int, None], *, alone: bool) -> str:
        """Where a worker is that has sent nothing yet of these: at the first, where it sends each `alone` as soon as it
        is there."""
        sure = len(clients) == 1 or (alone and not self.trial.experiment.runtime.vectorize)
        return f"at client {next(iter(clients))}{'' if sure else ', or at one after it'}"

    def _poisoned(self, i: int, client: int) -> WorkerCrashLoop:
        why = lost.last_words(self.trial.folder)
        return WorkerCrashLoop(f"worker {i} died {ATTEMPTS} times before client {client} had its result; {why}")

    def _ids_of(self, i: int) -> list[int]:
        return [*self.trial.experiment.everyone[i :: len(self.workers)]]

    def _dealt(self, ids: Sequence[int]) -> dict[int, dict[int, None]]:
        """What each worker has of these clients, in their order; a client that has its result is taken out without a
        look at the others."""
        parts: dict[int, dict[int, None]] = {i: {} for i in range(len(self.workers))}
        for client in ids:
            parts[client % len(self.workers)][client] = None
        return {i: part for i, part in parts.items() if part}


def _has_its_nodes() -> bool:
    """Whether all bundles of this trial are on a node; one whose node is gone waits for room elsewhere, and its worker,
    which nobody has started yet, answers nothing and fails at nothing."""
    group = ray.util.get_current_placement_group()
    return group is None or ray.util.placement_group_table(group)["state"] == "CREATED"


def _streaming(method: Any) -> Any:
    return method.options(num_returns="streaming", _generator_backpressure_num_objects=IN_FLIGHT)


def _messages(results: Iterable[tuple[Upload, Metrics]], *, seconds: float) -> Iterator[list[Any]]:
    """The results as they travel, in lists of MESSAGE_BYTES or `seconds`."""
    message: list[Any] = []
    size, started = 0, time.monotonic()
    for upload, metrics in results:
        release = upload.release
        message.append((upload.client, upload.examples, arrays(release.value), release.event, metrics))
        size += release.nbytes
        if size >= MESSAGE_BYTES or time.monotonic() - started >= seconds:
            yield message
            message, size, started = [], 0, time.monotonic()
    if message:
        yield message
