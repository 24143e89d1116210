"""`Worker`: the actor that hosts clients.

It hosts any number of clients and writes their private state to the store itself: none of it passes through the
coordinator.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from raydiff import process
from raydiff.experiment.trial import Trial, compute, localized, make_clients, make_instruments
from raydiff.federated import heartbeat
from raydiff.federated.client import Client, noted, run_clients
from raydiff.federated.heartbeat import beating
from raydiff.federated.method import Metrics, Upload
from raydiff.federated.sums import UploadValidator, partial_sum
from raydiff.runtime import device_faults, gpu_memory
from raydiff.runtime.slots import cap_memory
from raydiff.tree import Arrays, arrays, tensors

T = TypeVar("T")
MESSAGE_BYTES = 8 * 2**20  # A message takes 2 ms of CPU time whatever its size, so small uploads travel together.


class NotHosted(RuntimeError):
    """The worker was restarted or hosts another trial; call `host` again."""


class Worker:
    """Hosts the clients of one trial at a time. `host` replaces all state of the previous trial."""

    def __init__(self) -> None:
        process.begin()
        self._trial: str | None = None
        self._clients: dict[int, Client] = {}
        self._instruments: Any = None
        self._federation = 0  # Number of clients without newcomers.
        self._gpu = 0.0
        self._folder = Path()
        self._messages: Iterator[Any] = iter(())

    def host(self, trial: Trial, ids: Sequence[int], gpu: float) -> str:
        """Host these clients of a trial with a share of a GPU, and return this process's name in `heartbeat`.

        Raises device_faults.GpuLost.
        """
        trial = localized(trial)
        compute(trial.experiment)
        self._gpu, self._folder = gpu, trial.folder
        self._messages = iter(())  # Unread messages hold the previous trial's clients.
        device_faults.check_gpu(gpu)
        with device_faults.exit_on_device_error(self._folder, "a worker"):
            cap_memory(gpu)
            self._instruments = make_instruments(trial)
            self._clients = {c.number: c for c in make_clients(trial, ids)}
        self._trial, self._federation = trial.experiment.digest, trial.experiment.clients
        return heartbeat.process()

    def run(self, trial: str, ids: Sequence[int], server: Arrays, number: int, seconds: float) -> Any:
        """Return the first message of `Client.run` of each client, in messages of this age in seconds."""
        clients = self._of(trial, ids)
        results = self._with_share(ids, number, run_clients(clients, tensors(server), number))
        self._messages = _batches(noted(clients, number, results, alone=not seconds), seconds=seconds)
        return self.more(trial)

    def sums(self, trial: str, ids: Sequence[int], server: Arrays, number: int, seconds: float) -> Any:
        """Return the sum of the uploads that are ready within `seconds`, at least one."""
        clients, params = self._of(trial, ids), tensors(server)
        validator = UploadValidator(clients[0].method, params, number, self._federation)
        results = self._with_share(ids, number, run_clients(clients, params, number))
        part = functools.partial(partial_sum, validator, results, store=clients[0].store)
        self._messages = (part(seconds=seconds) for _ in ids)
        return self.more(trial)

    def evaluate(self, trial: str, ids: Sequence[int], server: Arrays, number: int, split: str) -> Any:
        """Return the first message of `Client.evaluate` of each client."""
        params, read, clients = tensors(server), self._instruments.of_client(split), self._of(trial, ids)
        began, turns = time.time(), len(clients)

        def reports() -> Iterator[Any]:
            for turn, client in enumerate(clients):
                who = f"client {client.number}"
                with beating(self._folder, who, number, turn=turn, turns=turns, began=began, loss=True):
                    report = client.evaluate(params, number, read)
                yield report

        self._messages = ([report] for report in self._with_share(ids, number, reports()))
        return self.more(trial)

    def more(self, trial: str) -> Any:
        """Return the next message of the last call. It is computed only now."""
        if self._trial != trial:
            raise NotHosted(trial)
        return next(self._messages)

    def _with_share(self, ids: Sequence[int], number: int, results: Iterator[T]) -> Iterator[T]:
        """Yield the clients' results. Raises gpu_memory.OutOfMemory if the GPU share is too small for a client."""
        done = 0
        try:
            with device_faults.exit_on_device_error(self._folder, "a worker"):
                for result in results:
                    yield result
                    done += 1
        except torch.OutOfMemoryError:
            if not self._gpu:
                raise
            raise gpu_memory.OutOfMemory(f"client {ids[done]}", number, "gpu_per_worker", self._gpu) from None

    def _of(self, trial: str, ids: Sequence[int]) -> list[Client]:
        if self._trial != trial:
            raise NotHosted(trial)
        return [self._clients[i] for i in ids]


def _batches(results: Iterable[tuple[Upload, Metrics]], *, seconds: float) -> Iterator[list[Any]]:
    """Group results into messages of MESSAGE_BYTES or `seconds`."""
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
