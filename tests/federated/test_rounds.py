"""The round loop: what is sent, in which order, what is recorded, and what a second run sends again."""

import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from raydiff import tree
from raydiff.data.datasets import Records
from raydiff.federated.client import Client, Failed, Keys, StateCache
from raydiff.federated.method import SERVER_ONLY, Deployed, LocalResult, Method, Metrics, Round, Upload
from raydiff.federated.rounds import LocalExecutor, Progress, run_rounds
from raydiff.federated.upload_spec import TensorSpec, UploadSpec
from raydiff.models.training import Diverged
from raydiff.privacy.filters import Budget
from raydiff.privacy.ledger import Ledger
from raydiff.privacy.release import Event, Gaussian, already_private, disclose
from raydiff.storage.atomic_files import LeaseLost
from raydiff.storage.checkpoint import INITIAL, Checkpoint
from raydiff.storage.local import LocalFolder
from raydiff.tree import Params

KEYS = Keys(0, b"0123456789abcdef", "digest")


def records_of(number: int, count: int = 3) -> Records:
    images = torch.full((count, 1, 2, 2), float(number))
    return Records(images, torch.zeros(count, 1, dtype=torch.long), torch.arange(count))


@dataclass(frozen=True)
class Walk(Method):
    """A client's state counts its rounds; it sends the count, noised. The server lists what it got."""

    rounds: int = 4
    participating_rounds: int = 4
    init_key: str | None = "walk"
    private: bool = True
    careless: bool = False
    """Training is not deterministic: each execution gives another value."""
    reads: int | None = None
    """How many uploads `aggregate` looks at."""
    fails: tuple[str, int, int] = ("", 0, 0)
    """(where, client, round) of a training that diverges."""
    seen: list[Any] = field(default_factory=list, compare=False)
    """What clients were shown: ("update" | "deploy", keys of the server's state, ...)."""

    init_parts: int = 1
    dies: int = -1
    """The piece of `init_client` in which the process is killed."""

    delta: ClassVar[float] = 1e-5
    accountant: ClassVar[str] = "exact"

    def init_server(self, public: Records | None, rng: torch.Generator) -> Params:
        return {"sum": torch.randn(1, generator=rng), "server_only/who": torch.zeros(0)}

    def init_client(self, state: Params, data: Records, public: Records | None, rnd: Round) -> Params:
        self.seen.append(("init", float(data.images[0, 0, 0, 0])))
        if self.fails[0] == "init" and self.fails[1] == int(data.images[0, 0, 0, 0]):
            raise Diverged(5, float("nan"))
        if rnd.number == self.dies:
            raise KeyboardInterrupt(15)  # as a handler of SIGTERM does
        drawn = torch.rand(1, generator=rnd.rng) + (0 if public is None else public.images.mean())
        return {"count": torch.zeros(1), "start": state.get("start", 0) + drawn}

    def local_update(self, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        client = int(data.images[0, 0, 0, 0])
        self.seen.append(("update", client, rnd.number, tuple(server), float(state["count"])))
        if self.fails == ("update", client, rnd.number):
            raise Diverged(17, float("inf"))
        assert rnd.noise is not None
        value = state["count"] + torch.rand(1, generator=rnd.rng) + rnd.noise.normal([0], (1,))[0] + server["sum"]
        if self.careless:
            value = value + float.fromhex("0x1p-40") * int.from_bytes(os.urandom(4), "little")
        message = {"value": value.float(), "client": torch.tensor([client])}
        event = Gaussian(1.0, "example", "replace_one", "local")
        release = already_private(message, event) if self.private else disclose(message, "it")
        return LocalResult({**state, "count": state["count"] + 1}, release, {"train/loss": float(client)})

    def upload_spec(self, server: Params, examples: int, round_number: int) -> UploadSpec:
        return UploadSpec({"value": TensorSpec((1,), torch.float32), "client": TensorSpec((1,), torch.int64)})

    def aggregate(self, server: Params, uploads: Iterable[Upload], rnd: Round) -> tuple[Params, Metrics, list[Event]]:
        if self.fails[0] == "server" and self.fails[2] == rnd.number:
            raise Diverged(3, float("nan"))
        who, total = [server["server_only/who"]], server["sum"]
        for upload in itertools.islice(uploads, self.reads):
            who.append(upload.release.value["client"].float())
            total = total + upload.release.value["value"]
        return {"sum": total, "server_only/who": torch.cat(who)}, {"server/sum": float(total)}, []

    def deploy(self, server: Params, state: Params | None = None) -> Deployed:
        assert state is not None
        self.seen.append(("deploy", tuple(server), float(state["count"])))

        def sample(labels: Tensor, rng: torch.Generator) -> Tensor:
            return torch.zeros(len(labels), 1, 2, 2)

        return Deployed({"only": sample})


def pool(method: Any, store: Checkpoint | None = None, *, clients: Iterable[int] = range(3)) -> LocalExecutor:
    return LocalExecutor(
        [Client(i, method, records_of(i), keys=KEYS, store=store) for i in clients],
        lambda split: lambda deployed, records, rng: (split, len(records), float(torch.rand((), generator=rng))),
    )


def run(method: Any, store: Checkpoint | None = None, **options: Any) -> list[Progress]:
    return list(run_rounds(method, pool(method, store), keys=KEYS, store=store, **options))


def take(method: Any, store: Checkpoint, count: int) -> list[Progress]:
    """The first `count` rounds; then the process is gone."""
    running = run_rounds(method, pool(method, store), keys=KEYS, store=store)
    done = list(itertools.islice(running, count))
    running.close()  # type: ignore[attr-defined]
    return done


def same(a: Progress, b: Progress) -> bool:
    return (a.number, tree.digest(a.server), a.ledger) == (b.number, tree.digest(b.server), b.ledger)


# --- the order of things ---


def test_each_round_folds_all_clients_in_the_order_of_their_numbers() -> None:
    method = Walk(rounds=2)
    shuffled = pool(method, clients=[4, 0, 12, 3])
    last = list(run_rounds(method, shuffled, keys=KEYS))[-1]
    assert last.server["server_only/who"].tolist() == [0, 3, 4, 12] * 2


def test_what_the_server_holds_never_reaches_a_client() -> None:
    method = Walk()
    clients = pool(method)
    for progress in run_rounds(method, clients, keys=KEYS):
        assert "server_only/who" in progress.server and list(progress.sent) == ["sum"]
        list(clients.evaluate(clients.clients, progress.sent, progress.number, "test"))
    shown = {s[3] if s[0] == "update" else s[1] for s in method.seen if s[0] != "init"}
    assert shown == {("sum",)}


def test_a_client_deploys_with_its_state_after_the_round() -> None:
    method = Walk()
    clients = pool(method)
    for progress in run_rounds(method, clients, keys=KEYS):
        list(clients.evaluate([1], progress.sent, progress.number, "validation"))
    assert [s[2] for s in method.seen if s[0] == "deploy"] == [1, 2, 3, 4]


def test_evaluation_is_keyed_by_client_and_repeats() -> None:
    clients = pool(Walk())
    first, again = (list(clients.evaluate([0, 2], {"sum": torch.zeros(1)}, 0, "test")) for _ in range(2))
    assert first == again and first[0][:2] == ("test", 3)
    assert first[0][2] != first[1][2]
    with pytest.raises(ValueError, match="made without instruments"):
        list(LocalExecutor([]).evaluate([], {}, 0, "test"))


# --- participation ---


@pytest.mark.parametrize("count", [1, 3, 10])
def test_so_many_clients_are_drawn_without_replacement(count: int) -> None:
    method = Walk(rounds=3, participating_rounds=3)
    last = list(run_rounds(method, pool(method, clients=range(10)), keys=KEYS, participants=count))[-1]
    each = last.server["server_only/who"].view(3, -1).tolist()
    assert all(ids == sorted(set(ids)) and len(ids) == count for ids in each)


def test_participants_vary_with_round_and_seed_and_reach_everybody() -> None:
    def drawn(seed: int) -> list[tuple[float, ...]]:
        method = Walk(rounds=30, participating_rounds=30)
        keys = replace(KEYS, seed=seed)
        last = list(run_rounds(method, pool(method, clients=range(10)), keys=keys, participants=3))[-1]
        return [tuple(ids) for ids in last.server["server_only/who"].view(30, 3).tolist()]

    first = drawn(0)
    assert first == drawn(0) != drawn(1)
    assert len(set(first)) > 15
    assert {i for ids in first for i in ids} == set(range(10))


# --- ledger and metrics ---


@pytest.mark.parametrize("reads", [None, 1, 0])
def test_all_that_was_sent_is_in_the_ledger_read_or_not(reads: int | None) -> None:
    progress = run(Walk(reads=reads))
    for p in progress:
        assert [(e.round, e.client) for e in p.ledger.entries] == [
            (n, c) for n in range(p.number + 1) for c in range(3)
        ]
        assert all(e.event == Gaussian(1.0, "example", "replace_one", "local") for e in p.ledger.entries)
        assert all(e.bytes == 4 + 8 for e in p.ledger.entries)
        assert p.metrics["train/loss"] == 1.0


def test_what_aggregate_publishes_is_in_the_ledger() -> None:
    central = Gaussian(2.0, "example", "replace_one", "central")

    class Publishes(Walk):
        def aggregate(self, server: Params, uploads: Any, rnd: Round) -> tuple[Params, Metrics, list[Event]]:
            return server, {}, [central]

    last = run(Publishes(rounds=2))[-1]
    assert [e.event for e in last.ledger.entries if e.client == -1] == [central] * 2
    assert len(last.ledger.server.entries) == 6


# --- failure ---


@pytest.mark.parametrize(
    ("fails", "says"),
    [
        (("update", 2, 1), "client 2, in round 1: the loss became inf at step 17"),
        (("init", 1, 0), "client 1, before round 0: the loss became nan at step 5"),
        (("server", 0, 3), "the server, in round 3: the loss became nan at step 3"),
    ],
)
def test_a_failure_names_who_and_when(fails: tuple[str, int, int], says: str) -> None:
    with pytest.raises(Failed) as failure:
        run(Walk(fails=fails))
    assert str(failure.value) == f"{says}: lower the learning rate"


def test_keys_do_not_print_their_secret() -> None:
    assert KEYS.secret.decode() not in repr(KEYS)


# --- write-ahead and resuming ---


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("done", [1, 3, 4])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, done: int, private: bool) -> None:
    method = Walk(private=private)
    whole = run(method)
    first = take(method, Checkpoint(tmp_path), done)
    rest = run(method, Checkpoint(tmp_path))
    assert [p.resumed for p in rest] == [True] + [False] * (4 - done)
    assert [p.number for p in rest] == list(range(done - 1, 4))
    assert rest[0].metrics == first[-1].metrics
    assert all(same(a, b) for a, b in zip(first + rest[1:], whole, strict=True))


