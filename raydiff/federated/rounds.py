"""The round loop, `rounds()`, and the executor that runs clients. Read after `method.py`.

A unit test, `raydiff run` and the Tune trainable all consume the same generator; only the executor differs.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from raydiff import seeding, tree
from raydiff.data.datasets import Records
from raydiff.federated.client import Client, Evaluate, Failed, Keys, failing_as, run_clients, write_ahead
from raydiff.federated.heartbeat import beating
from raydiff.federated.method import SERVER_ONLY, Mean, Method, Metrics, Round, Upload
from raydiff.federated.upload_validator import Partial, UploadRecord, UploadValidator, partial_sum
from raydiff.formats.json_files import read_numbers
from raydiff.formats.metric_records import REJECTED
from raydiff.models.training import TRAINER_OVERRIDE, Train
from raydiff.privacy.ledger import Entry, Ledger
from raydiff.privacy.release import Event
from raydiff.seeding import NoiseStream
from raydiff.storage.checkpoint import INITIAL, Checkpoint
from raydiff.tree import Params

PER_CLIENT_METRICS = 32  # above this many participants only the means are recorded
NAMED = 5  # rejected clients in the reason of a failed trial


class ClientExecutor(Protocol):
    """Runs clients somewhere; results come back in the order of `ids`, one at a time."""

    @property
    def clients(self) -> Sequence[int]:
        """Numbers of the clients that take part, ascending."""

    def run(self, ids: Sequence[int], server: Params, round_number: int) -> Iterator[tuple[Upload, Metrics]]:
        """`Client.run` of each."""

    def sums(self, ids: Sequence[int], validator: UploadValidator) -> Iterator[Partial]:
        """The sum of the uploads of `Client.run` of each, in parts, in any order; of a method with a `mean_spec`."""

    def evaluate(self, ids: Sequence[int], server: Params, round_number: int, split: str) -> Iterator[Any]:
        """`Client.evaluate` of each, against a split that no client has."""


class LocalExecutor:
    """All clients in this process: for tests, debugging and laptops. `ClientExecutor` documents the methods."""

    def __init__(self, clients: Sequence[Client], evaluate: Callable[[str], Evaluate] | None = None) -> None:
        self._clients = {c.client_id: c for c in sorted(clients, key=lambda c: c.client_id)}
        self._evaluate = evaluate

    @property
    def clients(self) -> Sequence[int]:
        return tuple(client_id for client_id, client in self._clients.items() if not client.unseen)

    def run(self, ids: Sequence[int], server: Params, round_number: int) -> Iterator[tuple[Upload, Metrics]]:
        clients = [self._clients[i] for i in ids]
        yield from write_ahead(clients, round_number, run_clients(clients, server, round_number))

    def sums(self, ids: Sequence[int], validator: UploadValidator) -> Iterator[Partial]:
        yield partial_sum(validator, self.run(ids, validator.server, validator.round_number))

    def evaluate(self, ids: Sequence[int], server: Params, round_number: int, split: str) -> Iterator[Any]:
        if self._evaluate is None:
            raise ValueError("this pool was made without instruments")
        read = self._evaluate(split)
        for i in ids:
            yield self._clients[i].evaluate(server, round_number, read)


@dataclass(frozen=True)
class Progress:
    """The state of a run after a round."""

    number: int
    server: Params  # the server's whole state; `sent` is what clients may see of it
    ledger: Ledger
    metrics: Metrics  # the server's, and means over clients
    client_metrics: Mapping[int, Metrics] = field(default_factory=dict)  # client -> its own; empty where many take part
    rejected: Mapping[int, str] = field(default_factory=dict)  # client -> why its upload was not aggregated
    resumed: bool = False  # an earlier process committed this round; it is only reported again

    @property
    def sent(self) -> Params:
        """The server's state without the leaves that stay there."""
        return tree.without(SERVER_ONLY, self.server)


def run_rounds(
    method: Method,
    pool: ClientExecutor,
    *,
    keys: Keys,
    participants: int | None = None,
    min_clients: int = 1,
    public: Records | None = None,
    setup: Event | None = None,
    store: Checkpoint | None = None,
    train: Train | None = None,
    instruments: bool = True,
) -> Iterator[Progress]:
    """Run the protocol: one `Progress` per round.

    An upload that `aggregate` cannot use is rejected: it is in the ledger, since it was sent, and the round goes on
    without it. With a store that has committed rounds, the last one is yielded again (`resumed`), then the next ones.

    Args:
        participants: How many clients are drawn for each round, uniformly without replacement; None: all.
        min_clients: Usable uploads that a round needs.
        public: The records that everybody has.
        setup: The event of what was learned from every client's records before round 0.
        train: Does the trainings of the server and of clients in this process; None: this process itself.
        instruments: Whether the metrics of `aggregate` are reported.

    Raises Failed if a participant fails or too few uploads can be used, LeaseLost if another process has taken over.
    """
    resumed = _resume(store, pool.clients, setup) if store else None
    if resumed is not None:
        server = resumed.server
        ledger = resumed.ledger
        first = resumed.number + 1
        committed = len(ledger.entries)
        yield resumed
    else:
        first = 0
        committed = 0  # What was spent before round 0 (SETUP) is committed with it.
        ledger = Ledger().with_setup(pool.clients, setup)
        with failing_as("the server", INITIAL, method):
            server = method.init_server(public, seeding.generator(keys.seed, "server", "init"))
    folder = store.root if store else None
    options: dict[str, Any] = {"min_clients": min_clients, "instruments": instruments, "folder": folder}
    for number in range(first, method.rounds):
        ids: Sequence[int] = []
        if number < method.participating_rounds:
            ids = sample_participants(pool.clients, participants or len(pool.clients), keys.seed, number)
        before = TRAINER_OVERRIDE.set(train)
        try:
            with failing_as("the server", number, method):
                progress = _run_round(method, pool, server, ledger, number, keys=keys, ids=ids, **options)
        finally:
            TRAINER_OVERRIDE.reset(before)
        server = progress.server
        ledger = progress.ledger
        if store:
            _commit(store, progress, ledger.entries[committed:])
            committed = len(ledger.entries)
        yield progress


