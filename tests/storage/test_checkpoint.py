"""The checkpoint: whole files, commits last, and nothing that a crash left half done; damage is found and named."""

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
from raydiff.formats.json_files import parse_sealed
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP
from raydiff.models.samplers import Sampling
from raydiff.privacy.ledger import Ledger
from raydiff.privacy.release import Gaussian, NonPrivate, Nothing, Release, already_private, disclose, nothing
from raydiff.storage.atomic_files import LeaseLost, write_bytes, write_text
from raydiff.storage.checkpoint import INITIAL, Checkpoint
from raydiff.storage.checksums import dump_tensors, load_tensors
from raydiff.storage.local import LocalFolder
from raydiff.tree import Params

EVENT = Gaussian(1.5, "example", "replace_one", "local", declared=("labels",))
NAME = re.compile(r"(-[0-9a-f]{16})?\.safetensors$")
RECORD = {"ledger": Ledger().to_json()}


def state(value: float) -> Params:
    return {"x": torch.full((2, 3), value), "steps": torch.tensor(7), "empty": torch.zeros(0, dtype=torch.int64)}


def crash(*_: object) -> None:
    raise OSError("the power went out")


@pytest.fixture
def store(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "sweeps" / "s" / "trials" / "d")


def send(store: Checkpoint, client: int, number: int, release: Release) -> Release:
    """As a client does."""
    sent = store.save_release(client, number, release)
    store.note(number, [(client, release.event, release.nbytes)])
    return sent


def value_of(store: Checkpoint, client: int, *, before: int) -> float | None:
    loaded = store.load_client(client, before=before)
    return None if loaded is None else float(loaded["x"].flatten()[0])


def files(store: Checkpoint, folder: str) -> list[str]:
    return [NAME.sub("", name) for name in LocalFolder(store.root).list_names(folder)]


def state_file(store: Checkpoint, name: str) -> Path:
    """The file of a client's state, whose name has a checksum too; another file as it is named."""
    stem, _, end = name.rpartition(".")
    return next(store.root.glob(f"{stem}-*.{end}")) if "clients/" in name else store.root / name


# --- files


def test_a_model_that_was_read_samples_the_bits_of_the_one_that_was_trained(tmp_path: Path) -> None:
    """Its skip's bias, of 4 bytes, puts what follows it at addresses where products add in another order."""
    model = DDPM(network=MLP(width=64, skip=True), prediction="v", shape=(1, 8, 8), labels=(10,), timesteps=20)
    trained = {k: torch.randn(v.shape) / 10 for k, v in model.init(torch.Generator().manual_seed(0)).items()}
    write_bytes(tmp_path / "model.safetensors", dump_tensors(trained))
    flat = np.concatenate([[0.0], *(v.numpy().ravel() for v in trained.values())]).astype(np.float32)
    ends = np.cumsum([1, *(v.numel() for v in trained.values())])
    parts = zip(trained.items(), ends, ends[1:], strict=False)
    message = tree.tensors({k: flat[start:end].reshape(v.shape) for (k, v), start, end in parts})

    def sampled(params: Params, rng: torch.Generator) -> torch.Tensor:
        labels, x = torch.zeros(33, 1, dtype=torch.int64), torch.randn(33, 1, 8, 8, generator=rng)
        return Sampling().run(model, model.denoiser(params), x, labels=labels, start=20, bound=1.0, rng=rng)

    copies = (trained, load_tensors((tmp_path / "model.safetensors").read_bytes(), "model")[0], message)
    first, *others = (sampled(params, torch.Generator().manual_seed(1)) for params in copies)
    assert all(torch.equal(other, first) for other in others)


def test_tensors_come_back_bit_for_bit(tmp_path: Path) -> None:
    shared, odd = torch.randn(10), torch.tensor([float("nan"), float("inf"), -0.0])
    mixed = {"a": torch.randn(4, 3).t(), "b": shared[2:4], "c": shared, "odd": odd}
    for i, tensors in enumerate((mixed, state(1), {})):
        path = tmp_path / "deep" / f"{i}.safetensors"
        write_bytes(path, dump_tensors(tensors, note="words"))
        back, note = load_tensors(path.read_bytes(), path)
        assert (tree.digest(back), note) == (tree.digest(tensors), "words")


def test_a_crash_while_writing_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, text = tmp_path / "x.safetensors", tmp_path / "x.json"
    write_bytes(tensors, dump_tensors(state(1)))
    write_text(text, "old", durable=True)
    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(OSError, match="power"):
        write_bytes(tensors, dump_tensors(state(2)))
    with pytest.raises(OSError, match="power"):
        write_text(text, "new", durable=True)
    back, _ = load_tensors(tensors.read_bytes(), tensors)
    assert tree.digest(back) == tree.digest(state(1)) and text.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.json", "x.safetensors"]