@pytest.mark.parametrize("private", [True, False])
def test_beyond_what_may_be_in_memory_states_are_read_from_the_store_again(tmp_path: Path, private: bool) -> None:
    """Of three clients whose states are 8 bytes, and of two rounds each, the memory has room for one and a half."""
    method, store, cache = Walk(private=private), Checkpoint(tmp_path, tmp_path / "cache"), StateCache(24)
    clients = [Client(i, method, records_of(i), keys=KEYS, store=store, state_cache=cache) for i in range(3)]
    evicting, whole = run_rounds(method, LocalExecutor(clients), keys=KEYS, store=store), run(Walk(private=private))
    for one, other in zip(evicting, whole, strict=True):
        assert same(one, other) and one.metrics == other.metrics
        assert 0 < cache.bytes <= 24 and [len(cache.of(i)) for i in range(3)] == [0, 0, 2]
    assert [float(client.state(3)["count"]) for client in clients] == [4.0] * 3
    assert len([s for s in method.seen if s[0] == "init"]) == 3  # No first state was computed again.


def test_what_the_store_does_not_have_stays_in_memory() -> None:
    method, cache = Walk(), StateCache(0)
    clients = [Client(i, method, records_of(i), keys=KEYS, state_cache=cache) for i in range(3)]
    assert all(map(same, run_rounds(method, LocalExecutor(clients), keys=KEYS), run(Walk())))
    assert cache.bytes == 0 and [len(cache.of(i)) for i in range(3)] == [2] * 3


