"""Storage in a bucket: what is there is enough to go on elsewhere, whenever a process dies; nobody reads clients."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import platform
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from buckets import SECRET, begun, in_a_folder, objects, through, told

from raydiff import seeding, tree
from raydiff.experiment import trial
from raydiff.experiment.config import Experiment
from raydiff.experiment.ledgers import ledger_of
from raydiff.experiment.overrides import SECRET as SECRET_NAME
from raydiff.experiment.trial import Trial
from raydiff.formats.json_files import sealed
from raydiff.papers.spire.method import SPIRE
from raydiff.privacy.release import Gaussian, NonPrivate
from raydiff.report import load
from raydiff.results.finished import open_finished
from raydiff.results.spent import composed
from raydiff.storage import artifact_sync as readable
from raydiff.storage import staging as away
from raydiff.storage.atomic_files import LeaseLost, read_tensors, write_tensors
from raydiff.storage.bucket import Bucket, Lock
from raydiff.storage.checkpoint import Store
from raydiff.storage.remote import Remote, shared

EVENT = Gaussian(1.5, "client", "replace_one", "local")


def test_a_trial_in_a_bucket_gives_the_bits_of_one_in_a_folder(noised, machine, alone, tmp_path):
    assert told(through(begun(noised, machine()))) == alone
    assert told(through(begun(noised, machine()))) == alone  # and is found finished from elsewhere
    assert not [path for path in objects(tmp_path) if path.name == "secret" or path.name.startswith(".")]


READABLE = {"config.json", "metrics.jsonl", "outcome.json", "files.json", "ledger.json"}


class Died(BaseException):
    """What no code catches: the process is gone."""


def test_whenever_the_process_dies_another_machine_goes_on_to_the_same_bits(noised, machine, monkeypatch, tmp_path):
    """Killed before each object that it puts, which is after the one before it."""
    short = replace(noised, method=replace(noised.method, rounds=2))
    alone = told(through(in_a_folder(short, tmp_path)))
    calls = {name: getattr(Bucket, name) for name in ("put", "first", "remove")}
    left = 0

    def dying(name: str) -> Callable[..., object]:
        def call(self: Bucket, *given: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:
                raise Died
            return calls[name](self, *given)

        return call

    deaths = 0
    for at in range(1, 200):
        uri, left = machine() + f"-{at}", at
        with monkeypatch.context() as patch, contextlib.suppress(Died):
            for name in calls:
                patch.setattr(Bucket, name, dying(name))
            through(begun(short, uri))
        if left > 0:
            break
        deaths += 1
        machine()
        assert told(through(begun(short, uri))) == alone, f"died at {at}"
    assert deaths > 20


def test_what_was_noised_and_put_is_sent_again_and_nothing_else(noised, machine, monkeypatch):
    uri, first = machine(), []
    send = Remote.send

    def dies_once_it_is_there(self: Remote, number: int, messages: object) -> None:
        send(self, number, messages)
        first.extend(read_tensors(p)[0] for p in sorted((self.folder / "releases").glob("*.safetensors")))
        raise Died

    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(Remote, "send", dies_once_it_is_there)
        through(begun(noised, uri))
    machine()
    this = begun(replace(noised), uri)
    monkeypatch.setattr(SPIRE, "local_update", lambda *_: pytest.fail("it was trained again"))
    pool = trial.local_executor(this)
    server = this.experiment.method.init_server(None, torch.Generator().manual_seed(0))
    from raydiff.federated.rounds import drawn_for

    ids = drawn_for(pool.clients, 2, this.experiment.seed, 0)
    sent = list(pool.run(ids, server, 0))
    assert [metrics["upload/resent"] for _, metrics in sent] == [1.0, 1.0]
    for (upload, _), value in zip(sent, first, strict=True):
        assert all(torch.equal(upload.release.value[k], value[k]) for k in value)


def kept(uri: str, number: int, value: float, *, event: object = EVENT) -> tuple[Remote, tuple]:
    """A process on this machine that has noised something, and is about to send it."""
    away.prepare(uri)
    folder = away.root(uri) / "sweeps" / "lab" / "trials" / "d"
    trial.keep_secret(folder.parents[1], SECRET)
    remote = shared(folder)
    assert isinstance(remote, Remote)
    if isinstance(event, Gaussian):
        write_tensors(folder / "releases" / f"00007-{number:05d}.safetensors", {"x": torch.tensor([value])})
    return remote, (7, event, 4)


def test_of_two_processes_that_noised_one_client_s_upload_one_sends(machine):
    uri = machine()
    first, message = kept(uri, 3, 1.0)
    machine()
    second, _ = kept(uri, 3, 2.0)
    assert second._records(3) == []  # it has looked, and the other has not put it yet
    first.send(3, [message])
    with pytest.raises(LeaseLost, match="another process has sent what client 7 noised in round 3"):
        second.send(3, [message])
    first.send(3, [message])  # again is no other


def test_nothing_is_sent_in_a_round_that_counts(machine):
    uri = machine()
    remote, message = kept(uri, 0, 1.0)
    remote.commit(0, "{}", None)
    with pytest.raises(LeaseLost, match=r"round 0 of .* counts already"):
        remote.send(0, [message])


def test_a_round_counts_once(machine):
    uri = machine()
    kept(uri, 0, 1.0)[0].commit(0, "{}", None)
    machine()
    with pytest.raises(LeaseLost, match=r"round 0 of .* counts already"):
        kept(uri, 0, 1.0)[0].commit(0, "{}", None)


def test_of_what_is_not_noised_the_last_counts(machine):
    uri, event = machine(), NonPrivate("an update")
    first, message = kept(uri, 3, 1.0, event=event)
    write_tensors(first.folder / "clients" / "00007-00003.safetensors", {"x": torch.tensor([1.0])})
    first.send(3, [message])
    machine()
    second, _ = kept(uri, 3, 2.0, event=event)
    write_tensors(second.folder / "clients" / "00007-00003.safetensors", {"x": torch.tensor([2.0])})
    second.send(3, [message])
    first._log.clear()
    assert first.said(3, {}) == second.said(3, {})
    assert len(second._records(3)) == 2


def test_a_round_of_many_clients_puts_as_few_objects_as_one_of_few(noised, machine, monkeypatch):
    """States, uploads and messages are packed: else a round of a thousand clients would cost thousands of requests."""
    names: list[str] = []
    for how in ("put", "first"):
        put = getattr(Bucket, how)
        monkeypatch.setattr(Bucket, how, lambda self, name, data, put=put: names.append(name) or put(self, name, data))
    counts = []
    for clients in (3, 12):
        names.clear()
        through(begun(replace(noised, clients=clients, participants=clients - 1), machine()))
        counts.append(len(names))
    assert counts[0] == counts[1]


def test_who_reads_the_bucket_reads_no_client_and_no_secret(noised, machine, tmp_path):
    this = through(begun(noised, machine()))
    data = {path.name: path.read_bytes() for path in objects(tmp_path)}
    assert any(name.startswith("server-") for name in data) and any("pack" in str(p) for p in objects(tmp_path))
    for name, content in data.items():
        assert b"__metadata__" not in content, name  # every file of tensors begins with it
        assert name in READABLE or b"lient" not in content, name
        assert SECRET not in content and SECRET.hex().encode() not in content, name
    other = Lock(bytes(32), "lab")
    pack = next(p for p in objects(tmp_path) if p.parent.name == "packs")
    with pytest.raises(ValueError, match="is damaged, or encrypted under another noise secret"):
        other.opened(pack.read_bytes(), "x")
    assert this.outcome() is not None


def test_a_bucket_without_the_secret_says_what_is_missing(noised, machine, monkeypatch):
    uri = machine()
    through(begun(noised, uri))
    machine()
    away.prepare(uri)
    monkeypatch.delenv(SECRET_NAME, raising=False)
    sweep = away.root(uri) / "sweeps" / "lab"
    with pytest.raises(ValueError, match="RAYDIFF_NOISE_SECRET must be the noise secret of lab"):
        trial.begin(replace_sweep(noised, sweep))


def replace_sweep(experiment: Experiment, sweep: Path) -> Trial:
    """The trial as it was named by its secret, which this machine has not."""
    resolved = trial._named(trial.resolve(experiment), SECRET)
    (sweep / "trials" / resolved.digest).mkdir(parents=True, exist_ok=True)
    this = Trial(resolved, sweep)
    shared(this.folder).restore()
    return this


@pytest.mark.parametrize("text", ["{", "[]", '{"url": "s3://lab"}'])
def test_a_folder_that_does_not_name_its_bucket_is_named(tmp_path, text):
    (tmp_path / "bucket.json").write_text(text)
    with pytest.raises(ValueError, match=rf"^{tmp_path}/bucket.json does not name a bucket "):
        shared(tmp_path, 0)


def test_folders_of_processes_that_have_ended_are_removed(machine):
    uri = machine()
    processes = away.root(uri) / "processes" / platform.node()
    for name in ("dead", "alive"):
        (processes / name / "sweeps").mkdir(parents=True)
        (processes / f"{name}.lock").touch()
    with (processes / "alive.lock").open() as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        mine = away._own.__wrapped__(uri)
    assert sorted(path.name for path in processes.iterdir() if path.is_dir()) == sorted(["alive", mine.name])


@pytest.mark.parametrize(
    ("what", "how"),
    [
        ("commit-00001", "flipped"),
        ("commit-00001", "gone"),
        ("server-", "flipped"),
        ("server-", "gone"),
        ("packs/", "flipped"),
        ("packs/", "gone"),
        ("files.json", "flipped"),
        ("log/00002/00000", "flipped"),
    ],
)
def test_what_is_damaged_or_gone_is_named(noised, machine, tmp_path, monkeypatch, what, how):
    """After two rounds, and what was sent in the third."""
    uri = machine()
    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(Remote, "commit", dies_in_the_third(Remote.commit))
        through(begun(noised, uri))
    found = [p for p in objects(tmp_path) if what in str(p.relative_to(tmp_path))]
    assert found
    for path in found:
        content = bytearray(path.read_bytes())
        content[20::50] = [byte ^ 1 for byte in content[20::50]]
        path.unlink() if how == "gone" else path.write_bytes(content)
    machine()
    with pytest.raises(ValueError, match=r"^file:.*bucket/sweeps/lab/.*\b(is damaged|is gone|is lost)\b") as e:
        through(begun(noised, uri))
    assert "\n" not in str(e.value)


def died_in(number: int, last: int) -> None:
    if number == last:
        raise Died


def dies_in_the_third(commit: Callable[..., None]) -> Callable[..., None]:
    def dying(self: Remote, number: int, *given: object) -> None:
        if number == 2:
            raise Died
        commit(self, number, *given)

    return dying


def test_reading_it_elsewhere_needs_no_secret_but_for_what_clients_have(noised, machine, monkeypatch, command):
    uri = machine()
    this = through(begun(noised, uri))
    with monkeypatch.context() as patch, pytest.raises(Died):  # another, whose metrics lag behind its commits
        patch.setattr(Remote, "_drop", lambda self, number, *_: died_in(number, 1))
        through(begun(replace(noised, seed=1), uri))
    names = [path.name for path in (this.sweep / "trials").iterdir()]
    said = seeding.keyed_digest(SECRET, "sweep", "lab")[:16]
    (this.sweep / "sweep.json").write_text(json.dumps({"id": "lab's", "trials": names, "secret": said}))
    readable.put(this.sweep)
    machine()
    monkeypatch.delenv(SECRET_NAME, raising=False)
    code, out, err = command("ls", "lab", "--storage", uri)
    assert code == 0 and "finished" in out and "not ended" in out, err
    table = load.runs(readable.fetched(f"{uri}/sweeps/lab")).set_index("digest")
    assert table["outcome"].to_dict() == {this.folder.name: "finished"} | {
        name: "unfinished" for name in names if name != this.folder.name
    }
    assert table["server/epsilon"][this.folder.name] < 50 and table["server/epsilon"].max() == math.inf
    code, _, err = command("generate", f"lab/{this.folder.name}", "--storage", uri, "--num", 4, "--out", "x")
    assert code == 2 and "RAYDIFF_NOISE_SECRET" in err and err.count("\n") == 1
    monkeypatch.setenv(SECRET_NAME, SECRET.hex())
    found = open_finished(readable.fetched(f"{uri}/sweeps/lab/trials/{this.folder.name}"))
    assert tree.digest(found.server) and found.client(2).is_trained(2)
    code, _, err = command("report", f"{uri}/sweeps/none")
    assert code == 2 and err == f"error: there is no sweep none in {uri}\n"
    code, _, err = command("rm", "lab", "--storage", uri)
    assert code == 2 and "needs storage in a folder" in err


def test_a_trial_that_is_ended_elsewhere_has_spent_what_was_sent(noised, machine, tmp_path, monkeypatch):
    """Also in the round that never counted."""
    folder = in_a_folder(noised, tmp_path)
    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(Store, "commit", dies_in_the_third(Store.commit))
        through(folder)
    uri = machine()
    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(Remote, "commit", dies_in_the_third(Remote.commit))
        through(begun(noised, uri))
    machine()
    elsewhere = begun(noised, uri)
    for this in (folder, elsewhere):
        trial.cut_short(this.folder, "killed")
    assert elsewhere.outcome() == folder.outcome()
    ledger = ledger_of(elsewhere.folder)
    assert ledger == ledger_of(folder.folder) and [entry.round for entry in ledger.entries].count(2) == 2
    machine()
    away.prepare(uri)
    assert shared(elsewhere.folder).apart
    assert begun(noised, uri).outcome() is None  # It goes on, and will have another.


@pytest.mark.parametrize(
    "name", ["commit-00003.json", "server-00002.safetensors", "../../secret", "clients/config.json"]
)
def test_who_writes_to_the_bucket_names_no_file_that_is_believed(noised, machine, tmp_path, name):
    """`files.json` is not signed: a commit or a state that it names would be one that nobody has authenticated."""
    uri = machine()
    this = through(begun(noised, uri))
    there = tmp_path / "bucket" / "sweeps" / "lab" / "trials" / this.folder.name
    named = json.loads((there / "files.json").read_text())["files"]
    (there / "files.json").write_text(sealed({"files": {**named, name: "0" * 64}}))
    (there / name).parent.mkdir(exist_ok=True)
    (there / name).write_text("{}")
    machine()
    with pytest.raises(
        ValueError, match=rf"files.json is damaged: it names '{name}', which is none of what people read"
    ):
        begun(noised, uri)


def test_who_reads_without_the_secret_sees_that_something_was_sent_after_the_last_round(noised, machine, monkeypatch):
    uri = machine()
    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(Remote, "commit", dies_in_the_third(Remote.commit))
        through(this := begun(noised, uri))
    (this.sweep / "sweep.json").write_text(json.dumps({"id": "lab's", "trials": [this.folder.name]}))
    readable.put(this.sweep)
    readable.put(this.folder)
    machine()
    monkeypatch.delenv(SECRET_NAME, raising=False)
    table = load.runs(readable.fetched(f"{uri}/sweeps/lab"))
    assert len(load.rounds(readable.fetched(f"{uri}/sweeps/lab"))["step"].unique()) == 2
    assert table["server/epsilon"].tolist() == [math.inf]


def test_who_writes_to_the_bucket_names_no_trial_elsewhere(noised, machine, tmp_path):
    uri = machine()
    this = through(begun(noised, uri))
    (this.sweep / "sweep.json").write_text(json.dumps({"id": "lab's", "trials": ["../../other"]}))
    readable.put(this.sweep)
    machine()
    with pytest.raises(ValueError, match=r"trials is damaged: no trial can be called '../../other'"):
        readable.fetched(f"{uri}/sweeps/lab")


def test_what_all_trials_spent_is_known_to_a_driver_that_ran_none_of_them(noised, machine, tmp_path):
    folder = through(in_a_folder(noised, tmp_path))
    uri = machine()
    sweep = through(begun(noised, uri)).sweep
    (sweep / "sweep.json").write_text(json.dumps({"id": "lab's", "trials": []}))
    readable.put(sweep)
    machine()
    away.prepare(uri)
    sweep = away.root(uri) / "sweeps" / "lab"
    readable.get_sweep(sweep)
    trial.keep_secret(sweep, SECRET)
    assert composed(sweep) == composed(folder.sweep)


def test_one_object_in_another_s_place_is_found(noised, machine, tmp_path):
    """A commit in the next one's place, and the server's state of another trial: whole, and under the same secret."""
    uri = machine()
    this, other = through(begun(noised, uri)), through(begun(replace(noised, seed=1), uri))
    there = tmp_path / "bucket" / "sweeps" / "lab" / "trials"
    shutil.copy(there / this.folder.name / "commit-00001", there / this.folder.name / "commit-00002")
    theirs, mine = (next((there / t.folder.name).glob("server-*")) for t in (this, other))
    shutil.copy(theirs, mine)
    machine()
    for experiment in (noised, replace(noised, seed=1)):
        with pytest.raises(ValueError, match="is damaged, or encrypted under another noise secret"):
            begun(experiment, uri)
