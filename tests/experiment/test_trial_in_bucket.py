"""Trials in a bucket: it holds enough to go on elsewhere, whenever a process dies, and shows nobody clients."""

import contextlib
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from buckets import SECRET, begun, objects, result, through

from raydiff import seeding, tree
from raydiff.experiment import trial
from raydiff.experiment.config import Experiment
from raydiff.experiment.ledgers import ledger_of
from raydiff.experiment.trial import Trial
from raydiff.federated.rounds import sample_participants
from raydiff.papers.spire.method import SPIRE
from raydiff.privacy.release import Gaussian, already_private
from raydiff.report import load
from raydiff.results.finished import open_finished
from raydiff.results.spent import composed_guarantee
from raydiff.storage import copies, staging
from raydiff.storage.atomic_files import LeaseLost
from raydiff.storage.checkpoint import Checkpoint
from raydiff.storage.object_store import ObjectStore
from raydiff.storage.storage import storage_at

WRITES = ("put", "put_if_absent", "append", "delete")


class Died(BaseException):
    """What no code catches: the process is gone."""


def dies_in_round(number: int, patch: pytest.MonkeyPatch) -> None:
    """From now on the process dies at the commit of this round."""
    commit = Checkpoint.commit

    def dying(self: Checkpoint, current: int, record: dict[str, object]) -> None:
        if current == number:
            raise Died
        commit(self, current, record)

    patch.setattr(Checkpoint, "commit", dying)


def killed(experiment: Experiment, storage: str, number: int = 2) -> Trial:
    """The trial, whose process died at a commit."""
    this = begun(experiment, storage)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Died):
        dies_in_round(number, patch)
        through(this)
    return this


def publish(this: Trial, **plan: object) -> None:
    """As the driver puts the sweep's plan."""
    plan = {"id": "lab's", "trials": [this.folder.name], **plan}
    storage_at(this.sweep).put("sweep.json", json.dumps(plan).encode())


def test_a_trial_in_a_bucket_gives_the_bits_of_one_in_a_folder(noised, machine, undisturbed, tmp_path):
    assert result(through(begun(noised, machine()))) == undisturbed
    assert result(begun(noised, machine())) == undisturbed  # and is found finished from elsewhere
    assert not [path for path in objects(tmp_path) if path.name == "secret" or path.name.startswith(".")]


@pytest.mark.slow
def test_whenever_the_process_dies_another_machine_goes_on_to_the_same_bits(noised, machine, tmp_path):
    """Killed before each object that it puts or deletes."""
    short = replace(noised, method=replace(noised.method, rounds=2))
    expected = result(through(begun(short, str(tmp_path / "folder"))))
    left = 0

    def dying(call: Callable[..., object]) -> Callable[..., object]:
        def wrapped(self: ObjectStore, *arguments: object) -> object:
            nonlocal left
            left -= 1
            if left <= 0:  # Its threads are gone too.
                raise Died
            return call(self, *arguments)

        return wrapped

    for at in range(1, 200):
        uri, left = machine() + f"-{at}", at
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Died):
            for name in WRITES:
                patch.setattr(ObjectStore, name, dying(getattr(ObjectStore, name)))
            through(begun(short, uri))
        if left > 0:
            break
        machine()
        assert result(through(begun(short, uri))) == expected, f"died at {at}"
    assert at > 20


def test_what_was_noised_and_put_is_sent_again_and_nothing_else(noised, machine, monkeypatch):
    first = killed(noised, machine(), number=0)
    sent = {client: first.store.load_sent(client, 0)[0] for _, client, _, _ in first.store.sent_after(-1)}
    this = begun(noised, machine())
    monkeypatch.setattr(SPIRE, "local_update", lambda *_: pytest.fail("it was trained again"))
    pool = trial.local_executor(this)
    server = this.experiment.method.init_server(None, torch.Generator().manual_seed(0))
    again = list(pool.run(sample_participants(pool.clients, 2, this.experiment.seed, 0), server, 0))
    assert [metrics["upload/resent"] for _, metrics in again] == [1.0, 1.0] and len(sent) == 2
    for upload, _ in again:
        assert tree.digest(upload.release.value) == tree.digest(sent[upload.client].value)


def test_of_two_processes_that_noised_one_client_s_upload_one_sends(noised, machine):
    """Both send what the first has stored; in a committed round neither sends anything."""
    release = [
        already_private({"x": torch.tensor([v])}, Gaussian(1.5, "client", "replace_one", "local")) for v in (1.0, 2.0)
    ]
    stores = [begun(noised, machine()).store for _ in range(2)]
    sent = [store.save_release(7, 3, its) for store, its in zip(stores, release, strict=True)]
    assert [float(its.value["x"]) for its in sent] == [1.0, 1.0]
    stores[0].commit(3, {})
    for act in (lambda s: s.save_release(7, 3, release[1]), lambda s: s.note(3, []), lambda s: s.commit(3, {})):
        with pytest.raises(LeaseLost, match=r"round 3 of .* is committed"):
            act(stores[1])