class Killed(Exception):
    """The process is gone."""


class Fragile(Checkpoint):
    """Goes down at a commit."""

    def commit(self, number: int, record: dict[str, Any]) -> None:
        if number == 2:
            raise Killed
        super().commit(number, record)


def killed_before_commit_2(method: Any, root: Path) -> list[Progress]:
    done = []
    with pytest.raises(Killed):
        for p in run_rounds(method, pool(method, Fragile(root)), keys=KEYS, store=Fragile(root)):
            done.append(p)
    return done


def test_a_round_without_its_commit_did_not_happen(tmp_path: Path) -> None:
    method = Walk()
    whole = run(method)
    assert [p.number for p in killed_before_commit_2(method, tmp_path)] == [0, 1]
    rest = run(method, Checkpoint(tmp_path))
    assert rest[0].resumed and [p.number for p in rest] == [1, 2, 3]
    assert all(same(a, b) for a, b in zip(rest, whole[1:], strict=True))


def uploads(method: Any, store: Checkpoint, number: int) -> list[Upload]:
    server = store.load_server(number - 1)
    return [upload for upload, _ in pool(method, store).run(range(3), tree.without(SERVER_ONLY, server), number)]


def test_a_replayed_round_resends_the_stored_bytes_even_if_training_is_not_deterministic(tmp_path: Path) -> None:
    method = Walk(careless=True)
    killed_before_commit_2(method, tmp_path)
    store = Checkpoint(tmp_path)
    sent = [(store.load_sent(i, 2) or (None,))[0] for i in range(3)]
    trained = len(method.seen)
    again = uploads(method, store, 2)
    assert len(method.seen) == trained  # not even trained again
    for upload, release in zip(again, sent, strict=True):
        assert release is not None
        assert tree.digest(upload.release.value) == tree.digest(release.value)
        assert (upload.release.event, upload.examples) == (release.event, 3)
    fresh = [upload for upload, _ in pool(method).run(range(3), {"sum": torch.zeros(1)}, 2)]
    assert tree.digest(fresh[0].release.value) != tree.digest(again[0].release.value)  # the test can fail


