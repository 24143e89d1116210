"""A client: its data, its private state, and its part of a round. No Ray inside."""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import torch

from raydiff import lookup, process, seeding, tree
from raydiff.data.datasets import Records
from raydiff.federated.heartbeat import beating
from raydiff.federated.method import Deployed, Method, Metrics, Round, Upload, WithKinds, WithNewClients
from raydiff.models.compute import device_lost, out_of_memory
from raydiff.models.lockstep import run_in_lockstep
from raydiff.models.training import fit_personal
from raydiff.privacy.filters import covers
from raydiff.privacy.release import accountable
from raydiff.seeding import NoiseStream
from raydiff.storage.checkpoint import INITIAL, Checkpoint
from raydiff.storage.shared_results import result_key
from raydiff.tree import NotFinite, Params

CACHE_BYTES = 2**30  # of private states in a process's memory; more are read from the store again
NOTE_BYTES = 8 * 2**20  # of uploads that are noted together: they wait in memory until they are
NOTE_S = 1.0  # of work whose uploads are noted together: a note is a file, or a request to an object store
COHORT = 16  # clients that train in lock-step at most: more are hardly faster, and each has its activations in memory


class Failed(RuntimeError):
    """A participant could not do its part; names it, the round and the reason."""

    def __init__(self, who: str, number: int, reason: str) -> None:
        super().__init__(who, number, reason)
        self.who, self.number, self.reason = who, number, reason

    def __str__(self) -> str:
        when = "before round 0" if self.number == INITIAL else f"in round {self.number}"
        return f"{self.who}, {when}: {self.reason}"


@contextlib.contextmanager
def failing_as(who: str, number: int, method: Method) -> Iterator[None]:
    """Raise Failed for what is not finite, and for any error of outside code: it may exit, or cannot be pickled."""
    try:
        yield
    except BaseException as e:
        why = str(e) if isinstance(e, NotFinite) else lookup.plug_in_error(e, type(method).__module__)
        if not why or process.is_interrupt(e) or out_of_memory(e) or device_lost(e):
            raise
        raise Failed(who, number, why).with_traceback(e.__traceback__) from None


@dataclass(frozen=True)
class Keys:
    """What the random streams of one trial are keyed by."""

    seed: int  # the experiment's seed: initial weights, batches, sampling
    secret: bytes = field(repr=False)  # of the privacy noise; never logged
    digest: str  # of the trial's config: no two trials have the same privacy noise


Evaluate = Callable[[Deployed, Records, torch.Generator], Any]


class StateCache:
    """Private states in memory, by client. Above `limit` bytes the oldest that the store also has are evicted."""

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self.limit, self.bytes = limit, 0  # The bytes of states that the store also has.
        self._states: dict[int, dict[int, Params]] = {}
        self._stored: dict[int, int] = {}  # client -> bytes, in the order in which they came

    def of(self, client: int) -> Mapping[int, Params]:
        """Return the client's states, by the round after which they hold."""
        return self._states.get(client, {})

    def put(self, client: int, states: Mapping[int, Params], *, stored: bool) -> None:
        """Replace the client's states; `stored`: the store has them too."""
        self.drop(client)
        self._states[client] = dict(states)
        if stored:
            self._stored[client] = sum(map(tree.nbytes, states.values()))
            self.bytes += self._stored[client]
        while self.bytes > self.limit and (oldest := next(iter(self._stored))) != client:
            self.drop(oldest)

    def drop(self, client: int) -> None:
        """Remove the client's states."""
        self._states.pop(client, None)
        self.bytes -= self._stored.pop(client, 0)


