"""One driver at a time: who comes second is refused, who comes after a death is not, and who is overtaken stops."""

from __future__ import annotations

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

from raydiff.storage import atomic_files as files
from raydiff.storage import lease as owner
from raydiff.storage.atomic_files import LeaseLost
from raydiff.storage.lease import held

FORK = multiprocessing.get_context("fork")  # a process that imports torch anew takes seconds


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A sweep that has begun."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sweep.json").write_text("{}")
    return tmp_path / "mine"


def pretend(sweep: Path, **said: Any) -> Path:
    """The file of a first owner that is like one of this process, but for what is said."""
    path = sweep / "owners" / "00001.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(owner._me() | said))
    return path


def test_a_second_driver_is_refused_until_the_first_has_ended(sweep: Path) -> None:
    with held(sweep) as first:
        first()
        with (
            pytest.raises(ValueError, match=rf"^mine is being run by process {os.getpid()} on \S+ since [^\n]+$"),
            held(sweep),
        ):
            pass
    with held(sweep) as second:
        assert (first.number, second.number) == (1, 2)
        second()


def contend(sweep: Path, barrier: Any, results: Any, go: Any) -> None:
    barrier.wait()
    try:
        with held(sweep) as mine:
            results.put(mine.number)
            go.wait()
    except ValueError as e:
        results.put(str(e))


def test_of_many_that_start_at_once_one_runs_and_its_death_sets_the_sweep_free(tmp_path: Path) -> None:
    sweep, barrier, results, go = tmp_path / "mine", FORK.Barrier(6), FORK.Queue(), FORK.Event()
    processes = [FORK.Process(target=contend, args=(sweep, barrier, results, go)) for _ in range(6)]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    won = [number for number in found if isinstance(number, int)]
    assert won == [1] and all("mine is being run by process" in str(why) for why in found if why not in won)
    pid = json.loads((sweep / "owners" / "00001.json").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    for process in processes:
        process.join()
    with held(sweep) as mine:
        assert mine.number == 2


def test_a_process_that_is_gone_and_one_that_has_its_number_now_own_nothing(sweep: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    path = pretend(sweep, pid=gone.pid)
    with held(sweep) as mine:
        assert mine.number == 2
    for later in sweep.glob("owners/*"):
        later.unlink()
    path.write_text(json.dumps(owner._me() | {"started": "1"}))
    with held(sweep) as mine:
        assert mine.number == 2


ELSEWHERE = [{"host": "elsewhere"}, {"boot": "another"}, {"numbering": "pid:[1]"}, {"boot": None}]


@pytest.mark.parametrize("where", ELSEWHERE, ids=["host", "boot", "container", "unknown"])
def test_elsewhere_a_driver_lives_as_long_as_it_gives_signs_of_life(
    sweep: Path, monkeypatch: pytest.MonkeyPatch, where: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path = pretend(sweep, **where)
    waits: list[Callable[[], object]] = [lambda: None, lambda: os.utime(path, (1, 1))]
    monkeypatch.setattr(owner, "_pause", lambda: waits.pop(0)())
    with pytest.raises(ValueError, match=r"^mine is being run by process "), held(sweep):
        pass
    assert not waits and "it counts as dead after 90 s" in capsys.readouterr().out


@pytest.mark.parametrize("where", ELSEWHERE, ids=["host", "boot", "container", "unknown"])
def test_elsewhere_a_driver_that_is_silent_by_the_storage_s_clock_is_dead(
    sweep: Path, monkeypatch: pytest.MonkeyPatch, where: dict[str, Any]
) -> None:
    path = pretend(sweep, **where)
    now, began = [path.stat().st_mtime], path.stat().st_mtime
    monkeypatch.setattr(owner, "_now", lambda there: now[0])
    monkeypatch.setattr(owner, "_pause", lambda: now.append(now.pop() + 30))
    with held(sweep) as mine:
        assert mine.number == 2 and now[0] - began == 90
    assert not list(path.parent.glob(".*"))


def test_a_driver_that_was_overtaken_finds_out_whatever_the_next_one_has_done_since(sweep: Path) -> None:
    with held(sweep) as first:
        pretend_next = sweep / "owners" / "00002.json"
        pretend_next.write_text(json.dumps(owner._me() | {"host": "elsewhere", "ended": True}))
        with pytest.raises(LeaseLost, match=r"^mine is run by another driver now"):
            first()
        with held(sweep) as third:
            assert third.number == 3
            third()
        with pytest.raises(LeaseLost):
            first()


def test_a_process_that_was_overtaken_is_ended(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said, ended = list[str](), threading.Event()

    def end(why: str) -> None:
        said.append(why)
        ended.set()

    monkeypatch.setattr(owner, "_end_process", end)
    monkeypatch.setattr(owner, "BEAT_S", 0.001)
    with held(sweep):
        (sweep / "owners" / "00002.json").write_text("{}")
        assert ended.wait(60)
    assert said[0].startswith("mine is run by another driver now")


def test_the_owner_gives_signs_of_life(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touched = threading.Event()
    monkeypatch.setattr(owner, "BEAT_S", 0.001)
    monkeypatch.setattr(os, "utime", lambda path: touched.set() if path == sweep / "owners" / "00001.json" else None)
    with held(sweep):
        assert touched.wait(60)


def test_where_nothing_was_begun_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="refused"), held(tmp_path / "mine"):
        raise ValueError("refused")
    assert not list(tmp_path.iterdir())


def test_an_end_that_cannot_be_written_is_one(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch, held(sweep):
        patch.setattr(files, "write_bytes", full)
    assert not json.loads((sweep / "owners" / "00001.json").read_text())["ended"]
    with held(sweep) as again:
        assert again.number == 2


def test_a_damaged_file_is_named(sweep: Path) -> None:
    path = pretend(sweep)
    path.write_text("{")
    with (
        pytest.raises(ValueError, match=rf"^{path} is damaged: remove it if no driver of mine is running$"),
        held(sweep),
    ):
        pass