@pytest.mark.parametrize("left", [None, 0, 10])
def test_a_state_that_is_lost_before_its_round_counts_is_made_again_and_the_stored_bytes_are_sent(
    tmp_path: Path, left: int | None
) -> None:
    """As a loss of power may leave it: whole, cut, or not there, beside an upload that was brought to the disk."""
    whole = run(Walk())
    killed_before_commit_2(Walk(), tmp_path)
    (state,), sent = (tmp_path / "clients").glob("00001-00002-*"), (Checkpoint(tmp_path).load_sent(1, 2) or (None,))[0]
    if left is None:
        state.unlink()
    else:
        os.truncate(state, left)
    careless = uploads(Walk(careless=True), Checkpoint(tmp_path), 2)[1].release
    assert sent is not None and tree.digest(careless.value) == tree.digest(sent.value)
    assert all(same(a, b) for a, b in zip(run(Walk(), Checkpoint(tmp_path)), whole[1:], strict=True))


def everything_else(root: Path) -> Callable[[], list[Progress]]:
    """Another process that does all the rounds of the same trial."""
    return lambda: run(Walk(careless=True), Checkpoint(root))


@pytest.mark.parametrize("number", range(4))
def test_for_a_round_that_counts_nothing_is_drawn(tmp_path: Path, number: int) -> None:
    """The other's commit has taken away what was sent: drawn again, the same noise would be on another value."""
    method = Walk(careless=True)
    left_over = Client(1, method, records_of(1), keys=KEYS, store=Checkpoint(tmp_path))
    everything_else(tmp_path)()
    with pytest.raises(LeaseLost, match=f"^round {number} of "):
        left_over.run({"sum": torch.zeros(1)}, number)
    assert not method.seen


