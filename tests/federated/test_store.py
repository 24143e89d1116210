"""What survives: whole files, commits last, and nothing that a crash left half done."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from raydiff import tree
from raydiff.formats.json_files import unsealed
from raydiff.models.ddpm import DDPM, Sampling
from raydiff.models.networks import MLP
from raydiff.privacy.ledger import Ledger
from raydiff.privacy.release import Gaussian, NonPrivate, Release, already_private, disclose, nothing
from raydiff.storage import checkpoint
from raydiff.storage import checksums as seals
from raydiff.storage.atomic_files import read_tensors, write_tensors, write_text
from raydiff.storage.checkpoint import INITIAL, Store
from raydiff.tree import Params

EVENT = Gaussian(1.5, "example", "replace_one", "local", declared=("labels",))
EMPTY = Ledger().to_json()


def state(value: float) -> Params:
    return {
        "x": torch.full((2, 3), value),
        "steps": torch.tensor(7),
        "held/pool": torch.zeros(0, dtype=torch.int64),
    }


def crash(*_: object) -> None:
    raise OSError("the power went out")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "trial", tmp_path / "cache")


@pytest.mark.parametrize("travelled", ["file", "message"])
def test_a_model_that_was_read_samples_the_bits_of_the_one_that_was_trained(tmp_path: Path, travelled: str) -> None:
    """Its skip's bias, of 4 bytes, puts what follows it at addresses where products add in another order."""
    model = DDPM(network=MLP(width=64, skip=True), prediction="v", shape=(1, 8, 8), labels=(10,), timesteps=20)
    trained = {k: torch.randn(v.shape) / 10 for k, v in model.init(torch.Generator().manual_seed(0)).items()}
    if travelled == "file":
        write_tensors(tmp_path / "model.safetensors", trained)
        read = read_tensors(tmp_path / "model.safetensors")[0]
    else:
        flat = np.concatenate([[0.0], *(v.numpy().ravel() for v in trained.values())]).astype(np.float32)
        ends = np.cumsum([1, *(v.numel() for v in trained.values())])
        parts = zip(trained.items(), ends, ends[1:], strict=False)
        read = tree.tensors({k: flat[start:end].reshape(v.shape) for (k, v), start, end in parts})

    def sampled(params: Params, rng: torch.Generator) -> torch.Tensor:
        labels, x = torch.zeros(33, 1, dtype=torch.int64), torch.randn(33, 1, 8, 8, generator=rng)
        return Sampling().run(model, model.denoiser(params), x, labels=labels, start=20, bound=1.0, rng=rng)

    expected, found = (sampled(params, torch.Generator().manual_seed(1)) for params in (trained, read))
    assert torch.equal(found, expected)


def test_tensors_come_back_bit_for_bit(tmp_path: Path) -> None:
    strided = torch.randn(4, 3).t()
    shared = torch.randn(10)
    tensors = {
        "a": strided,
        "b": shared[2:4],
        "c": shared,
        "nan": torch.tensor([float("nan"), float("inf"), -0.0]),
    }
    write_tensors(tmp_path / "deep" / "x.safetensors", tensors, note="words")
    back, note = read_tensors(tmp_path / "deep" / "x.safetensors")
    assert tree.digest(back) == tree.digest(tensors)
    assert note == "words"


