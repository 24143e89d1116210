"""The round loop: clients, the pool that runs them, and `rounds()`. Read after `method.py`.

A unit test, `jobs/run.py` and the Tune trainable all consume the same generator `rounds()`; only the pool differs.
"""

from __future__ import annotations

import functools
import hashlib
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from raydiff import seeding, tree
from raydiff.data.datasets import Records
from raydiff.diffusion.cohort import in_step
from raydiff.diffusion.local import Diverged, fit_personal
from raydiff.method import HELD, Deployed, Foretelling, Method, Metrics, Personalizing, Round, Upload
from raydiff.privacy.ledger import Ledger
from raydiff.privacy.release import UNACCOUNTED, UNSEEN, Event, Release, accountable
from raydiff.seeding import NoiseStream
from raydiff.store import INITIAL, Store
from raydiff.tree import Params

COHORT = 16  # clients that train in lock-step at most: more are hardly faster, and each has its activations in memory
PER_CLIENT_METRICS = 32  # above this many participants only the means are recorded
NAMED = 5  # rejected clients that the reason of a failed trial names


class Failed(RuntimeError):
    """A participant could not do its part; says who, in which round, and why."""

    def __init__(self, who: str, number: int, reason: str) -> None:
        super().__init__(who, number, reason)
        self.who, self.number, self.reason = who, number, reason

    def __str__(self) -> str:
        when = "before round 0" if self.number == INITIAL else f"in round {self.number}"
        return f"{self.who}, {when}: {self.reason}"


@dataclass(frozen=True)
class Keys:
    """What the random streams of one trial are keyed by."""

    seed: int
    """The experiment's seed: initial weights, batches, sampling."""
    secret: bytes = field(repr=False)
    """The noise secret: privacy noise. Never logged."""
    digest: str
    """The trial's config digest: no two trials share their privacy noise."""


Evaluate = Callable[[Deployed, Records, torch.Generator], Any]


