"""`RayExecutor`, which runs clients on a Ray cluster in place of `LocalExecutor`, and the start of its workers."""

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import ObjectLostError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from raydiff.experiment.trial import Trial
from raydiff.federated.method import Metrics, Upload
from raydiff.federated.upload_validator import Partial, UploadValidator
from raydiff.privacy.release import already_private
from raydiff.runtime.place import Slot
from raydiff.runtime.worker import NotHosted, Worker
from raydiff.runtime.worker_deaths import DIED, WorkerSupervisor
from raydiff.storage.staging import read_credentials
from raydiff.tree import Params, arrays, tensors

Ask = Callable[[Any, list[int], bool], Any]
"""(worker, clients, whether each result is sent alone) -> reference to the first message."""
MESSAGE_S = 0.05  # age of a message of uploads
PART_S = 30.0  # longest computation of one partial sum, which is lost if the worker dies
LOST = (*DIED, NotHosted, ObjectLostError)  # of a call whose worker has died, or its node with the result


def start_workers(slot: Slot, group: PlacementGroup | None) -> list[Any]:
    """Start a slot's workers, each in its own bundle of the placement group (None: on any node)."""
    restarting = ray.remote(max_restarts=-1, max_task_retries=0)(Worker)
    handles = []
    for i, bundle in enumerate(slot.bundles[1:], start=1):
        where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=i) if group else "DEFAULT"
        needed = restarting.options(num_cpus=bundle["CPU"], num_gpus=bundle.get("GPU", 0), scheduling_strategy=where)
        handles.append(needed.remote())
    return handles


class RayExecutor:
    """`rounds.ClientExecutor` over workers: client i runs in worker i modulo the number of workers."""

    def __init__(self, workers: Sequence[Any], trial: Trial, *, gpu: float = 0.0) -> None:
        self.workers = list(workers)
        self.trial = trial
        self.gpu = gpu
        self.clients: Sequence[int] = tuple(range(trial.experiment.clients))  # without unseen clients, ascending
        self._digest = trial.experiment.digest
        self._sent = replace(trial, credentials=read_credentials(trial.sweep))
        self._supervisor = WorkerSupervisor(self.workers, trial, self._host)

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
        ask = self._ask("sums", validator.server, validator.round_number, seconds)
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
        """Yield (worker, message) until each client's result has arrived.

        A worker that dies is asked again for the missing results. `wanted`: whether a worker should compute its
        next message now.
        """
        parts: dict[int, dict[int, None]] = {}  # worker -> clients that it owes, each removed in constant time
        for client in ids:
            parts.setdefault(client % len(self.workers), {})[client] = None
        pending = {ask(self.workers[i], [*part], False): i for i, part in parts.items()}
        # workers, workers, at each client
        died = set[int]()
        idle = set[int]()
        deaths = Counter[int]()

        def resume() -> None:
            for i in [i for i in idle if wanted(i)]:
                idle.remove(i)
                pending[self.workers[i].more.remote(self._digest)] = i

        while pending:
            ready = self._supervisor.first(pending, lambda i: self._current(parts[i], alone=i in died))
            i = pending.pop(ready)
            try:
                message = ray.get(ready)
            except LOST:
                client = next(iter(parts[i]))
                died.add(i)
                deaths[client] += 1
                self._supervisor.recover(i, client, deaths=deaths[client])
                pending[ask(self.workers[i], [*parts[i]], True)] = i
                continue
            for client in _senders(message, parts[i]):
                parts[i].pop(client, None)
            if parts[i]:
                idle.add(i)
            resume()  # It computes while the caller reads this message.
            yield i, message
            resume()

    def _current(self, clients: Mapping[int, None], *, alone: bool) -> str:
        """Describe what a worker computes that still owes these clients, and sends each `alone` or several at once."""
        sure = len(clients) == 1 or (alone and not self.trial.experiment.numerics.vectorize)
        return f"at client {next(iter(clients))}{'' if sure else ' or a later one'}"


def _senders(message: Any, owing: Mapping[int, None]) -> list[int]:
    """Return the clients whose results are in a message: a list of results in the clients' order, or a partial sum."""
    if isinstance(message, list):
        return [*itertools.islice(owing, len(message))]
    return [sent.client for sent in message.sent]
