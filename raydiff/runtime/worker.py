"""`Worker`: the actor that hosts clients. Their private state does not pass through the coordinator."""

import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from raydiff import process
from raydiff.experiment.trial import Trial, compute, localize, make_clients, make_instruments
from raydiff.federated import heartbeat
from raydiff.federated.client import Client, run_clients, write_ahead
from raydiff.federated.method import Metrics, Upload
from raydiff.federated.upload_validator import UploadValidator, partial_sum
from raydiff.runtime import device_faults, place
from raydiff.tree import Arrays, arrays, tensors

T = TypeVar("T")
MESSAGE_BYTES = 8 * 2**20  # A message takes 2 ms of CPU time whatever its size, so small uploads travel together.


class NotHosted(RuntimeError):
    """The worker was restarted or hosts another trial; call `host` again."""


class Worker:
    """Hosts the clients of one trial at a time. `host` replaces all state of the previous trial."""

    def __init__(self) -> None:
        process.prepare_process()
        signal.signal(signal.SIGINT, process.interrupt)
        self._trial: Trial | None = None
        self._messages: Iterator[Any] = iter(())

    def host(self, trial: Trial, ids: Sequence[int], gpu: float) -> str:
        """Host these clients with a fraction of a GPU; return this process's name in `heartbeat`. Raises GpuLost."""
        trial = localize(trial)
        compute(trial.experiment)
        # Unread messages hold the previous trial's clients.
        self._trial = None
        self._messages = iter(())
        device_faults.check_gpu(gpu)
        with device_faults.exit_on_device_error(trial.folder, "a worker"):
            place.cap_memory(gpu)
            self._instruments: Any = make_instruments(trial)
            self._clients = {c.client_id: c for c in make_clients(trial, ids)}
        self._trial = trial
        self._gpu = gpu
        return heartbeat.process_name()

    def run(self, digest: str, ids: Sequence[int], server: Arrays, number: int, seconds: float) -> Any:
        """Return the first message of `Client.run` of each client, in messages of this age in seconds."""
        _, clients = self._hosted(digest, ids)
        results = self._explained(ids, number, run_clients(clients, tensors(server), number))
        self._messages = _batches(write_ahead(clients, number, results, alone=not seconds), seconds=seconds)
        return self.more(digest)

    def sums(self, digest: str, ids: Sequence[int], server: Arrays, number: int, seconds: float) -> Any:
        """Return the sum of the uploads that are ready within `seconds`, at least one."""
        (trial, clients), params = self._hosted(digest, ids), tensors(server)
        validator = UploadValidator(clients[0].method, params, number, trial.experiment.clients)
        results = self._explained(ids, number, run_clients(clients, params, number))
        store = clients[0].store
        self._messages = (partial_sum(validator, results, store=store, seconds=seconds) for _ in ids)
        return self.more(digest)

    def evaluate(self, digest: str, ids: Sequence[int], server: Arrays, number: int, split: str) -> Any:
        """Return the first message of `Client.evaluate` of each client."""
        (trial, clients), params, read = self._hosted(digest, ids), tensors(server), self._instruments.of_client(split)
        began = time.time()
        turns = len(clients)

        def reports() -> Iterator[Any]:
            for turn, client in enumerate(clients):
                who = f"client {client.client_id}"
                with heartbeat.beating(trial.folder, who, number, turn=turn, turns=turns, began=began, loss=True):
                    report = client.evaluate(params, number, read)
                yield report

        self._messages = ([report] for report in self._explained(ids, number, reports()))
        return self.more(digest)

    def more(self, digest: str) -> Any:
        """Return the next message of the last call. It is computed only now."""
        self._hosted(digest, ())
        return next(self._messages)

    def _explained(self, ids: Sequence[int], number: int, results: Iterator[T]) -> Iterator[T]:
        """Yield the clients' results, with errors of the device as in `device_faults`."""
        assert self._trial is not None
        done = 0
        with (
            device_faults.explain_out_of_memory(lambda: (f"client {ids[done]}", number), "gpu_per_worker", self._gpu),
            device_faults.exit_on_device_error(self._trial.folder, "a worker"),
        ):
            for result in results:
                yield result
                done += 1

    def _hosted(self, digest: str, ids: Sequence[int]) -> tuple[Trial, list[Client]]:
        if self._trial is None or self._trial.experiment.digest != digest:
            raise NotHosted(digest)
        return self._trial, [self._clients[i] for i in ids]


def _batches(results: Iterable[tuple[Upload, Metrics]], *, seconds: float) -> Iterator[list[Any]]:
    """Group results into messages of MESSAGE_BYTES or `seconds`."""
    message: list[Any] = []
    size = 0
    started = time.monotonic()
    for upload, metrics in results:
        release = upload.release
        message.append((upload.client, upload.examples, arrays(release.value), release.event, metrics))
        size += release.nbytes
        if size >= MESSAGE_BYTES or time.monotonic() - started >= seconds:
            yield message
            message = []
            size = 0
            started = time.monotonic()
    if message:
        yield message
