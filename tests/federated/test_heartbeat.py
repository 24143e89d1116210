"""Heartbeats of a long training: who is at which step, in the trial's folder."""

import dataclasses
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raydiff import process
from raydiff.experiment import trial
from raydiff.experiment.config import Experiment
from raydiff.federated import heartbeat
from raydiff.federated.heartbeat import Heartbeat
from raydiff.models.compute import with_progress
from raydiff.runtime import one_process
from raydiff.runtime.estimate import Running
from raydiff.storage import staging
from raydiff.storage.local import LocalFolder
from raydiff.storage.object_store import ObjectStore


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Heartbeat]:
    """Every beat that is written, at each step."""
    beats: list[Heartbeat] = []
    put = LocalFolder.put

    def spy(self: LocalFolder, name: str, data: bytes) -> None:
        put(self, name, data)
        if name.startswith(heartbeat.FOLDER) and name.endswith(heartbeat.STEPS):
            beats.append(Heartbeat(**json.loads(data)))
            assert heartbeat.read_heartbeats(self.folder) == beats[-1:]

    monkeypatch.setattr(heartbeat, "EVERY_S", 0.0)
    monkeypatch.setattr(LocalFolder, "put", spy)
    return beats


def test_each_participant_tells_its_steps_and_nothing_is_left(
    tmp_path: Path, tiny: Experiment, written: list[Heartbeat]
) -> None:
    this = trial.open_trial(dataclasses.replace(tiny, unseen=None), tmp_path)
    assert list(trial.run_trial(this, trial.local_executor(this)))[-1]["finished"]
    clients = [beat for beat in written if beat.who != "the server"]
    assert [(b.who, b.turn, b.turns, b.step, b.steps) for b in clients] == [
        (f"client {number}", number, 2, step, 8) for number in range(2) for step in range(1, 9)
    ]
    server = [(b.round, b.turn, b.turns, b.step, b.steps) for b in written if b.who == "the server"]
    assert [at[1:3] for at in server] == 8 * [(0, 1)] and {at[0] for at in server} == {1, 2, 3}
    assert sum(steps for _, _, _, step, steps in server if step == steps) == 8  # all of its parts together
    assert all(b.loss is not None and 0 < b.loss < 10 for b in written)
    assert list((this.folder / heartbeat.FOLDER).iterdir()) == []


def test_what_takes_no_steps_gives_signs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves nothing; outside nobody is told."""
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.0)
    with heartbeat.beating(tmp_path, "client 0", 0, began=0.0, loss=True):
        for _ in with_progress(range(3)):
            (file,) = (tmp_path / heartbeat.FOLDER).iterdir()
            assert (
                heartbeat.last_sign(tmp_path, heartbeat.process_name()) == [None, file.stat().st_mtime] != [None, 0.001]
            )
            os.utime(file, ns=(1, 1))
    assert (
        heartbeat.last_sign(tmp_path, heartbeat.process_name()) == [None, None]
        and heartbeat.read_heartbeats(tmp_path) == []
    )
    assert list(with_progress(range(2))) == [0, 1]


def test_a_short_training_writes_nothing(tmp_path: Path) -> None:
    with heartbeat.beating(tmp_path, "client 0", 0, began=0.0, loss=True):
        assert list(with_progress(range(3))) == [0, 1, 2] and not (tmp_path / heartbeat.FOLDER).exists()


def test_a_process_that_works_in_another_folder_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the coordinator hears its workers where the storage is a bucket."""
    trials = []
    for machine in ("here", "there"):
        staging.begin_working_copy(tmp_path / machine, f"file://{tmp_path}/bucket")
        trials.append(tmp_path / machine / "sweeps" / "lab" / "trials" / "d")
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.0)
    monkeypatch.setattr(ObjectStore, "pause_s", 0.0)
    silence = heartbeat.last_sign(trials[0], heartbeat.process_name())
    with heartbeat.beating(trials[1], "client 0", 0, began=0.0, loss=False):
        list(with_progress([1]))
        assert heartbeat.last_sign(trials[0], heartbeat.process_name()) != silence
    assert heartbeat.last_sign(trials[0], heartbeat.process_name()) == silence