@pytest.mark.parametrize("before", [True, False])
def test_who_stores_while_another_commits_sends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """Between the look for a stored value and the storing of one's own, and between that and the look at the commit."""
    real = LocalFolder.put_if_absent

    def put(self: LocalFolder, name: str, data: bytes) -> bool:
        monkeypatch.setattr(LocalFolder, "put_if_absent", real)
        if before:
            everything_else(tmp_path)()
        stored = real(self, name, data)
        if not before:
            everything_else(tmp_path)()
        return stored

    monkeypatch.setattr(LocalFolder, "put_if_absent", put)
    with pytest.raises(LeaseLost):
        Client(1, Walk(careless=True), records_of(1), keys=KEYS, store=Checkpoint(tmp_path)).run(
            {"sum": torch.zeros(1)}, 0
        )


def test_of_two_drivers_of_one_trial_at_most_one_value_leaves_a_client(tmp_path: Path) -> None:
    """Each asks its own clients, which share a folder; they take turns in every order, round by round."""
    for order in ((0, *rest) for rest in itertools.product((0, 1), repeat=4)):  # Both are alike: the first begins.
        root, sent = tmp_path / "".join(map(str, order)), dict[tuple[int, int], set[str]]()

        class Noted(LocalExecutor):
            def run(self, ids: Any, server: Params, number: int, sent: Any = sent) -> Iterator[Any]:
                for upload, metrics in super().run(ids, server, number):
                    sent.setdefault((number, upload.client), set()).add(tree.digest(upload.release.value))
                    yield upload, metrics

        def driver(root: Path = root, of: Any = Noted) -> Iterator[Progress]:
            method = Walk(careless=True, rounds=2, participating_rounds=2)
            clients = [Client(i, method, records_of(i), keys=KEYS, store=Checkpoint(root)) for i in range(2)]
            return run_rounds(method, of(clients), keys=KEYS, store=Checkpoint(root))

        drivers = [driver(), driver()]
        for i in order:
            with suppress(LeaseLost):
                next(drivers[i], None)
        assert all(len(values) == 1 for values in sent.values()), order
        assert len(sent) >= 2


def test_a_process_whose_driver_lost_the_sweep_sends_and_commits_nothing(tmp_path: Path) -> None:
    def lost() -> None:
        raise LeaseLost("another driver runs it")

    first = run(Walk(rounds=1), Checkpoint(tmp_path))
    theirs = Checkpoint(tmp_path, guard=lost)
    client = Client(1, Walk(private=False), records_of(1), keys=KEYS, store=theirs)
    for act in (
        lambda: client.run(first[0].sent, 1),
        lambda: theirs.save_release(
            1, 1, already_private({"x": torch.ones(1)}, Gaussian(1.0, "example", "replace_one", "local"))
        ),
        lambda: theirs.save_server(1, {}),
        lambda: theirs.commit(1, {}),
    ):
        with pytest.raises(LeaseLost, match=r"^another driver runs it$"):
            act()
    assert Checkpoint(tmp_path).last_commit() is not None and not list(tmp_path.glob("*-00001*"))


def test_a_replayed_round_is_in_the_ledger_once(tmp_path: Path) -> None:
    method = Walk(careless=True)
    killed_before_commit_2(method, tmp_path)
    rest = run(method, Checkpoint(tmp_path))
    assert [(e.round, e.client) for e in rest[-1].ledger.entries] == [(n, c) for n in range(4) for c in range(3)]
    assert rest[1].metrics["upload/resent"] == 1.0 and "upload/resent" not in rest[2].metrics


def test_the_losses_of_a_replayed_round_are_of_all_clients(tmp_path: Path) -> None:
    """One had stored what it sends when the process was killed; the others train in the next one."""
    whole = run(Walk())[0].metrics
    Client(2, Walk(), records_of(2), keys=KEYS, store=Checkpoint(tmp_path)).run({"sum": torch.zeros(1)}, 0)
    progress = run(Walk(), Checkpoint(tmp_path))[0]
    replayed = progress.metrics
    assert progress.client_metrics[2]["upload/resent"] == 1.0 and "upload/resent" not in progress.client_metrics[1]
    losses = {k: v for k, v in whole.items() if k.endswith("train/loss")}
    assert losses["train/loss"] == 1.0 and losses.items() <= replayed.items()