class Client:
    """One client: its data, its private state, and nothing of Ray."""

    def __init__(
        self,
        number: int,
        method: Method,
        data: Records,
        *,
        keys: Keys,
        public: Records | None = None,
        store: Store | None = None,
        newcomer: bool = False,
        vectorize: bool = False,
    ) -> None:
        self.number, self.method, self.data, self.public = number, method, data, public
        self.keys, self.store, self.newcomer, self.vectorize = keys, store, newcomer, vectorize
        self._states: dict[int, Params] = {}  # by the round after which they hold

    def run(self, server: Params, number: int) -> tuple[Upload, Metrics]:
        """This client's part of round `number`. Asked again for it, a noised release is resent, not drawn again."""
        if self.store and (stored := self.store.load_release(self.number, number)):
            self._states.clear()  # the round's own state is in the store: one in memory may be older
            return self._upload(stored), {"upload/resent": 1.0}
        state = self._state_before(number)
        path = ("client", self.number, "round", number)
        rnd = Round(number, seeding.generator(self.keys.seed, *path), self._noise(number))
        try:
            result = self.method.local_update(server, state, self.data, rnd)
        except Diverged as e:
            raise Failed(f"client {self.number}", number, str(e)) from None
        if result.state is not state:
            self._keep(number, result.state)
        release = accountable(result.release)
        if self.store:
            release = self.store.save_release(self.number, number, release)
        return self._upload(release), result.metrics

    def deploy(self, server: Params, number: int) -> Deployed:
        """The personalised model after round `number`; a newcomer personalises the server's now."""
        rng = seeding.generator(self.keys.seed, "client", self.number, "deploy", number)
        joins = self.newcomer and isinstance(self.method, Personalizing)
        state = self._joined(server) if joins else self.state(number)
        return self.method.deploy(server, state, self.data, rng)

    def state(self, number: int) -> Params:
        """The private state after round `number`; trained (again) where `is_trained` says no."""
        return self._state_before(number + 1)

    def is_trained(self, number: int) -> bool:
        """Whether the state after round `number` is at hand or in the store, so that nothing needs to be trained."""
        at_hand = any(n <= number for n in self._states) or self.method.init_key is None
        if at_hand or self.store is None:
            return at_hand
        return self.store.load_client(self.number, before=number + 1) is not None or self.store.has_cached(self._key())

    def evaluate(self, server: Params, number: int, evaluate: Evaluate) -> Any:
        """The experimenter's instrument: `evaluate(deployed, own records, rng)`, outside the protocol."""
        rng = seeding.generator(self.keys.seed, "client", self.number, "evaluate")
        deployed = self.deploy(server, number)
        if deployed.upload is not None:  # by the same noise as in round 0: the bits that were sent, not others
            deployed = replace(deployed, sent=deployed.upload(self.data, self._noise(0)))
        return evaluate(deployed, self.data, rng)

    def _noise(self, number: int) -> NoiseStream:
        """The noise of this client's upload in a round."""
        return NoiseStream(self.keys.secret, (self.keys.digest, "client", self.number, "round", number))

    def _joined(self, server: Params) -> Params:
        """The personal part of the server's model, trained on this client's records."""
        assert isinstance(self.method, Personalizing)
        rng = seeding.generator(self.keys.seed, "client", self.number, "join")
        personal, fixed = self.method.join(server, rng)
        data, training = (self.data.images, self.data.labels), self.method.joining
        try:
            personal, _, _ = fit_personal(self.method.trained_model, personal, fixed, data, training=training, rng=rng)
        except Diverged as e:
            raise Failed(f"client {self.number}, which joins", self.method.rounds, str(e)) from None
        return personal

    def _upload(self, release: Release) -> Upload:
        return Upload(self.number, len(self.data), release)

    def _state_before(self, number: int) -> Params:
        known = [n for n in self._states if n < number]
        if known:
            return self._states[max(known)]
        state = self.store.load_client(self.number, before=number) if self.store else None
        if state is None:
            state = self._initial()
        self._states[number - 1] = state
        return state

    def _initial(self) -> Params:
        """`init_client`, shared between the trials whose `init_key`, data and seed agree."""
        parts = self.method.init_parts
        if not self.store or self.method.init_key is None:
            return functools.reduce(self._init_part, range(parts), {})
        store, key = self.store, self._key()

        def make() -> Params:
            kept = ((part, store.load_cached(f"{key}-{part}")) for part in reversed(range(parts - 1)))
            first, state = next(((part + 1, state) for part, state in kept if state is not None), (0, {}))
            for part in range(first, parts - 1):
                state = store.cached(f"{key}-{part}", functools.partial(self._init_part, state, part))
                store.forget([f"{key}-{part - 1}"])
                if (whole := store.load_cached(key)) is not None:  # a trial beside this one was faster
                    return whole
            return self._init_part(state, parts - 1)

        whole = store.cached(key, make)
        store.forget(f"{key}-{part}" for part in range(parts - 1))
        return whole

    def _key(self) -> str:
        """What `init_client` depends on, as the name of its result."""
        digests = [tree.digest({"images": d.images, "labels": d.labels}) for d in (self.data, self.public) if d]
        how = ("vectorize",) if self.vectorize else ()  # its bits are not those of a training by itself
        parts = (self.method.init_key, self.keys.seed, self.number, *digests, torch.get_num_threads(), *how)
        return f"client-{hashlib.sha256(repr(parts).encode()).hexdigest()[:32]}"

    def _init_part(self, state: Params, part: int) -> Params:
        rng = seeding.generator(self.keys.seed, "client", self.number, "init", *([part] if part else []))
        try:
            return self.method.init_client(state, self.data, self.public, Round(part, rng))
        except Diverged as e:
            raise Failed(f"client {self.number}", INITIAL, str(e)) from None

    def _keep(self, number: int, state: Params) -> None:
        self._states = {n: s for n, s in self._states.items() if n == number - 1} | {number: state}
        if self.store:
            self.store.save_client(self.number, number, state)


def run_clients(clients: Sequence[Client], server: Params, number: int) -> Iterator[tuple[Upload, Metrics]]:
    """`Client.run` of each, in order: one after the other; or, where they are to be vectorized, COHORT at a time in
    lock-step. Then the metric `cohort/size` says with how many a client trained, itself included; 1 is by itself."""
    if not any(client.vectorize for client in clients):
        yield from (client.run(server, number) for client in clients)
        return
    for start in range(0, len(clients), COHORT):
        runs = [functools.partial(client.run, server, number) for client in clients[start : start + COHORT]]
        for (upload, metrics), sizes in in_step(runs):
            yield upload, {**metrics, "cohort/size": sum(sizes) / len(sizes)} if sizes else metrics


@dataclass(frozen=True, kw_only=True)
class Closing:
    """When a round is closed though not every upload has come."""

    enough: int
    """Uploads that are waited for."""
    seconds: float = math.inf
    """How long they are, from the round's start."""


@dataclass(frozen=True)
class Late:
    """A client whose upload had not come when the round was closed. It may still send it."""

    client: int
    examples: int
    """Its number of records."""


