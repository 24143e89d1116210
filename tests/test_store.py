"""What survives: whole files, commits last, and nothing that a crash left half done."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from raydiff import store as store_module
from raydiff import tree
from raydiff.privacy.ledger import Ledger
from raydiff.privacy.release import Gaussian, NonPrivate, already_private, disclose, nothing
from raydiff.store import INITIAL, Store, read_tensors, write_tensors, write_text
from raydiff.tree import Params

EVENT = Gaussian(1.5, "example", "replace_one", "local", declared=("labels",))


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
    store.commit(0, {"ledger": "[]"})
    (store.root / ".commit-00001.json.0a1b2c3d").write_text("{")
    (store.root / ".server-00001.safetensors.0a1b2c3d").write_bytes(b"half")
    (store.root / "clients" / ".00003-00001.safetensors.0a1b2c3d").write_bytes(b"half")
    (store.root / "releases").mkdir()
    (store.root / "releases" / ".00003-00001.safetensors.0a1b2c3d").write_bytes(b"half")
    assert store.last_commit() == (0, {"ledger": "[]"})
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


def test_a_commit_with_another_round_s_entries_is_of_another_version(store: Store) -> None:
    event = Gaussian(1.0, "client", "replace_one", "local")
    whole = Ledger().with_upload(0, 7, event, 3)
    store.commit(0, {"ledger": whole.to_json()})
    assert store.ledger() == whole
    store.commit(1, {"ledger": whole.with_upload(1, 7, event, 3).to_json()})
    with pytest.raises(ValueError, match=r"was made by another version of raydiff: its commits have whole ledgers$"):
        store.ledger()


def test_a_commit_that_is_missing_is_noticed(store: Store) -> None:
    for number in range(3):
        store.commit(number, {"ledger": "[]"})
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


def test_a_commit_that_crashes_keeps_the_state_before_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save_server(0, state(0))
    store.commit(0, {})
    store.save_server(1, state(1))
    with monkeypatch.context() as m:
        m.setattr(Path, "replace", crash)
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
    store.save_release(2, 7, disclose({"x": torch.ones(100)}, "weights"))
    store.save_release(3, 7, nothing())
    assert store.load_release(2, 7) is None and store.load_release(3, 7) is None
    assert not list(store.root.rglob("*.safetensors"))
    assert store.sent_after(6) == [(7, 2, NonPrivate("weights"), 400)]


def test_what_was_sent_twice_counts_once_and_a_line_cut_short_was_not_sent(store: Store) -> None:
    for client in (2, 3, 3):
        store.save_release(client, 7, disclose({"x": torch.ones(100)}, f"weights {client}"))
    (path,) = store.root.rglob("*.jsonl")
    whole = path.read_bytes()
    for cut in range(1, len(whole.splitlines()[-1])):
        path.write_bytes(whole[:-cut])
        both = [(7, client, NonPrivate(f"weights {client}"), 400) for client in (2, 3)]  # the first line of client 3
        assert store.sent_after(6) == both
        store.save_release(4, 7, disclose({"x": torch.ones(25)}, "more"))
        assert store.sent_after(6) == [*both, (7, 4, NonPrivate("more"), 100)]


def test_notes_damaged_by_more_than_a_failed_write_are_no_silence(store: Store) -> None:
    store.save_release(2, 7, disclose({"x": torch.ones(100)}, "weights"))
    (path,) = store.root.rglob("*.jsonl")
    path.write_bytes(b"\0" * path.stat().st_size)  # as a power loss may leave it
    with pytest.raises(ValueError, match="is damaged: what clients have sent is not known"):
        store.sent_after(6)


def test_of_a_bare_and_a_noised_release_the_bare_one_counts(store: Store) -> None:
    bare, noised = disclose({"x": torch.ones(100)}, "weights"), already_private(state(4), EVENT)
    for order, number in (((bare, noised), 7), ((noised, bare), 8)):
        for release in order:
            store.save_release(2, number, release)
    assert [sent[2] for sent in store.sent_after(6)] == [NonPrivate("weights")] * 2


def test_a_commit_drops_the_notes_of_its_rounds(store: Store) -> None:
    for number in (6, 7, 8):
        store.save_release(2, number, disclose({"x": torch.ones(100)}, "weights"))
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
    real = store_module.read_tensors

    def vanishes(path: Path) -> object:
        store.forget(["part"])
        return real(path)

    monkeypatch.setattr(store_module, "read_tensors", vanishes)
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