def test_no_tensors_come_back_as_none(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x.safetensors", {})
    assert read_tensors(tmp_path / "x.safetensors") == ({}, "")


@pytest.mark.parametrize("durable", [False, True])
def test_a_crash_while_writing_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    tensors, text = tmp_path / "x.safetensors", tmp_path / "x.json"
    write_tensors(tensors, state(1), durable=durable)
    write_text(text, "old", durable=durable)
    with monkeypatch.context() as m:
        m.setattr(Path, "replace", crash)
        with pytest.raises(OSError, match="power"):
            write_tensors(tensors, state(2), durable=durable)
        with pytest.raises(OSError, match="power"):
            write_text(text, "new", durable=durable)
    assert tree.digest(read_tensors(tensors)[0]) == tree.digest(state(1))
    assert text.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.json", "x.safetensors"]


def test_what_a_killed_writer_left_is_not_read(store: Store) -> None:
    store.save_server(0, state(0))
    store.save_client(3, 0, state(0))
    store.commit(0, {"ledger": EMPTY})
    (store.root / ".commit-00001.json.0a1b2c3d").write_text("{")
    (store.root / ".server-00001.safetensors.0a1b2c3d").write_bytes(b"half")
    (store.root / "clients" / ".00003-00001.safetensors.0a1b2c3d").write_bytes(b"half")
    (store.root / "releases").mkdir()
    (store.root / "releases" / ".00003-00001.safetensors.0a1b2c3d").write_bytes(b"half")
    assert store.last_commit() == (0, {"ledger": EMPTY})
    found = store.load_client(3, before=5)
    assert found is not None and tree.digest(found) == tree.digest(state(0))
    assert store.load_release(3, 1) is None
    store.commit(1, {})


def test_only_commits_make_a_round_count(store: Store) -> None:
    assert store.last_commit() is None
    for number in range(12):
        store.save_server(number, state(number))
        store.commit(number, {"metrics": {"loss": number / 3}})
    store.save_server(12, state(12))  # and then it crashed
    assert store.last_commit() == (11, {"metrics": {"loss": 11 / 3}})
    assert tree.digest(store.load_server(11)) == tree.digest(state(11))


def test_a_commit_that_is_missing_is_noticed(store: Store) -> None:
    for number in range(3):
        store.commit(number, {"ledger": EMPTY})
    (store.root / "commit-00001.json").unlink()
    with pytest.raises(ValueError, match=r" has lost commit 1: what it has spent is not known$"):
        store.ledger()


def test_a_commit_drops_older_server_states_only(store: Store) -> None:
    for number in range(3):
        store.save_server(number, state(number))
    store.commit(1, {})
    assert sorted(p.name for p in store.root.glob("server-*")) == [
        "server-00001.safetensors",
        "server-00002.safetensors",
    ]


def test_a_commit_drops_what_no_resume_can_need(store: Store) -> None:
    sent = already_private(state(0), Gaussian(1.0, "client", "replace_one", "local"))
    for client, numbers in ((1, (INITIAL, 0, 2, 3)), (2, (0, 1))):
        for number in numbers:
            store.save_client(client, number, state(number))
            store.save_release(client, max(number, 0), sent)
    store.commit(2, {})
    left = {kind: sorted(p.stem for p in (store.root / kind).iterdir()) for kind in ("clients", "releases")}
    assert left == {"clients": ["00001-00002", "00001-00003", "00002-00001"], "releases": ["00001-00003"]}
    found = store.load_client(2, before=3)
    assert found is not None and tree.digest(found) == tree.digest(state(1))


POWERS = tuple(n for power in (10, 100, 1_000, 10_000, 100_000, 1_000_000) for n in (power - 1, power))


def told(store: Store, client: int, number: int, release: Release) -> None:
    """As whoever sends it does."""
    store.save_release(client, number, release)
    store.note(number, [(client, release.event, release.nbytes)])


def test_around_every_power_of_ten_a_client_is_itself(store: Store) -> None:
    sent = already_private({"x": torch.ones(1)}, EVENT)
    for client in POWERS:
        for number in (3, 4):
            store.save_client(client, number, {"x": torch.tensor([client + number])})
            store.save_release(client, number, sent)
    assert [(number, client) for number, client, _, _ in store.sent_after(3)] == [(4, client) for client in POWERS]
    store.commit(3, {})
    for client in POWERS:
        found = [store.load_client(client, before=before) for before in (4, 5)]
        assert [int(state["x"]) for state in found if state is not None] == [client + 3, client + 4]
        assert store.load_release(client, 3) is None and store.load_release(client, 4) is not None
    store.commit(4, {})
    assert [int((store.load_client(client, before=5) or {})["x"]) for client in POWERS] == [c + 4 for c in POWERS]
    assert len(list((store.root / "clients").iterdir())) == len(POWERS)
    assert not list((store.root / "releases").iterdir())


def test_around_every_power_of_ten_a_round_is_itself(store: Store) -> None:
    sent = already_private({"x": torch.ones(1)}, EVENT)
    for number in POWERS:
        store.save_server(number, {"x": torch.tensor([number])})
        store.save_client(1, number, {"x": torch.tensor([number])})
        store.save_release(1, number, sent)
        told(store, 2, number, disclose({"x": torch.ones(1)}, "weights"))
    both = [(number, client) for number in POWERS for client in (1, 2)]
    assert [(number, client) for number, client, _, _ in store.sent_after(INITIAL)] == both
    for i, number in enumerate(POWERS):
        store.commit(number, {"number": number})
        assert store.last_commit() == (number, {"number": number})
        assert [(later, client) for later, client, _, _ in store.sent_after(INITIAL)] == both[2 * i + 2 :]
        assert int(store.load_server(number)["x"]) == number
        assert int((store.load_client(1, before=number + 1) or {})["x"]) == number
        left = [len(list(store.root.glob(of))) for of in ("server-*", "clients/*")]
        assert left == [len(POWERS) - i] * 2


def test_a_commit_that_crashes_keeps_the_state_before_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save_server(0, state(0))
    store.commit(0, {})
    store.save_server(1, state(1))
    with monkeypatch.context() as m:
        m.setattr(os, "link", crash)
        with pytest.raises(OSError, match="power"):
            store.commit(1, {})
    assert store.last_commit() == (0, {})
    assert tree.digest(store.load_server(0)) == tree.digest(state(0))


def test_a_client_state_is_the_latest_before_the_round(store: Store) -> None:
    assert store.load_client(1, before=9) is None
    for number in (INITIAL, 2, 10):
        store.save_client(1, number, state(number))
    store.save_client(11, 5, state(99))  # its name ends in a 1 too
    assert store.load_client(1, before=INITIAL) is None
    for before, number in {0: INITIAL, 2: INITIAL, 3: 2, 10: 2, 11: 10, 500: 10}.items():
        found = store.load_client(1, before=before)
        assert found is not None and tree.digest(found) == tree.digest(state(number)), before


def kept_after_three_rounds(root: Path, clients: int) -> Store:
    """Every third client has a state of each round; commits tell of the first two."""
    store = Store(root)
    for number in range(3):
        for client in range(0, clients, 3):
            write_tensors(store._numbered("clients", client, number), {"x": torch.tensor([client])})
        if number < 2:
            store.commit(number, {"ledger": EMPTY})
    return Store(root)


def test_folders_and_commits_are_looked_through_once_however_many_clients_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    glob, read_json = Path.glob, seals.read_json
    monkeypatch.setattr(Path, "glob", lambda path, pattern: looks.append(pattern) or glob(path, pattern))
    monkeypatch.setattr(seals, "read_json", lambda path: looks.append(path.name) or read_json(path))

    def looked(clients: int) -> list[str]:
        store = kept_after_three_rounds(tmp_path / str(clients), clients)
        looks.clear()
        for before in (2, 3, 3):
            assert [store.load_client(client, before=before) is None for client in range(clients)] == [
                client % 3 > 0 for client in range(clients)
            ]
        return sorted(looks)

    once_a_round = ["*.safetensors", "commit-*.json"] * 2
    assert looked(6) == looked(12) == sorted([*once_a_round, "commit-00000.json", "commit-00001.json"])


def test_whatever_was_asked_before_a_client_s_state_is_the_latest_there_is(tmp_path: Path) -> None:
    """Against a search through everything, in random orders, with states that came late."""
    rng = random.Random(0)
    for case in range(30):
        root = tmp_path / str(case)
        asked, told, number = Store(root), dict[int, set[int]](), 0
        for step in range(40):
            client, value = rng.randrange(3), float(step)
            match rng.choice(["save", "late", "commit", "load", "load"]):
                case "save":
                    asked.save_client(client, number, {"x": torch.tensor([value])})
                case "late" if number:
                    late = rng.randrange(number)
                    if client not in told[late]:
                        asked.save_client(client, late, {"x": torch.tensor([value])})
                case "commit":
                    Store(root).commit(number, {"ledger": EMPTY})
                    ends = [p.stem.split("-") for p in (root / "clients").glob("*.safetensors")]
                    made = [int(c) for c, n in ends if int(n) == number]
                    told[number] = set(made)
                    number += 1
                case "load":
                    files = {int(p.stem[6:]) for p in (root / "clients").glob(f"{client:05d}-*.safetensors")}
                    rounds = [n for n in files | {n for n in told if client in told[n]} if n < number]
                    found = asked.load_client(client, before=number)
                    assert (None if found is None else float(found["x"])) == (
                        read_value(root, client, max(rounds)) if rounds else None
                    )


def test_one_may_ask_for_an_earlier_round_than_before(whole: Store) -> None:
    for number in (0, 1):
        write_tensors(whole.root / "clients" / f"00007-{number:05d}.safetensors", state(number))
    store = Store(whole.root)
    write_tensors(whole.root / "clients" / "00008-00001.safetensors", state(9))
    for before, value in ((3, 2), (1, 0), (2, 1), (3, 2)):
        found = store.load_client(7, before=before)
        assert found is not None and tree.digest(found) == tree.digest(state(value))
        assert (store.load_client(8, before=before) is None) == (before < 2)


def test_a_state_is_held_to_its_last_commit_also_when_earlier_ones_were_read_since(whole: Store) -> None:
    store = Store(whole.root)
    assert store.load_client(7, before=3) is not None and store.load_client(8, before=3) is None
    write_tensors(whole.root / "clients" / "00007-00002.safetensors", state(9))
    with pytest.raises(ValueError, match=r"00007-00002\.safetensors is damaged: it is not the state "):
        store.load_client(7, before=3)


def read_value(root: Path, client: int, number: int) -> float:
    return float(read_tensors(root / "clients" / f"{client:05d}-{number:05d}.safetensors")[0]["x"])


def test_a_commit_that_was_damaged_when_it_was_read_is_so_for_the_next_client_too(whole: Store) -> None:
    path = whole.root / "commit-00002.json"
    path.write_text(path.read_text().replace('"states"', '"stetes"'))
    store = Store(whole.root)
    for client in (7, 8):
        with pytest.raises(ValueError, match=r"commit-00002\.json is damaged"):
            store.load_client(client, before=3)


def test_a_noised_release_comes_back_with_its_event(store: Store) -> None:
    sent = already_private(state(4), EVENT)
    store.save_release(2, 7, sent)
    back = store.load_release(2, 7)
    assert back is not None and back.event == EVENT and tree.digest(back.value) == tree.digest(sent.value)
    assert store.load_release(2, 6) is None and store.load_release(7, 2) is None


def test_of_two_noised_releases_the_first_counts(store: Store) -> None:
    first, second = (already_private(state(seed), EVENT) for seed in (4, 5))
    for release in (first, second):
        sent = store.save_release(2, 7, release)
        assert tree.digest(sent.value) == tree.digest(first.value)
    assert len(list(store.root.rglob("*"))) == 2  # the folder, the file


def test_of_what_can_be_repeated_for_free_only_the_event_is_kept(store: Store) -> None:
    told(store, 2, 7, disclose({"x": torch.ones(100)}, "weights"))
    told(store, 3, 7, nothing())
    assert store.load_release(2, 7) is None and store.load_release(3, 7) is None
    assert not list(store.root.rglob("*.safetensors"))
    assert store.sent_after(6) == [(7, 2, NonPrivate("weights"), 400)]


def test_what_was_sent_twice_counts_once_and_a_line_cut_short_was_not_sent(store: Store) -> None:
    for client in (2, 3, 3):
        told(store, client, 7, disclose({"x": torch.ones(100)}, f"weights {client}"))
    (path,) = store.root.rglob("*.jsonl")
    whole = path.read_bytes()
    for cut in range(1, len(whole.splitlines()[-1])):
        path.write_bytes(whole[:-cut])
        both = [(7, client, NonPrivate(f"weights {client}"), 400) for client in (2, 3)]  # the first line of client 3
        assert store.sent_after(6) == both
        told(store, 4, 7, disclose({"x": torch.ones(25)}, "more"))
        assert store.sent_after(6) == [*both, (7, 4, NonPrivate("more"), 100)]


def test_notes_damaged_by_more_than_a_failed_write_are_no_silence(store: Store) -> None:
    told(store, 2, 7, disclose({"x": torch.ones(100)}, "weights"))
    (path,) = store.root.rglob("*.jsonl")
    path.write_bytes(b"\0" * path.stat().st_size)  # as a power loss may leave it
    with pytest.raises(ValueError, match="is damaged: what clients have sent is not known"):
        store.sent_after(6)


def test_no_flipped_bit_in_notes_hides_what_was_sent(store: Store) -> None:
    for client in (2, 3):
        told(store, client, 7, disclose({"x": torch.ones(100)}, "weights"))
    (path,) = store.root.rglob("*.jsonl")
    whole, sent = path.read_bytes(), store.sent_after(6)
    for at in range(len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            try:
                assert store.sent_after(6) == sent
            except ValueError as e:
                assert str(e).startswith(f"{path} is damaged: ")


def test_of_a_bare_and_a_noised_release_the_bare_one_counts(store: Store) -> None:
    bare, noised = disclose({"x": torch.ones(100)}, "weights"), already_private(state(4), EVENT)
    for order, number in (((bare, noised), 7), ((noised, bare), 8)):
        for release in order:
            told(store, 2, number, release)
    assert [sent[2] for sent in store.sent_after(6)] == [NonPrivate("weights")] * 2


def test_a_commit_drops_the_notes_of_its_rounds(store: Store) -> None:
    for number in (6, 7, 8):
        told(store, 2, number, disclose({"x": torch.ones(100)}, "weights"))
    store.commit(7, {})
    assert [path.name[:5] for path in store.root.rglob("*.jsonl")] == ["00008"]


def test_what_was_sent_after_a_round_is_in_the_order_of_rounds_and_clients(store: Store) -> None:
    sent = already_private({"x": torch.ones(5)}, EVENT)
    for client, number in ((10, 2), (9, 2), (0, 11), (1, 1)):
        store.save_release(client, number, sent)
    after = [(2, 9, EVENT, 20), (2, 10, EVENT, 20), (11, 0, EVENT, 20)]
    assert store.sent_after(1) == after
    assert store.sent_after(INITIAL) == [(1, 1, EVENT, 20), *after]
    assert store.sent_after(11) == []


# --- damage ---


@pytest.fixture
def whole(store: Store) -> Store:
    """Three rounds of client 7, with a release that was sent and never committed."""
    for number in range(3):
        store.save_server(number, state(number))
        store.save_client(7, number, state(number))
        store.commit(number, {"ledger": Ledger().with_upload(number, 7, EVENT, 3).to_json()})
    store.save_release(7, 3, already_private(state(4), EVENT))
    return store


def read_everything(root: Path) -> None:
    """As a resume does: the commits, the states, and what was sent."""
    store = Store(root)
    number, _ = store.last_commit() or (INITIAL, {})
    assert (number, len(store.ledger().entries), len(store.sent_after(number))) == (2, 3, 1)
    found = store.load_server(number), store.load_client(7, before=number + 1), store.load_release(7, number + 1)
    assert all(found)


def put(path: Path, at: int, byte: int) -> None:
    """Change a file where it is."""
    with path.open("r+b") as f:
        f.seek(at)
        f.write(bytes([byte]))


def test_every_flipped_bit_is_found_and_its_file_named(whole: Store) -> None:
    read_everything(whole.root)
    root = whole.root
    reads: dict[str, Callable[[Store], object]] = {
        **{f"commit-{number:05d}.json": Store.ledger for number in range(3)},
        "server-00002.safetensors": lambda store: store.load_server(2),
        "clients/00007-00002.safetensors": lambda store: store.load_client(7, before=3),
        "releases/00007-00003.safetensors": lambda store: store.sent_after(2),
    }
    assert set(reads) == {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    for name, read in reads.items():
        path = root / name
        for i, byte in enumerate(path.read_bytes()):
            put(path, i, byte ^ 1 << i % 8)
            with pytest.raises(ValueError, match="is damaged: ") as error:
                read(Store(root))
            assert str(error.value).startswith(str(path))
            put(path, i, byte)


@pytest.mark.parametrize("name", ["server-00002.safetensors", "clients/00007-00002.safetensors"])
@pytest.mark.parametrize("also", [(), ("clients/00007-00001.safetensors",)], ids=["", "older"])
def test_a_state_that_a_commit_tells_of_cannot_be_missing(whole: Store, name: str, also: tuple[str, ...]) -> None:
    for older in also:
        write_tensors(whole.root / older, state(1))
    (whole.root / name).unlink()
    with pytest.raises(ValueError, match=f"{re.escape(str(whole.root / name))} is gone"):
        read_everything(whole.root)


def test_a_state_of_an_earlier_round_is_missed_though_its_client_sat_the_last_ones_out(whole: Store) -> None:
    for number in (3, 4):
        whole.commit(number, {"ledger": EMPTY})
    path = whole.root / "clients" / "00007-00002.safetensors"
    assert Store(whole.root).load_client(7, before=5) is not None and Store(whole.root).load_client(8, before=5) is None
    path.unlink()
    with pytest.raises(ValueError, match=f"{re.escape(str(path))} is gone"):
        Store(whole.root).load_client(7, before=5)


def test_another_whole_file_in_a_state_s_place_is_found(whole: Store) -> None:
    for path in (whole.root / "server-00002.safetensors", whole.root / "clients" / "00007-00002.safetensors"):
        good = path.read_bytes()
        write_tensors(path, state(9))
        with pytest.raises(ValueError, match=f"{re.escape(str(path))} is damaged: it is not the state "):
            read_everything(whole.root)
        path.write_bytes(good)


def test_another_whole_commit_in_a_commit_s_place_is_found(whole: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "other")
    other.commit(0, {"ledger": EMPTY})
    (whole.root / "commit-00000.json").write_bytes((other.root / "commit-00000.json").read_bytes())
    with pytest.raises(ValueError, match=r"commit-00000.json is damaged: it is not what round 1 followed"):
        whole.ledger()


def test_a_last_commit_that_is_missing_is_noticed(whole: Store) -> None:
    (whole.root / "commit-00002.json").unlink()
    with pytest.raises(ValueError, match=r" has lost commit 2: what it has spent is not known$"):
        whole.ledger()


def test_a_state_that_came_after_its_round_was_committed_is_believed(whole: Store) -> None:
    whole.save_client(8, 1, state(8))  # a late client's
    found = Store(whole.root).load_client(8, before=3)
    assert found is not None and tree.digest(found) == tree.digest(state(8))


def test_states_are_on_the_disk_before_a_commit_names_them(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(opened: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{opened}")).name)
        real(opened)

    monkeypatch.setattr(os, "fsync", fsync)
    store.save_client(7, 0, state(0))
    store.save_server(0, state(0))
    store.commit(0, {})
    places = [next(i for i, name in enumerate(synced) if of in name) for of in ("server-", "00007-00000", "commit-")]
    assert places == sorted(places) and synced.index("clients") < places[2]


def test_tensors_without_a_seal_are_damaged(store: Store) -> None:
    from safetensors.torch import save

    store.save_server(0, state(0))
    path = store.root / "server-00000.safetensors"
    for metadata in (None, {"note": ""}):
        path.write_bytes(save(state(0), metadata=metadata))
        with pytest.raises(ValueError, match=r"server-00000\.safetensors is damaged: its header has no seal$"):
            store.load_server(0)


def test_a_commit_without_a_digest_is_damaged(store: Store) -> None:
    store.commit(0, {"ledger": EMPTY})
    path = store.root / "commit-00000.json"
    path.write_text(json.dumps(unsealed(path.read_text())))
    for read in (store.last_commit, store.ledger, store.check):
        with pytest.raises(ValueError, match=r"commit-00000\.json is damaged: it has no digest of itself$"):
            read()


def test_cached_makes_once_for_all_trials_of_a_sweep(store: Store, tmp_path: Path) -> None:
    made = []

    def make() -> Params:
        made.append(1)
        return state(len(made))

    other = Store(tmp_path / "another trial", tmp_path / "cache")
    results = [store.cached("key", make), store.cached("key", make), other.cached("key", make)]
    assert len(made) == 1
    assert {tree.digest(r) for r in results} == {tree.digest(state(1))}
    store.cached("another key", make)
    assert len(made) == 2


def test_of_two_trials_that_make_at_once_the_first_to_write_counts(store: Store) -> None:
    def make() -> Params:
        store.cached("key", lambda: state(1))  # meanwhile, in another trial
        return state(2)

    assert tree.digest(store.cached("key", make)) == tree.digest(state(1))


def test_a_result_forgotten_while_it_is_read_is_made_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trials at once: one has ended and drops a part just as the other asks for it."""
    store.cached("part", lambda: state(1))
    real = checkpoint.read_tensors

    def vanishes(path: Path) -> object:
        store.forget(["part"])
        return real(path)

    monkeypatch.setattr(checkpoint, "read_tensors", vanishes)
    assert tree.digest(store.cached("part", lambda: state(2))) == tree.digest(state(2))
    assert store.load_cached("part") is None


def test_cached_without_a_cache_makes_each_time(tmp_path: Path) -> None:
    store, made = Store(tmp_path), []

    def make() -> Params:
        made.append(1)
        return state(0)

    store.cached("key", make)
    store.cached("key", make)
    assert len(made) == 2


def test_a_failed_make_is_not_cached(store: Store) -> None:
    with pytest.raises(OSError, match="power"):
        store.cached("key", crash)  # type: ignore[arg-type]
    assert tree.digest(store.cached("key", lambda: state(1))) == tree.digest(state(1))


def test_names_of_cached_results_are_keyed(tmp_path: Path) -> None:
    store, parts = Store(tmp_path, tmp_path / "cache"), ("what", 1, "digest of records")
    plain = f"client-{hashlib.sha256(repr(parts).encode()).hexdigest()[:32]}"
    keyed = store.cache_key("client", b"secret", parts)
    others = [store.cache_key("client", b"another", parts), store.cache_key("shadow", b"secret", parts)]
    assert len({plain, keyed, *others}) == 4
    assert keyed == store.cache_key("client", b"secret", parts)