@dataclass(eq=False, repr=False)
class Client:
    """One client. Without a `store` nothing survives this process."""

    number: int
    method: Method
    data: Records
    _: KW_ONLY
    keys: Keys
    public: Records | None = None
    store: Checkpoint | None = None
    unseen: bool = False  # it takes part in no round, and fits the shared model afterwards
    vectorize: bool = False  # it trains in lock-step with others
    instruments: bool = True  # the metrics of `local_update` leave the client
    strict: bool = False  # it sends nothing that reveals more than its method declared beforehand (`Budget`)
    state_cache: StateCache = field(default_factory=StateCache)  # of all clients of the process

    def run(self, server: Params, number: int) -> tuple[Upload, Metrics]:
        """Run this client's part of a round. If the round is run again, a noised upload is resent, not drawn again.
        Raises Failed if the training diverges or the upload reveals more than was charged to a budget, and LeaseLost if
        the round is committed already."""
        if self.store:
            self.store.check_open(number)
        if self.store and (stored := self.store.load_sent(self.number, number)):
            release, metrics, intact = stored
            self.state_cache.drop(self.number)  # The store has this round's state; the one in memory may be older.
            if intact:  # Else the state is computed again, and the stored upload is sent.
                return Upload(self.number, len(self.data), release), {**metrics, "upload/resent": 1.0}
        state = self._state_before(number)
        rng = seeding.generator(self.keys.seed, "client", self.number, "round", number)
        rnd = Round(number, rng, self._noise(number))
        with failing_as(f"client {self.number}", number, self.method):
            result = self.method.local_update(server, state, self.data, rnd)
        if result.state is not state:
            self._save(number, result.state)
        release, metrics = accountable(result.release), result.metrics if self.instruments else {}
        if self.strict and not covers(self.method.upload_event(len(self.data), number), release.event):
            raise Failed(f"client {self.number}", number, "its upload reveals more than was charged to the budget")
        if self.store:
            release = self.store.save_release(self.number, number, release, metrics)
        return Upload(self.number, len(self.data), release), metrics

    def deploy(self, server: Params, number: int) -> Deployed:
        """Return the personalised model after round `number`."""
        return self.method.deploy(server, self.personalized(server, number))

    def personalized(self, server: Params, number: int) -> Params:
        """Return the personalised state after round `number`, which `deploy` takes; an unseen client's is trained."""
        if self.unseen and isinstance(self.method, WithNewClients):
            return self._joined(self.method, server)
        rng = seeding.generator(self.keys.seed, "client", self.number, "deploy", number)
        return self.method.personalize(server, self.state(number), self.data, rng)

    def state(self, number: int) -> Params:
        """Return the private state after round `number`; trained (again) unless `is_trained`."""
        return self._state_before(number + 1)

    def is_trained(self, number: int) -> bool:
        """Whether the state after round `number` is in memory or in the store, so that no training is needed."""
        if any(n <= number for n in self.state_cache.of(self.number)) or self.method.init_key is None:
            return True
        if self.store is None:
            return False
        return self.store.load_client(self.number, before=number + 1) is not None or self.store.results.has(self._key())

    def evaluate(self, server: Params, number: int, evaluate: Evaluate) -> Any:
        """Return `evaluate(deployed, records, rng)`: the experimenter's instrument, outside the protocol."""
        rng = seeding.generator(self.keys.seed, "client", self.number, "evaluate")
        with failing_as(f"client {self.number}", number, self.method):
            deployed = self.deploy(server, number)
            if deployed.uploads is not None:  # Round 0's noise gives the very bits that the client sent then.
                sent = deployed.uploads.make(self.data, self._noise(0))
                deployed = replace(deployed, uploads=replace(deployed.uploads, sent=sent))
            return evaluate(deployed, self.data, rng)

    def _noise(self, number: int) -> NoiseStream:
        """The noise of this client's upload in a round."""
        return NoiseStream(self.keys.secret, (self.keys.digest, "client", self.number, "round", number))

    def _joined(self, method: WithNewClients, server: Params) -> Params:
        """The personal part of the server's model, trained on this client's records."""
        rng = seeding.generator(self.keys.seed, "client", self.number, "join")
        personal, fixed = method.join(server, rng)
        records, kinds = method.kinds(self.data, rng) if isinstance(method, WithKinds) else (self.data, {})
        data, training = (records.images, records.labels), method.joining
        with failing_as(f"client {self.number}, which joins", self.method.rounds, self.method):
            personal, _, _ = fit_personal(method.trained_model, personal, fixed, data, training=training, rng=rng)
        return {**kinds, **personal}

    def _state_before(self, number: int) -> Params:
        states = self.state_cache.of(self.number)
        earlier = [n for n in states if n < number]
        if earlier:
            return states[max(earlier)]
        state = self.store.load_client(self.number, before=number) if self.store else None
        stored = state is not None
        if state is None:
            state = self._initial()
            stored = self.store is not None and (self.method.init_key is None or self.store.cache is not None)
        self.state_cache.put(self.number, {**states, number - 1: state}, stored=stored)
        return state

    def _initial(self) -> Params:
        """`init_client`, shared between the trials whose `init_key`, data and seed agree."""
        parts = self.method.init_parts
        if not self.store or self.method.init_key is None:
            return functools.reduce(self._init_part, range(parts), {})
        results, key = self.store.results, self._key()

        def make() -> Params:
            stored = ((part, results.get(f"{key}-{part}")) for part in reversed(range(parts - 1)))
            first, state = next(((part + 1, state) for part, state in stored if state is not None), (0, {}))
            for part in range(first, parts - 1):
                state = results.cached(f"{key}-{part}", functools.partial(self._init_part, state, part))
                results.forget([f"{key}-{part - 1}"])
                if (whole := results.get(key)) is not None:  # Another trial was faster.
                    return whole
            return self._init_part(state, parts - 1)

        whole = results.cached(key, make)
        results.forget(f"{key}-{part}" for part in range(parts - 1))
        return whole

    def _key(self) -> str:
        """The key of `init_client`'s result, from all that it depends on."""
        digests = [tree.digest({"images": d.images, "labels": d.labels}) for d in (self.data, self.public) if d]
        bits = (torch.get_num_threads(), *(("vectorize",) if self.vectorize else ()))  # Both change the bits.
        parts = (self.method.init_key, self.keys.seed, self.number, *digests, *bits)
        return result_key("client", self.keys.secret, parts)

    def _init_part(self, state: Params, part: int) -> Params:
        rng = seeding.generator(self.keys.seed, "client", self.number, "init", *([part] if part else []))
        with failing_as(f"client {self.number}", INITIAL, self.method):
            return self.method.init_client(state, self.data, self.public, Round(part, rng))

    def _save(self, number: int, state: Params) -> None:
        if self.store:
            self.store.save_client(self.number, number, state)
        before = {n: s for n, s in self.state_cache.of(self.number).items() if n == number - 1}
        self.state_cache.put(self.number, {**before, number: state}, stored=self.store is not None)