def test_after_a_replay_a_client_goes_on_from_the_state_of_that_round(tmp_path: Path) -> None:
    """Also if its state of the round before was looked at first, for the validation of the resumed round."""
    method = Walk()
    killed_before_commit_2(method, tmp_path)
    method.seen.clear()
    clients = pool(method, Checkpoint(tmp_path))
    for progress in run_rounds(method, clients, keys=KEYS, store=Checkpoint(tmp_path)):
        list(clients.evaluate(clients.clients, progress.sent, progress.number, "validation"))
    assert [s[2] for s in method.seen if s[0] == "deploy"] == [2] * 3 + [3] * 3 + [4] * 3
    assert [s[4] for s in method.seen if s[0] == "update"] == [3] * 3


def test_a_method_that_does_not_state_what_it_sends_costs_everything() -> None:
    event = Walk().upload_event(3, 0)
    assert Ledger().with_uploads(0, [(0, event, 4)]).epsilon(1e-5, "exact") == math.inf
    assert Budget().refuses([event])


# --- shared beginnings ---


def computed(
    method: Any, store: Checkpoint, *, keys: Keys = KEYS, records: Callable[[int], Records] = lambda i: records_of(i)
) -> int:
    """How many of two clients compute their first state."""
    method.seen.clear()
    clients = LocalExecutor([Client(i, method, records(i), keys=keys, store=store) for i in range(2)])
    list(clients.run([0, 1], {"sum": torch.zeros(1)}, 0))
    return sum(s[0] == "init" for s in method.seen)


def test_first_states_are_shared_between_trials_that_agree_in_what_they_depend_on(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    trials = (Checkpoint(tmp_path / str(n), cache) for n in itertools.count())
    assert computed(Walk(), next(trials)) == 2
    assert computed(Walk(rounds=9, private=False), next(trials), keys=replace(KEYS, digest="another")) == 0
    assert computed(Walk(init_key="another"), next(trials)) == 2
    assert computed(Walk(), next(trials), keys=replace(KEYS, seed=1)) == 2
    assert computed(Walk(), next(trials), records=lambda i: records_of(i, count=4)) == 2
    relabelled = lambda i: replace(records_of(i), labels=torch.ones(3, 1, dtype=torch.long))  # noqa: E731
    assert computed(Walk(), next(trials), records=relabelled) == 2
    assert computed(Walk(), next(trials), records=lambda i: records_of(9)) == 2  # twins draw from streams of their own


def test_a_client_knows_what_it_would_have_to_train(tmp_path: Path) -> None:
    def client(root: Path, method: Any = Walk()) -> Client:
        return Client(0, method, records_of(0), keys=KEYS, store=Checkpoint(root, tmp_path / "cache"))

    first = client(tmp_path / "a")
    assert not first.is_trained(0) and not (tmp_path / "cache").exists()
    first.state(INITIAL)
    assert first.is_trained(0) and client(tmp_path / "b").is_trained(0)  # at hand; in the cache
    assert not client(tmp_path / "b", Walk(init_key="another")).is_trained(0)
    assert client(tmp_path / "b", Walk(init_key=None)).is_trained(0)  # nothing worth keeping
    store = Checkpoint(tmp_path / "c")
    store.save_client(0, 2, {"n": torch.ones(1)})
    store.commit(2, {})
    alone = Client(0, Walk(), records_of(0), keys=KEYS, store=Checkpoint(tmp_path / "c"))
    assert alone.is_trained(2) and not alone.is_trained(1)


def test_a_first_state_in_parts_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    def first(method: Walk, store: Checkpoint | None) -> Params:
        client = Client(0, method, records_of(0), keys=KEYS, store=store)
        client.run({"sum": torch.zeros(1)}, 0)
        return client.state(0)

    whole = first(Walk(init_parts=4), None)
    store, method = Checkpoint(tmp_path / "a", tmp_path / "cache"), Walk(init_parts=4, dies=2)
    with pytest.raises(KeyboardInterrupt):
        first(method, store)
    again = Walk(init_parts=4)
    assert tree.digest(first(again, store)) == tree.digest(whole)
    assert [len([s for s in m.seen if s[0] == "init"]) for m in (method, again)] == [3, 2]
    assert len(list((tmp_path / "cache").iterdir())) == 1  # the parts are gone, the whole is kept
    assert whole["start"] != first(Walk(), None)["start"]