def beat(**more: Any) -> Heartbeat:
    fields = {"who": "client 3", "round": 0, "turn": 1, "turns": 4, "step": 500, "steps": 1000, "loss": 0.25}
    return Heartbeat(**{**fields, "began": 100.0, "at": 130.0, **more})


def test_what_is_left_follows_from_the_pace() -> None:
    assert beat().fraction_done == 0.375 and beat().left_s == pytest.approx(50)  # 30 s for 3/8 of it
    assert str(beat()) == "client 3 (2 of 4), step 500 of 1,000, loss 0.2500"
    assert str(beat(turn=0, turns=1, loss=None)) == "client 3, step 500 of 1,000"
    assert beat(at=0.0).left_s == 0.0  # The clock was set back.


def test_the_slowest_is_shown_and_what_is_no_beat_is_not(tmp_path: Path, tiny: Experiment) -> None:
    folder = tmp_path / "trials" / tiny.digest / heartbeat.FOLDER
    folder.mkdir(parents=True)
    for name, step in (("a", 700), ("b", 20)):
        (folder / f"{name}.json").write_text(json.dumps(dataclasses.asdict(beat(step=step))))
    (folder / "c.json").write_text("{")
    assert [b.step for b in heartbeat.read_heartbeats(folder.parent)] == [20, 700]
    running = Running(folder.parent, tiny)
    assert running.place() == "round 1: client 3 (2 of 4), step 20 of 1,000, loss 0.2500, about 1:27 min left"
    running.round = 0  # Round 1 has no beats yet: those of round 0 are none of it.
    assert running.place() == "round 2"
    running.round = tiny.method.rounds - 1
    assert running.place() == "evaluation"


def test_of_a_trial_that_gives_no_sign_it_is_said_how_long(tmp_path: Path, tiny: Experiment) -> None:
    folder, now = tmp_path / "trials" / tiny.digest, 100.0
    (folder / heartbeat.FOLDER).mkdir(parents=True)
    running = Running(folder, tiny, silence=heartbeat.SilenceTimer(lambda: now))

    def after(seconds: float) -> str:
        nonlocal now
        now += seconds
        return running.place()

    assert after(0.0) == "round 1" == after(1800.0)
    assert after(1.0) == "round 1; no heartbeat for 30:01 min"
    for name in ("metrics.jsonl", "beats/a.alive"):
        (folder / name).touch()
        os.utime(folder / name, ns=(1, 1))
        assert after(1.0) == "round 1" == after(1700.0)
        os.utime(folder / name, ns=(2, 2))  # It is written again.
        assert after(200.0) == "round 1" == after(1700.0)
    running.round = tiny.method.rounds - 1
    assert after(1700.0) == "evaluation; no heartbeat for 56:40 min"


def test_in_one_process_its_place_is_printed(tmp_path: Path, tiny: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    this, printed = trial.open_trial(tiny, tmp_path), threading.Event()

    def run(*_: object, train: object) -> Iterator[dict[str, Any]]:
        yield {"round": 1, "finished": True}
        assert printed.wait(60)

    monkeypatch.setattr(one_process.estimate, "EVERY_S", 0.0)
    monkeypatch.setattr(one_process.trial, "run_trial", run)
    monkeypatch.setattr(
        process, "print", lambda text, flush: printed.set() if text == "  round 3" else None, raising=False
    )
    one_process._run_trial(this, lambda _: (None, None))
    assert printed.is_set() and this.outcome() is None


def test_what_killed_processes_have_left_is_forgotten(tmp_path: Path, tiny: Experiment) -> None:
    this = trial.open_trial(tiny, tmp_path)
    old = this.folder / heartbeat.FOLDER / "dead.json"
    old.parent.mkdir()
    old.write_text(json.dumps(dataclasses.asdict(beat())))
    trial.begin(this)
    assert heartbeat.read_heartbeats(this.folder) == []


def test_a_disk_that_is_full_stops_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(heartbeat, "EVERY_S", 0.0)
    monkeypatch.setattr(LocalFolder, "put", full)
    with heartbeat.beating(tmp_path, "client 0", 0, began=0.0, loss=True):
        assert list(with_progress(range(3))) == [0, 1, 2]
