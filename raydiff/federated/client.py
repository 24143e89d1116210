"""A client: its data, its private state, and its part of a round. No Ray inside."""

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
NOTE_S = 1.0  # of work whose uploads are noted together: a note is a file, or a request to an object store
COHORT = 16  # clients that train in lock-step at most: more are hardly faster, and each has its activations in memory


class Failed(RuntimeError):
    """A participant could not do its part; names it, the round and the reason."""

    def __init__(self, who: str, round_number: int, reason: str) -> None:
        super().__init__(who, round_number, reason)
        self.who = who
        self.round_number = round_number
        self.reason = reason

    def __str__(self) -> str:
        when = "before round 0" if self.round_number == INITIAL else f"in round {self.round_number}"
        return f"{self.who}, {when}: {self.reason}"


@contextlib.contextmanager
def failing_as(who: str, round_number: int, method: Method) -> Iterator[None]:
    """Raise Failed for what is not finite, and for any error of outside code: it may exit, or cannot be pickled."""
    try:
        yield
    except BaseException as e:
        why = str(e) if isinstance(e, NotFinite) else lookup.plug_in_error(e, type(method).__module__)
        if not why or process.is_interrupt(e) or out_of_memory(e) or device_lost(e):
            raise
        raise Failed(who, round_number, why).with_traceback(e.__traceback__) from None


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
        # The bytes of states that the store also has.
        self.limit = limit
        self.bytes = 0
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

    client_id: int
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

    def run(self, server: Params, round_number: int) -> tuple[Upload, Metrics]:
        """Run this client's part of a round. If the round is run again, a noised upload is resent, not drawn again.

        Raises Failed if the training diverges or the upload reveals more than was charged to a budget, and LeaseLost if
        the round is committed already."""
        if self.store:
            self.store.check_open(round_number)
        if self.store and (stored := self.store.load_sent(self.client_id, round_number)):
            release, metrics, intact = stored
            self.state_cache.drop(self.client_id)  # The store has this round's state; the one in memory may be older.
            if intact:  # Else the state is computed again, and the stored upload is sent.
                return Upload(self.client_id, len(self.data), release), {**metrics, "upload/resent": 1.0}
        state = self._state_before(round_number)
        rng = seeding.generator(self.keys.seed, "client", self.client_id, "round", round_number)
        rnd = Round(round_number, rng, self._noise(round_number))
        with failing_as(f"client {self.client_id}", round_number, self.method):
            result = self.method.local_update(server, state, self.data, rnd)
        if result.state is not state:
            self._save(round_number, result.state)
        release = accountable(result.release)
        metrics = result.metrics if self.instruments else {}
        if self.strict and not covers(self.method.upload_event(len(self.data), round_number), release.event):
            raise Failed(
                f"client {self.client_id}", round_number, "its upload reveals more than was charged to the budget"
            )
        if self.store:
            release = self.store.save_release(self.client_id, round_number, release, metrics)
        return Upload(self.client_id, len(self.data), release), metrics

    def deploy(self, server: Params, round_number: int) -> Deployed:
        """Return the personalised model after that round."""
        return self.method.deploy(server, self.personalized(server, round_number))

    def personalized(self, server: Params, round_number: int) -> Params:
        """Return the personalised state after that round, which `deploy` takes; an unseen client's is trained."""
        if self.unseen and isinstance(self.method, WithNewClients):
            return self._joined(self.method, server)
        rng = seeding.generator(self.keys.seed, "client", self.client_id, "deploy", round_number)
        return self.method.personalize(server, self.state(round_number), self.data, rng)

    def state(self, round_number: int) -> Params:
        """Return the private state after that round; trained (again) unless `is_trained`."""
        return self._state_before(round_number + 1)

    def is_trained(self, round_number: int) -> bool:
        """Whether the state after that round is in memory or in the store, so that no training is needed."""
        if any(n <= round_number for n in self.state_cache.of(self.client_id)) or self.method.init_key is None:
            return True
        if self.store is None:
            return False
        return self.store.load_client(self.client_id, before=round_number + 1) is not None or self.store.results.has(
            self._key()
        )

    def evaluate(self, server: Params, round_number: int, evaluate: Evaluate) -> Any:
        """Return `evaluate(deployed, records, rng)`: the experimenter's instrument, outside the protocol."""
        rng = seeding.generator(self.keys.seed, "client", self.client_id, "evaluate")
        with failing_as(f"client {self.client_id}", round_number, self.method):
            deployed = self.deploy(server, round_number)
            if deployed.uploads is not None:  # Round 0's noise gives the very bits that the client sent then.
                sent = deployed.uploads.make(self.data, self._noise(0))
                deployed = replace(deployed, uploads=replace(deployed.uploads, sent=sent))
            return evaluate(deployed, self.data, rng)

    def _noise(self, round_number: int) -> NoiseStream:
        """The noise of this client's upload in a round."""
        return NoiseStream(self.keys.secret, (self.keys.digest, "client", self.client_id, "round", round_number))

    def _joined(self, method: WithNewClients, server: Params) -> Params:
        """The personal part of the server's model, trained on this client's records."""
        rng = seeding.generator(self.keys.seed, "client", self.client_id, "join")
        personal, fixed = method.join(server, rng)
        records, kinds = method.kinds(self.data, rng) if isinstance(method, WithKinds) else (self.data, {})
        data = (records.images, records.labels)
        training = method.joining
        with failing_as(f"client {self.client_id}, which joins", self.method.rounds, self.method):
            personal, _, _ = fit_personal(method.trained_model, personal, fixed, data, training=training, rng=rng)
        return {**kinds, **personal}

    def _state_before(self, round_number: int) -> Params:
        states = self.state_cache.of(self.client_id)
        earlier = [n for n in states if n < round_number]
        if earlier:
            return states[max(earlier)]
        state = self.store.load_client(self.client_id, before=round_number) if self.store else None
        stored = state is not None
        if state is None:
            state = self._initial()
            stored = self.store is not None
        self.state_cache.put(self.client_id, {**states, round_number - 1: state}, stored=stored)
        return state

    def _initial(self) -> Params:
        """`init_client`, shared between the trials whose `init_key`, data and seed agree."""
        parts = self.method.init_parts
        if not self.store or self.method.init_key is None:
            return functools.reduce(self._init_part, range(parts), {})
        results = self.store.results
        key = self._key()
        part_keys = [f"{key}-{part}" for part in range(parts - 1)]

        def make() -> Params:
            state: Params = {}
            for part, part_key in enumerate(part_keys):
                state = results.cached(part_key, functools.partial(self._init_part, state, part))
            return self._init_part(state, parts - 1)

        whole = results.cached(key, make)
        results.forget(part_keys)
        return whole

    def _key(self) -> str:
        """The key of `init_client`'s result, from all that it depends on."""
        digests = [tree.digest({"images": d.images, "labels": d.labels}) for d in (self.data, self.public) if d]
        bits = (torch.get_num_threads(), *(("vectorize",) if self.vectorize else ()))  # Both change the bits.
        parts = (self.method.init_key, self.keys.seed, self.client_id, *digests, *bits)
        return result_key("client", self.keys.secret, parts)

    def _init_part(self, state: Params, part: int) -> Params:
        rng = seeding.generator(self.keys.seed, "client", self.client_id, "init", *([part] if part else []))
        with failing_as(f"client {self.client_id}", INITIAL, self.method):
            return self.method.init_client(state, self.data, self.public, Round(part, rng))

    def _save(self, round_number: int, state: Params) -> None:
        if self.store:
            self.store.save_client(self.client_id, round_number, state)
        before = {n: s for n, s in self.state_cache.of(self.client_id).items() if n == round_number - 1}
        self.state_cache.put(self.client_id, {**before, round_number: state}, stored=self.store is not None)