def test_what_a_killed_writer_left_is_not_read(store: Checkpoint) -> None:
    store.save_client(3, 0, state(0))
    store.commit(0, RECORD)
    for name in ("commit-00001.json", "clients/00003-00001.safetensors", "releases/00003-00001.safetensors"):
        path = store.root / name
        path.parent.mkdir(exist_ok=True)
        path.with_name(f".{path.name}.0a1b2c3d").write_bytes(b"half")
    assert store.last_commit() == (0, RECORD) and store.sent_after(0) == []
    store.commit(1, RECORD)
    assert value_of(store, 3, before=2) == 0


# --- commits


def test_only_commits_make_a_round_count(store: Checkpoint) -> None:
    assert store.last_commit() is None
    for number in range(12):
        store.save_server(number, state(number))
        store.commit(number, {"metrics": {"loss": number / 3}})
    store.save_server(12, state(12))  # and then it crashed
    store.save_client(1, 12, state(12))
    again = Checkpoint(store.root)
    assert again.last_commit() == (11, {"metrics": {"loss": 11 / 3}})
    assert tree.digest(again.load_server(11)) == tree.digest(state(11)) and value_of(again, 1, before=13) is None


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_last_commit_that_is_missing_is_noticed(store: Checkpoint, lost: int) -> None:
    """And any other one."""
    for number in range(3):
        store.save_server(number, state(number))
        store.commit(number, RECORD)
    (store.root / f"commit-{lost:05d}.json").unlink()
    with pytest.raises(ValueError, match=rf" has lost commit {lost}: "):
        Checkpoint(store.root).ledger()


def test_a_commit_drops_what_no_resume_can_need(store: Checkpoint) -> None:
    sent = already_private(state(0), EVENT)
    for number in range(4):
        store.save_server(number, state(number))
        for client in (1, 2) if number < 2 else (1,):
            store.save_client(client, number, state(number))
            send(store, client, number, sent)
        send(store, 3, number, disclose(state(0), "weights"))
        if number == 1:
            store.commit(0, RECORD)
    store.commit(1, RECORD)
    store.commit(2, RECORD)
    assert files(store, "clients") == ["00001-00002", "00001-00003", "00002-00001"]
    assert {name[:11] for name in files(store, "releases")} >= {"00001-00003"} and len(files(store, "releases")) == 2
    assert [name for name in files(store, "") if "server" in name] == ["server-00002", "server-00003"]
    assert [value_of(store, client, before=3) for client in (1, 2)] == [2, 1]


POWERS = tuple(n for power in (10, 100, 1_000, 10_000, 100_000, 1_000_000) for n in (power - 1, power))


def test_around_every_power_of_ten_clients_and_rounds_are_themselves(store: Checkpoint) -> None:
    sent = already_private({"x": torch.ones(1)}, EVENT)
    for number in POWERS:
        store.save_server(number, {"x": torch.tensor([number])})
        store.save_client(number, number, {"x": torch.tensor([number])})
        send(store, number, number, sent)
        send(store, 2, number, disclose({"x": torch.ones(1)}, "weights"))
    both = [(number, client) for number in POWERS for client in (2, number)]
    assert [(number, client) for number, client, _, _ in store.sent_after(INITIAL)] == both
    for i, number in enumerate(POWERS):
        store.commit(number, {"number": number})
        assert store.last_commit() == (number, {"number": number})
        assert [(later, client) for later, client, _, _ in store.sent_after(INITIAL)] == both[2 * i + 2 :]
        assert int(store.load_server(number)["x"]) == number == value_of(store, number, before=number + 1)
        assert len(list(store.root.glob("server-*"))) == len(POWERS) - i
    assert [value_of(store, client, before=POWERS[-1] + 1) for client in POWERS] == list(POWERS)


