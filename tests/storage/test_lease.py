"""One driver at a time, in a folder and in a bucket: who comes second is refused, who comes after a death is not, and a
driver that lost its lease stops."""

import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raydiff.storage import lease, staging
from raydiff.storage.atomic_files import LeaseLost
from raydiff.storage.lease import Lease, hold_lease
from raydiff.storage.local import LocalFolder
from raydiff.storage.object_store import ObjectStore
from raydiff.storage.storage import storage_at

FORK = multiprocessing.get_context("fork")  # a process that imports torch anew takes seconds
FIRST = "owners/00001.json"
Sweep = Callable[[], Path]


@pytest.fixture(params=["folder", "bucket"])
def sweep(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    """The folder of one sweep, which has begun; in a bucket, each time on another machine."""
    machines = itertools.count()

    def folder() -> Path:
        uri = str(tmp_path)
        if request.param == "bucket":
            monkeypatch.setenv(staging.PLACE, str(tmp_path / f"machine{next(machines)}"))
            uri = f"file://{tmp_path}/bucket"
            staging.prepare_storage(uri)
        path = staging.storage_root(uri) / "sweeps" / "mine"
        path.mkdir(parents=True, exist_ok=True)
        storage_at(path).put("sweep.json", b"{}")
        return path

    return folder


def pretend(sweep: Path, **fields: Any) -> None:
    """Write a first driver like this process, but for the fields."""
    me = {**lease.machine(), "pid": os.getpid(), "started": lease.process_start(os.getpid()), "since": "today"}
    storage_at(sweep).put(FIRST, json.dumps(me | fields).encode())


def test_a_second_driver_is_refused_until_the_first_has_ended(sweep: Sweep) -> None:
    with hold_lease(sweep()) as first:
        first()
        says = rf"^mine is being run by process {os.getpid()} on \S+ since [^\n]+$"
        with pytest.raises(ValueError, match=says), hold_lease(sweep()):
            pass
    with hold_lease(sweep()) as second:
        assert (first.number, second.number) == (1, 2)
        second()
        with pytest.raises(LeaseLost, match=r"^mine is run by another driver now"):
            Lease(first.sweep, 1)()
        with pytest.raises(ValueError, match="is being run"), hold_lease(sweep()):
            pass
    with hold_lease(sweep()) as third:
        assert third.number == 3
        with pytest.raises(LeaseLost):  # Whatever the next one has done since.
            Lease(first.sweep, 1)()


def contend(sweep: Path, barrier: Any, results: Any, go: Any) -> None:
    barrier.wait()
    try:
        with hold_lease(sweep) as mine:
            results.put(mine.number)
            go.wait()
    except ValueError as e:
        results.put(str(e))


def test_of_many_that_start_at_once_one_runs_and_its_death_sets_the_sweep_free(tmp_path: Path) -> None:
    sweep, barrier, results, go = tmp_path / "mine", FORK.Barrier(6), FORK.Queue(), FORK.Event()
    processes = [FORK.Process(target=contend, args=(sweep, barrier, results, go)) for _ in range(6)]
    for process in processes:
        process.start()
    answers = [results.get(timeout=60) for _ in processes]
    won = [number for number in answers if isinstance(number, int)]
    assert won == [1] and all("mine is being run by process" in str(why) for why in answers if why not in won)
    pid = json.loads((sweep / FIRST).read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    for process in processes:
        process.join()
    with hold_lease(sweep) as mine:
        assert mine.number == 2


def test_a_process_that_is_gone_and_one_that_has_its_number_now_own_nothing(sweep: Sweep) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    folder = sweep()
    for fields in ({"pid": gone.pid}, {"started": "1"}):
        pretend(folder, **fields)
        with hold_lease(folder) as mine:
            assert mine.number == 2
        storage_at(folder).delete(["owners/00002.json"])


ELSEWHERE = [{"host": "elsewhere"}, {"boot": "another"}, {"numbering": "pid:[1]"}, {"boot": None}]


@pytest.mark.parametrize("where", ELSEWHERE)
def test_elsewhere_a_driver_lives_as_long_as_it_gives_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(tmp_path, **where)
    waits: list[Callable[[], object]] = [lambda: None, lambda: os.utime(tmp_path / FIRST, (1, 1))]
    monkeypatch.setattr(lease.time, "sleep", lambda _: waits.pop(0)())
    with pytest.raises(ValueError, match=" is being run by process "), hold_lease(tmp_path):
        pass
    assert not waits and "dead after 90 s" in capsys.readouterr().out


@pytest.mark.parametrize("where", ELSEWHERE)
def test_elsewhere_a_driver_that_is_silent_by_the_storage_s_clock_is_dead(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, where: dict[str, Any]
) -> None:
    pretend(sweep(), **where)
    began, waited = storage_at(sweep()).modified(FIRST), list[float]()
    monkeypatch.setattr(lease, "_now", lambda storage: (began or 0) + sum(waited))
    monkeypatch.setattr(lease.time, "sleep", lambda _: waited.append(30.0))
    with hold_lease(sweep()) as mine:
        assert mine.number == 2 and sum(waited) == 90
    assert lease._now(storage_at(sweep())) is not None and storage_at(sweep()).list_names("owners")[0] == "00001.json"


def test_a_process_that_lost_its_lease_is_ended(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = threading.Event()
    monkeypatch.setattr(os, "_exit", lambda code: ended.set())
    monkeypatch.setattr(lease, "BEAT_S", 0.001)
    monkeypatch.setattr(ObjectStore, "pause_s", 0.0)
    folder = sweep()
    with hold_lease(folder):
        storage_at(folder).put("owners/00002.json", b"{}")
        assert ended.wait(60)
    assert capsys.readouterr().err.startswith("error: mine is run by another driver now")


def test_the_driver_gives_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touched = threading.Event()
    monkeypatch.setattr(lease, "BEAT_S", 0.001)
    monkeypatch.setattr(os, "utime", lambda path: touched.set() if path == tmp_path / FIRST else None)
    with hold_lease(tmp_path):
        assert touched.wait(60)


def test_where_nothing_was_begun_nothing_is_left(sweep: Sweep, tmp_path: Path) -> None:
    folder = sweep()
    storage_at(folder).delete(["sweep.json"])
    with pytest.raises(ValueError, match="refused"), hold_lease(folder):
        raise ValueError("refused")
    assert not folder.exists() and not [path for path in tmp_path.rglob("owners/*") if path.is_file()]


def test_an_end_that_cannot_be_written_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    (tmp_path / "sweep.json").write_text("{}")
    with monkeypatch.context() as patch, hold_lease(tmp_path):
        patch.setattr(LocalFolder, "put", full)
    assert not json.loads((tmp_path / FIRST).read_text())["ended"]
    with hold_lease(tmp_path) as again:
        assert again.number == 2


def test_a_damaged_file_is_named(sweep: Sweep) -> None:
    folder = sweep()
    storage_at(folder).put(FIRST, b"{")
    with pytest.raises(ValueError, match=rf"{FIRST} is damaged: remove it if no driver of mine"), hold_lease(folder):
        pass