def write_ahead(
    clients: Sequence[Client], round_number: int, results: Iterable[tuple[Upload, Metrics]], *, alone: bool = False
) -> Iterator[tuple[Upload, Metrics]]:
    """Yield these results, each written ahead in the store (`Checkpoint.note`).

    Those of up to NOTE_S of work are written together, or each `alone` where the caller waits for it.
    """
    store = clients[0].store if clients else None
    for batch in _batched(results, 0.0 if store is None or alone else NOTE_S):
        if store:
            store.note(
                round_number, [(upload.client, upload.release.event, upload.release.nbytes) for upload, _ in batch]
            )
        yield from batch


def _batched(results: Iterable[tuple[Upload, Metrics]], seconds: float) -> Iterator[list[tuple[Upload, Metrics]]]:
    batch: list[tuple[Upload, Metrics]] = []
    began = time.monotonic()
    for result in results:
        batch.append(result)
        if time.monotonic() - began >= seconds:
            yield batch
            batch = []
            began = time.monotonic()
    if batch:
        yield batch


def run_clients(clients: Sequence[Client], server: Params, round_number: int) -> Iterator[tuple[Upload, Metrics]]:
    """Yield `Client.run` of each, in order; the caller must note the results before it sends them.

    If vectorized, up to COHORT train in lock-step, and the metric `cohort/size` is how many trained together.
    """
    results: Iterator[tuple[tuple[Upload, Metrics], list[int]]]
    began = time.time()
    vectorize = any(client.vectorize for client in clients)
    size = COHORT if vectorize else 1
    cohorts = [clients[start : start + size] for start in range(0, len(clients), size)]
    for turn, cohort in enumerate(cohorts):
        names = [client.client_id for client in cohort]
        who = f"client {names[0]}" if len(names) == 1 else f"clients {names[0]} to {names[-1]}"
        folder = cohort[0].store.root if cohort[0].store else None
        loss = all(c.instruments for c in cohort)
        with beating(folder, who, round_number, turn=turn, turns=len(cohorts), began=began, loss=loss):
            runs = [functools.partial(client.run, server, round_number) for client in cohort]
            results = run_in_lockstep(runs) if vectorize else ((run(), []) for run in runs)
            first = next(results)  # All the work of a cohort is done before its first result.
        for (upload, metrics), sizes in itertools.chain([first], results):
            yield upload, {**metrics, "cohort/size": sum(sizes) / len(sizes)} if sizes else metrics