class Pool(Protocol):
    """Runs clients somewhere; results come back in the order of `ids`, one at a time."""

    @property
    def clients(self) -> Sequence[int]:
        """All client numbers but newcomers', ascending."""

    def run(self, ids: Sequence[int], server: Params, number: int) -> Iterator[tuple[Upload, Metrics]]:
        """`Client.run` of each."""

    def race(
        self, ids: Sequence[int], server: Params, number: int, closing: Closing
    ) -> Iterator[tuple[Upload, Metrics] | Late]:
        """`Client.run` of each that comes before the round is closed; the others are late."""

    def evaluate(self, ids: Sequence[int], server: Params, number: int, split: str) -> Iterator[Any]:
        """`Client.evaluate` of each, against a split that no client holds."""


class LocalPool:
    """All clients in this process: for tests, debugging and laptops."""

    def __init__(
        self,
        clients: Sequence[Client],
        evaluate: Callable[[str], Evaluate] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clients = {c.number: c for c in sorted(clients, key=lambda c: c.number)}
        self._evaluate, self._clock = evaluate, clock

    @property
    def clients(self) -> Sequence[int]:
        """All client numbers but newcomers', ascending."""
        return tuple(number for number, client in self._clients.items() if not client.newcomer)

    def run(self, ids: Sequence[int], server: Params, number: int) -> Iterator[tuple[Upload, Metrics]]:
        """`Client.run` of each."""
        yield from run_clients([self._clients[i] for i in ids], server, number)

    def race(
        self, ids: Sequence[int], server: Params, number: int, closing: Closing
    ) -> Iterator[tuple[Upload, Metrics] | Late]:
        """`Client.run` of one after the other until enough have come or the time is up: the clock is looked at before
        and after each, and who is late has had no turn, or not the time to end it."""
        start, came = self._clock(), 0
        results = run_clients([self._clients[i] for i in ids], server, number)
        for i in ids:
            result = None
            if came < closing.enough and self._clock() - start < closing.seconds:
                result = next(results)
            if result is None or self._clock() - start >= closing.seconds:
                yield Late(i, len(self._clients[i].data))
            else:
                came += 1
                yield result

    def evaluate(self, ids: Sequence[int], server: Params, number: int, split: str) -> Iterator[Any]:
        """`Client.evaluate` of each, against a split that no client holds."""
        if self._evaluate is None:
            raise ValueError("this pool was made without instruments")
        for i in ids:
            yield self._clients[i].evaluate(server, number, self._evaluate(split))


@dataclass(frozen=True)
class Progress:
    """The state of a run after a round."""

    number: int
    server: Params
    """The server's whole state; `sent` is what clients may see of it."""
    ledger: Ledger
    metrics: Metrics
    rejected: Mapping[int, str] = field(default_factory=dict)
    """Why an upload of this round was not aggregated, by its client."""
    resumed: bool = False
    """This round was committed by an earlier process, and is only reported again."""

    @property
    def sent(self) -> Params:
        """The server's state without what it holds back."""
        return tree.without(HELD, self.server)


def rounds(
    method: Method,
    pool: Pool,
    *,
    keys: Keys,
    participation: float = 1.0,
    participants: int | None = None,
    min_clients: int = 1,
    overcommit: int = 0,
    deadline_s: float | None = None,
    public: Records | None = None,
    store: Store | None = None,
) -> Iterator[Progress]:
    """Run the protocol: one `Progress` per round.

    With a store, a run continues after its last committed round: that round is yielded again (`resumed`), then the
    next ones. `participation` is the share of clients drawn for each round, uniformly without replacement,
    `participants` their number instead; `public` are the records that everybody has.

    An upload that `aggregate` cannot use is rejected: it is in the ledger, for it was sent, and the round goes on
    without it. Raises Failed where fewer than `min_clients` of a round's uploads are left.

    With an `overcommit` so many more are drawn, and a round is closed when the number of uploads that would else be
    drawn has come; with `deadline_s` after so many seconds at the latest. Who has not sent by then is late: not
    aggregated, but in the ledger like everybody who was asked, for the upload may be on its way.
    """
    if not 0 < participation <= 1:
        raise ValueError(f"participation must be in (0, 1], got {participation}")
    count = participants or max(1, round(participation * len(pool.clients)))
    closing = None
    if overcommit or deadline_s is not None:
        closing = Closing(enough=count, seconds=math.inf if deadline_s is None else deadline_s)
    first, server, ledger = 0, {}, Ledger()
    if store and (last := store.last_commit()):
        number, record = last
        server, ledger, first = store.load_server(number), Ledger.from_json(record["ledger"]), number + 1
        rejected = {int(client): why for client, why in record["rejected"].items()}
        yield Progress(number, server, ledger, record["metrics"], rejected, resumed=True)
    else:
        server = method.init_server(public, seeding.generator(keys.seed, "server", "init"))
    for number in range(first, method.rounds):
        drawn = _participants(pool.clients, count + overcommit, keys.seed, number)
        ids = drawn if number < method.participating_rounds else []
        progress = _round(
            method, pool, server, ledger, number, keys=keys, ids=ids, min_clients=min_clients, closing=closing
        )
        server, ledger = progress.server, progress.ledger
        if store:
            store.save_server(number, server)
            record = {"ledger": ledger.to_json(), "metrics": progress.metrics, "rejected": dict(progress.rejected)}
            store.commit(number, record)
        yield progress


def _round(
    method: Method,
    pool: Pool,
    server: Params,
    ledger: Ledger,
    number: int,
    *,
    keys: Keys,
    ids: Sequence[int],
    min_clients: int,
    closing: Closing | None,
) -> Progress:
    seen: list[tuple[int, Metrics]] = []
    rejected: dict[int, str] = {}
    late: list[int] = []
    sent = tree.without(HELD, server)

    def stream() -> Iterator[Upload]:
        nonlocal ledger
        for came in pool.run(ids, sent, number) if closing is None else pool.race(ids, sent, number, closing):
            if isinstance(came, Late):
                late.append(came.client)
                ledger = ledger.with_upload(number, came.client, _foretold(method, came, number), 0)
                continue
            upload, metrics = came
            upload = replace(upload, release=accountable(upload.release))
            ledger = ledger.with_upload(number, upload.client, upload.release.event, upload.release.nbytes)
            if why := _objection(method, server, upload, number):
                rejected[upload.client] = why
                continue
            seen.append((upload.client, metrics))
            yield upload
        if ids and len(seen) < min_clients:  # before `aggregate` makes a model of too few
            raise Failed("the server", number, _too_few(len(seen), min_clients, rejected, len(late)))

    uploads = stream()
    path = ("server", "round", number)
    rng, noise = seeding.generator(keys.seed, *path), NoiseStream(keys.secret, (keys.digest, *path))
    try:
        after, metrics, events = method.aggregate(server, uploads, Round(number, rng, noise, len(pool.clients)))
    except Diverged as e:
        raise Failed("the server", number, str(e)) from None
    for _ in uploads:  # what the method left unread was sent all the same
        pass
    left_out = {**_counted("rejected", rejected, len(ids)), **_counted("late", late, len(ids))}
    metrics = {**_client_metrics(seen), **left_out, **metrics}
    return Progress(number, after, ledger.with_published(number, events), metrics, rejected)


def _objection(method: Method, server: Params, upload: Upload, number: int) -> str | None:
    """Why an upload may not reach `aggregate`, in words; None: it may."""
    if upload.release.event == UNACCOUNTED:
        return "it sent what is no release of local trust"
    if not (isinstance(upload.examples, int) and upload.examples >= 0):
        return f"its number of records is {upload.examples}"
    if not tree.is_finite(upload.release.value):
        return "it is not finite"
    return method.objection(server, upload, number)


def _foretold(method: Method, late: Late, number: int) -> Event:
    """What a late client is charged, whose upload nobody has seen."""
    return method.foretold(late.examples, number) if isinstance(method, Foretelling) else UNSEEN


def _too_few(good: int, wanted: int, rejected: Mapping[int, str], late: int) -> str:
    first = "; ".join(f"client {client}: {why}" for client, why in list(rejected.items())[:NAMED])
    more = f"; and {len(rejected) - NAMED} more" if len(rejected) > NAMED else ""
    of = f"{good} of {good + len(rejected) + late} uploads can be used, fewer than min_clients = {wanted}"
    why = [f"{first}{more}"] * bool(rejected) + [f"{late} came late"] * bool(late)
    return f"{of} ({'; '.join(why)})" if why else of


def _counted(what: str, clients: Collection[int], participants: int) -> Metrics:
    """How many were rejected or late, where any was, and each of them where participants are few."""
    if not clients:
        return {}
    each = {f"client/{i}/{what}": 1.0 for i in clients} if participants <= PER_CLIENT_METRICS else {}
    return {f"clients/{what}": float(len(clients)), **each}


def _participants(clients: Sequence[int], count: int, seed: int, number: int) -> list[int]:
    if count >= len(clients):
        return list(clients)
    rng = seeding.generator(seed, "participants", number)
    return sorted(clients[i] for i in torch.randperm(len(clients), generator=rng)[:count].tolist())


def _client_metrics(seen: Sequence[tuple[int, Metrics]]) -> Metrics:
    """The mean of each metric over the clients that have it, and each client's own where there are few."""
    values: dict[str, list[float]] = {}
    for _, metrics in seen:
        for k, v in metrics.items():
            values.setdefault(k, []).append(v)
    out = {k: sum(v) / len(v) for k, v in values.items()}
    if len(seen) <= PER_CLIENT_METRICS:
        out.update({f"client/{i}/{k}": v for i, metrics in seen for k, v in metrics.items()})
    return out