def _resume(store: Checkpoint, clients: Sequence[int], setup: Event | None) -> Progress | None:
    """The last committed round; None if there is none."""
    last = store.last_commit()
    if last is None:
        return None
    number, record = last
    ledger = store.ledger().with_setup(clients, setup)  # First: it names a lost commit.
    return Progress(
        number,
        store.load_server(number),
        ledger,
        read_numbers(record["metrics"]),
        {int(client): read_numbers(values) for client, values in record["client_metrics"].items()},
        {int(client): why for client, why in record["rejected"].items()},
        resumed=True,
    )


def _commit(store: Checkpoint, progress: Progress, new: Sequence[Entry]) -> None:
    """Store a round, with the ledger's entries since the last commit."""
    store.save_server(progress.number, progress.server)
    record = {
        "ledger": Ledger(tuple(new)).to_json(),
        "metrics": progress.metrics,
        "rejected": dict(progress.rejected),
        "client_metrics": dict(progress.client_metrics),
    }
    store.commit(progress.number, record)


def _run_round(
    method: Method,
    pool: ClientExecutor,
    server: Params,
    ledger: Ledger,
    round_number: int,
    *,
    keys: Keys,
    ids: Sequence[int],
    min_clients: int,
    instruments: bool,
    folder: Path | None,
) -> Progress:
    validator = UploadValidator(method, tree.without(SERVER_ONLY, server), round_number, len(pool.clients))
    collector = _RoundCollector(min_clients if ids else 0)
    uploads: Any
    if validator.mean_spec is not None:
        uploads = collector.mean(validator, pool.sums(ids, validator))
    else:
        uploads = collector.stream(validator, pool.run(ids, validator.server, round_number))
    path = ("server", "round", round_number)
    rng = seeding.generator(keys.seed, *path)
    noise = NoiseStream(keys.secret, (keys.digest, *path))
    with beating(folder, "the server", round_number, began=time.time(), loss=instruments):
        after, metrics, events = method.aggregate(server, uploads, Round(round_number, rng, noise, validator.clients))
    if validator.mean_spec is None:
        for _ in uploads:  # Uploads that the method did not read were sent all the same, and are charged.
            pass
    sent = collector.sent
    rejected = collector.rejected
    used = {record.client: record.metrics for record in sent if record.rejected is None}
    metrics = {**_average_metrics(used), **(metrics if instruments else {})}
    if rejected:
        metrics[REJECTED.name] = float(len(rejected))
    ledger = ledger.with_uploads(round_number, [(s.client, s.event, s.bytes) for s in sent])
    ledger = ledger.with_published(round_number, events)
    of_clients = used if len(used) <= PER_CLIENT_METRICS else {}
    return Progress(round_number, after, ledger, metrics, of_clients, rejected)


@dataclass
class _RoundCollector:
    """Collects the records of a round's uploads, of which `aggregate` must get at least `enough`."""

    enough: int
    sent: list[UploadRecord] = field(default_factory=list)

    @property
    def rejected(self) -> dict[int, str]:
        """Client -> why its upload was rejected."""
        return {s.client: s.rejected for s in self.sent if s.rejected is not None}

    def stream(self, validator: UploadValidator, results: Iterable[tuple[Upload, Metrics]]) -> Iterator[Upload]:
        """Yield the usable uploads. Raises Failed at the end if they are too few."""
        for result in results:
            upload, record = validator.check(*result)
            self.sent.append(record)
            if record.rejected is None:
                yield upload
        self._check_enough(validator.round_number)

    def mean(self, validator: UploadValidator, parts: Iterable[Partial]) -> Mean:
        """Return the mean of the uploads whose sum comes in parts. Raises Failed if they are too few."""
        whole = validator.partial()
        for part in parts:
            whole.merge(part)
        self.sent = sorted(whole.sent, key=lambda s: s.client)  # Parts come in any order.
        self._check_enough(validator.round_number)
        return whole.mean

    def _check_enough(self, round_number: int) -> None:
        rejected = [f"client {client}: {why}" for client, why in self.rejected.items()]
        if (usable := len(self.sent) - len(rejected)) < self.enough:
            says = f"{usable} of {len(self.sent)} uploads can be used, fewer than min_clients = {self.enough}"
            more = [f"and {len(rejected) - NAMED} more"] if len(rejected) > NAMED else []
            raise Failed(
                "the server", round_number, f"{says} ({'; '.join(rejected[:NAMED] + more)})" if rejected else says
            )


def sample_participants(clients: Sequence[int], count: int, seed: int, round_number: int) -> list[int]:
    """Return the `count` clients that the experiment's seed draws for a round, ascending."""
    if count >= len(clients):
        return list(clients)
    rng = seeding.generator(seed, "participants", round_number)
    return sorted(clients[i] for i in torch.randperm(len(clients), generator=rng)[:count].tolist())


def _average_metrics(of_clients: Mapping[int, Metrics]) -> Metrics:
    """The mean of each metric over the clients that have it."""
    values: dict[str, list[float]] = {}
    for metrics in of_clients.values():
        for name, value in metrics.items():
            values.setdefault(name, []).append(value)
    return {name: sum(each) / len(each) for name, each in values.items()}