def test_who_reads_the_bucket_reads_no_client_and_no_secret(noised, machine, tmp_path):
    readable = {"config.json", "metrics.jsonl", "outcome.json", "ledger.json"}
    this = killed(noised, machine())
    storage_at(this.folder, private=True).put("error.txt", b"of client 2")
    publish(this)
    data = {str(path.relative_to(tmp_path)): path.read_bytes() for path in objects(tmp_path)}
    for part in ("server-", "clients/", "releases/", "commit-", "error.txt"):
        assert any(part in name for name in data)
    for name, content in data.items():
        assert b"__metadata__" not in content, name  # every file of tensors begins with it
        assert Path(name).name in {*readable, "sweep.json"} or b"lient" not in content, name
        assert SECRET not in content and SECRET.hex().encode() not in content, name


DAMAGED = ["commit-00001", "server-", "clients/", "releases/"]


@pytest.mark.parametrize(
    ("what", "how"),
    [*((what, "flipped") for what in DAMAGED), *((what, "gone") for what in ("commit-00000", "server-", "clients/"))],
)
def test_what_is_damaged_or_gone_is_named(noised, machine, tmp_path, what, how):
    """After two rounds, and what was sent in the third."""
    killed(noised, machine())
    paths = [p for p in objects(tmp_path) if what in str(p.relative_to(tmp_path))]
    assert paths
    for path in paths:
        content = bytearray(path.read_bytes())
        content[20::50] = [byte ^ 1 for byte in content[20::50]]
        path.unlink() if how == "gone" else path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^file:.*bucket/sweeps/lab/.*\b(is damaged|is gone|has lost)\b") as error:
        this = through(begun(noised, machine()))
        for client in range(3):
            this.store.load_client(client, before=3)
    assert "\n" not in str(error.value)


def test_one_object_in_another_s_place_is_found(noised, machine, tmp_path):
    """A commit in the next one's place, and the server's state of another trial: whole, and under the same secret."""
    uri, other = machine(), replace(noised, seed=1)
    mine, theirs = (through(begun(experiment, uri)).folder.name for experiment in (noised, other))
    place = tmp_path / "bucket" / "sweeps" / "lab" / "trials"
    shutil.copy(place / mine / "commit-00001.json", place / mine / "commit-00002.json")
    shutil.copy(place / mine / "server-00002.safetensors", place / theirs / "server-00002.safetensors")
    machine()
    with pytest.raises(ValueError, match="is damaged, or encrypted under another noise secret"):
        begun(noised, uri).store.ledger()
    with pytest.raises(ValueError, match="is damaged, or encrypted under another noise secret"):
        begun(other, uri).store.load_server(2)


def test_reading_it_elsewhere_needs_no_secret_but_for_what_clients_have(noised, machine, monkeypatch, command):
    uri = machine()
    this = through(begun(noised, uri))
    other = killed(replace(noised, seed=1), uri)  # Something was sent after its last round.
    secret_digest = seeding.keyed_digest(SECRET, "sweep", "lab")[:16]
    publish(other, trials=[this.folder.name, other.folder.name], secret=secret_digest)
    machine()
    monkeypatch.delenv(staging.SECRET, raising=False)
    code, out, err = command("ls", "lab", "--storage", uri)
    assert code == 0 and "finished" in out and "not ended" in out, err
    table = load.runs(copies.fetch_for_reading(f"{uri}/sweeps/lab")).set_index("digest")
    assert table["outcome"].to_dict() == {this.folder.name: "finished", other.folder.name: "unfinished"}
    assert table["server/epsilon"][this.folder.name] < 50 and table["server/epsilon"][other.folder.name] == math.inf
    code, _, err = command("generate", f"lab/{this.folder.name}", "--storage", uri, "--num", 4, "--out", "x")
    assert code == 2 and "RAYDIFF_NOISE_SECRET" in err and err.count("\n") == 1
    monkeypatch.setenv(staging.SECRET, SECRET.hex())
    read_back = open_finished(copies.fetch_for_reading(f"{uri}/sweeps/lab/trials/{this.folder.name}"))
    assert tree.digest(read_back.server) and read_back.client(2).is_trained(2)
    code, _, err = command("report", f"{uri}/sweeps/none")
    assert code == 2 and err == f"error: there is no sweep none in {uri}\n"


def test_a_trial_that_is_ended_elsewhere_has_spent_what_was_sent(noised, machine, tmp_path):
    """Also in the round that never counted; and a driver that ran no trial knows what all of them spent."""
    folder, uri = killed(noised, str(tmp_path / "folder")), machine()
    killed(noised, uri)
    machine()
    elsewhere = begun(noised, uri)
    for this in (folder, elsewhere):
        trial.end_unfinished(this.folder, "killed")
    assert elsewhere.outcome() == folder.outcome()
    ledger = ledger_of(elsewhere.folder)
    assert ledger == ledger_of(folder.folder) and [entry.round for entry in ledger.entries].count(2) == 2
    publish(elsewhere)
    machine()
    staging.prepare_storage(uri)
    sweep = staging.storage_root(uri) / "sweeps" / "lab"
    copies.download_sweep(sweep)
    trial.keep_secret(sweep, SECRET)
    assert composed_guarantee(sweep) == composed_guarantee(folder.sweep)
    assert begun(noised, uri).outcome() is None  # It goes on, and will have another.