def write_ahead(
    clients: Sequence[Client], number: int, results: Iterable[tuple[Upload, Metrics]], *, alone: bool = False
) -> Iterator[tuple[Upload, Metrics]]:
    """Yield these results, each written ahead in the store (`Checkpoint.note`): those of up to NOTE_S of work together,
    or each `alone` where the caller waits for it."""
    store = clients[0].store if clients else None
    for batch in _batched(results, 0.0 if store is None or alone else NOTE_S):
        if store:
            store.note(number, [(upload.client, upload.release.event, upload.release.nbytes) for upload, _ in batch])
        yield from batch


def _batched(results: Iterable[tuple[Upload, Metrics]], seconds: float) -> Iterator[list[tuple[Upload, Metrics]]]:
    batch, size, began = list[tuple[Upload, Metrics]](), 0, time.monotonic()
    for result in results:
        batch.append(result)
        size += result[0].release.nbytes
        if size >= NOTE_BYTES or time.monotonic() - began >= seconds:
            yield batch
            batch, size, began = [], 0, time.monotonic()
    if batch:
        yield batch


def run_clients(clients: Sequence[Client], server: Params, number: int) -> Iterator[tuple[Upload, Metrics]]:
    """Yield `Client.run` of each, in order; the caller must note the results before it sends them. If vectorized, up to
    COHORT train in lock-step, and the metric `cohort/size` is how many trained together."""
    results: Iterator[tuple[tuple[Upload, Metrics], list[int]]]
    began, vectorize = time.time(), any(client.vectorize for client in clients)
    size = COHORT if vectorize else 1
    cohorts = [clients[start : start + size] for start in range(0, len(clients), size)]
    for turn, cohort in enumerate(cohorts):
        names = [client.number for client in cohort]
        who = f"client {names[0]}" if len(names) == 1 else f"clients {names[0]} to {names[-1]}"
        folder, loss = cohort[0].store.root if cohort[0].store else None, all(c.instruments for c in cohort)
        with beating(folder, who, number, turn=turn, turns=len(cohorts), began=began, loss=loss):
            runs = [functools.partial(client.run, server, number) for client in cohort]
            results = run_in_lockstep(runs) if vectorize else ((run(), []) for run in runs)
            first = next(results)  # All the work of a cohort is done before its first result.
        for (upload, metrics), sizes in itertools.chain([first], results):
            yield upload, {**metrics, "cohort/size": sum(sizes) / len(sizes)} if sizes else metrics