def test_a_commit_that_crashes_keeps_the_state_before_it(store: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save_server(0, state(0))
    store.commit(0, RECORD)
    store.save_server(1, state(1))
    monkeypatch.setattr(os, "link", crash)
    with pytest.raises(OSError, match="power"):
        store.commit(1, RECORD)
    assert store.last_commit() == (0, RECORD) and tree.digest(store.load_server(0)) == tree.digest(state(0))


def test_a_client_s_state_is_its_latest_committed_one_whatever_was_asked_before(tmp_path: Path) -> None:
    """Against a dictionary, in random orders."""
    rng = random.Random(0)
    for case in range(8):
        store, pending, latest, number = Checkpoint(tmp_path / str(case)), dict[int, float](), dict[int, float](), 0
        for step in range(40):
            client = rng.randrange(3)
            match rng.choice(["save", "commit", "load", "load"]):
                case "save":
                    store.save_client(client, number, {"x": torch.tensor([float(step)])})
                    pending[client] = float(step)
                case "commit":
                    store.commit(number, RECORD)
                    latest, pending, number = {**latest, **pending}, {}, number + 1
                case "load":
                    assert value_of(store, client, before=number) == latest.get(client)


def test_a_process_that_lost_the_trial_changes_no_committed_state(store: Checkpoint) -> None:
    store.save_client(8, 0, state(0))
    store.commit(0, RECORD)
    late = Checkpoint(store.root)
    writes = (lambda: late.save_client(8, 0, state(1)), lambda: late.save_server(0, {}), lambda: late.commit(0, {}))
    for write in writes:
        with pytest.raises(LeaseLost, match=r"round 0 of .* is committed"):
            write()
    assert value_of(store, 8, before=1) == 0 and store.last_commit() == (0, RECORD)


def test_states_are_on_the_disk_before_a_commit_names_them(store: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []

    def fsync(opened: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{opened}")).name)

    monkeypatch.setattr(os, "fsync", fsync)
    store.save_client(7, 0, state(0))
    store.save_server(0, state(0))
    store.commit(0, RECORD)
    commit = next(i for i, name in enumerate(synced) if "commit-" in name)
    assert {"clients"} <= set(synced[:commit]) and any("00007-00000" in name for name in synced[:commit])
    assert any("server-" in name for name in synced[:commit])


# --- messages


def test_of_two_noised_releases_the_first_counts_and_comes_back_with_its_event(store: Checkpoint) -> None:
    for seed in (4, 5):
        sent = send(store, 2, 7, already_private(state(seed), EVENT))
        assert tree.digest(sent.value) == tree.digest(state(4))
    assert files(store, "releases") == ["00002-00007"]
    back, _, intact = store.load_sent(2, 7) or (nothing(), {}, False)
    assert intact and back.event == EVENT and tree.digest(back.value) == tree.digest(state(4))
    assert store.load_sent(2, 6) is None and store.load_sent(7, 2) is None


def test_of_what_can_be_repeated_for_free_only_the_event_is_kept(store: Checkpoint) -> None:
    send(store, 2, 7, disclose({"x": torch.ones(100)}, "weights"))
    send(store, 2, 7, disclose({"x": torch.ones(100)}, "weights"))  # sent twice, counted once
    send(store, 3, 7, nothing())
    assert store.load_sent(2, 7) is None and not list(store.root.rglob("*.safetensors"))
    assert store.sent_after(6) == [(7, 2, NonPrivate("weights"), 400)]


def test_no_flipped_bit_in_notes_hides_what_was_sent(store: Checkpoint) -> None:
    event = NonPrivate("weights")
    store.note(7, [(client, event, 400) for client in (2, 3)])
    (path,) = store.root.rglob("*.jsonl")
    whole, sent = path.read_bytes(), store.sent_after(6)
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        try:
            assert store.sent_after(6) == sent
        except ValueError as e:
            assert str(e).startswith(str(path))


def test_of_a_bare_and_a_noised_release_the_bare_one_counts(store: Checkpoint) -> None:
    bare, noised = disclose({"x": torch.ones(100)}, "weights"), already_private(state(4), EVENT)
    for order, number in (((bare, noised), 7), ((noised, bare), 8)):
        for release in order:
            send(store, 2, number, release)
    assert [sent[2] for sent in store.sent_after(6)] == [NonPrivate("weights")] * 2


# --- damage


@pytest.fixture
def whole(store: Checkpoint) -> Checkpoint:
    """Three rounds of client 7, and a release that was sent and never committed."""
    for number in range(3):
        store.save_server(number, state(number))
        store.save_client(7, number, state(number))
        store.commit(number, {"ledger": Ledger().with_uploads(number, [(7, EVENT, 3)]).to_json()})
    store.save_release(7, 3, already_private(state(4), EVENT))
    return Checkpoint(store.root)


READS: dict[str, Callable[[Checkpoint], object]] = {
    **{f"commit-{number:05d}.json": Checkpoint.ledger for number in range(3)},
    "server-00002.safetensors": lambda store: store.load_server(2),
    "clients/00007-00002.safetensors": lambda store: store.load_client(7, before=3),
    "releases/00007-00003.safetensors": lambda store: store.sent_after(2),
}


def test_every_flipped_bit_is_found_and_its_file_named(whole: Checkpoint) -> None:
    assert {state_file(whole, name) for name in READS} == {p for p in whole.root.rglob("*") if p.is_file()}
    for name, read in READS.items():
        read(whole)
        path = state_file(whole, name)
        data = path.read_bytes()
        for i in range(0, len(data), 3):
            path.write_bytes(data[:i] + bytes([data[i] ^ 1 << i % 8]) + data[i + 1 :])
            with pytest.raises(ValueError, match="is damaged: ") as error:
                read(Checkpoint(whole.root))
            assert str(error.value).startswith(str(path))
        path.write_bytes(data)


@pytest.mark.parametrize("name", [name for name in READS if not name.startswith("releases")])
@pytest.mark.parametrize("source", ["another trial", "another round"])
def test_another_whole_file_in_its_place_is_found(whole: Checkpoint, name: str, source: str) -> None:
    other = whole if source == "another round" else Checkpoint(whole.root.with_name("other"))
    if other is whole:
        other.save_server(3, state(9))
        other.save_client(7, 3, state(9))
    for number in range(3) if other is not whole else ():
        other.save_server(number, state(9))
        other.save_client(7, number, state(9))
        other.commit(number, RECORD)
    other.note(3, [])
    another = "commit-00001.json" if name == "commit-00000.json" else "commit-00000.json"
    of = another if "commit" in name else name.replace("2.", "3.")
    state_file(whole, name).write_bytes(state_file(other, of if other is whole else name).read_bytes())
    with pytest.raises(ValueError, match=r"is damaged: it is (a copy of|not the commit)"):
        READS[name](Checkpoint(whole.root))
        Checkpoint(whole.root).commit(3, RECORD)
        Checkpoint(whole.root).ledger()


@pytest.mark.parametrize("name", ["server-00002.safetensors", "clients/00007-00002.safetensors"])
def test_an_older_copy_of_a_committed_state_under_the_same_name_is_refused(whole: Checkpoint, name: str) -> None:
    """As of an earlier run whose folder was removed: trial, name and checksum are right."""
    before = Checkpoint(whole.root.parent / "earlier" / whole.root.name)
    for number in range(3):
        before.save_server(number, state(number + 9))
        before.save_client(7, number, state(number + 9))
    before.flush()
    state_file(whole, name).write_bytes(state_file(before, name).read_bytes())
    with pytest.raises(ValueError, match="is damaged: it is not the one that was committed"):
        READS[name](Checkpoint(whole.root))


def test_of_two_states_of_a_round_the_commit_names_the_latest(store: Checkpoint) -> None:
    """A retry may have other bits."""
    written: set[Path] = set()
    for at, value in enumerate((3, 1, 2)):
        retry = Checkpoint(store.root)
        retry.save_client(7, 0, state(value))
        retry.flush()
        (path,) = {*(store.root / "clients").iterdir()} - written
        os.utime(path, (at + 1, at + 1))
        written.add(path)
    store.commit(0, RECORD)
    assert value_of(Checkpoint(store.root), 7, before=1) == 2 and len(files(store, "clients")) == 1


@pytest.mark.parametrize("name", ["server-00002.safetensors", "clients/00007-00002.safetensors"])
def test_a_state_that_a_commit_tells_of_cannot_be_missing(whole: Checkpoint, name: str) -> None:
    """Also if its client sat the rounds since out."""
    if "clients" in name:
        for number in (3, 4):
            whole.commit(number, RECORD)
        assert value_of(whole, 7, before=5) == 2 and whole.load_client(8, before=5) is None
    path = state_file(whole, name)
    path.unlink()
    with pytest.raises(ValueError, match=f"{re.escape(str(path))} is gone"):
        Checkpoint(whole.root).load_client(7, before=5) if "clients" in name else whole.load_server(2)


def test_files_without_a_checksum_are_damaged(whole: Checkpoint) -> None:
    from safetensors.torch import save

    commit, server = whole.root / "commit-00002.json", whole.root / "server-00002.safetensors"
    for metadata in (None, {"note": ""}):
        server.write_bytes(save(state(0), metadata=metadata))
        with pytest.raises(ValueError, match=r"server-00002\.safetensors is damaged: its header has no checksum$"):
            whole.load_server(2)
    commit.write_text(json.dumps(parse_sealed(commit.read_bytes(), commit, of="d/commit-00002.json")))
    for read in (whole.last_commit, whole.ledger):
        with pytest.raises(ValueError, match=r"commit-00002\.json is damaged: it is not what was written$"):
            read()


def test_a_write_that_fails_in_the_background_is_raised_before_anything_is_sent(
    store: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalFolder, "put", crash)
    store.save_client(1, 0, state(0))
    with pytest.raises(OSError, match="power"):
        store.note(0, [(1, Nothing(), 0)])
