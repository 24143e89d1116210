"""The signals that end a process, and output that cannot be written."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from cases import slow_but

from raydiff import process
from raydiff.experiment import trial
from raydiff.formats.json_files import read_outcome
from raydiff.process import saying, waiting
from raydiff.runtime import one_process

PRINTS = """
import sys
from raydiff import process
process.prepare_process()
with process.optional_output("stdout", "stderr"):
    for stream in (sys.stdout, sys.stderr):
        for _ in range(3000):
            print("\\u00e9\\udcff " * 9, file=stream, flush=True)
open(sys.argv[1], "w").write("done")
"""


@contextmanager
def reader_gone() -> Iterator[int]:
    reader, writer = os.pipe()
    os.close(reader)
    yield writer


@contextmanager
def reader_asleep() -> Iterator[int]:
    """A pipe that is full and does not block, as some CI systems give."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    yield writer
    os.close(reader)


@contextmanager
def disk_full() -> Iterator[int]:
    yield os.open("/dev/full", os.O_WRONLY)


@contextmanager
def ascii_only() -> Iterator[int]:
    yield os.open(os.devnull, os.O_WRONLY)


@pytest.mark.parametrize("output", [reader_gone, reader_asleep, disk_full, ascii_only, None])
def test_work_goes_on_whatever_becomes_of_its_output(output: Callable[[], Any] | None, tmp_path: Path) -> None:
    """None: closed from the start."""
    command, env = [sys.executable, "-c", PRINTS, str(tmp_path / "end")], {**os.environ, "PYTHONIOENCODING": "ascii"}
    if output is None:
        command = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *command]
    with ExitStack() as stack:
        fd = subprocess.DEVNULL if output is None else stack.enter_context(output())
        assert subprocess.run(command, stdout=fd, stderr=fd, env=env, timeout=60, check=False).returncode == 0
        if output is not None:
            os.close(fd)
    assert (tmp_path / "end").read_text() == "done"


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("number", slow_but([signal.SIGINT, signal.SIGTERM], process.STOP_SIGNALS))
def test_each_signal_ends_a_run_in_order(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., Any], migrated: Path
) -> None:
    """Its trial is killed and can be continued; a second signal at once is the same request."""
    shutil.copy(migrated, tmp_path / "mlflow.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def trains(this: trial.Trial, *_: Any) -> None:
        trial.begin(this)
        signal.raise_signal(number)

    monkeypatch.setattr(one_process, "_run_trial", trains)
    cut_short = trial.end_unfinished
    monkeypatch.setattr(trial, "end_unfinished", lambda *a, **k: (signal.raise_signal(number), cut_short(*a, **k)))
    handlers = [signal.getsignal(each) for each in process.STOP_SIGNALS]
    arguments = ["--runtime.pool", "local", "--runtime.storage", tmp_path, "--name", "s", "--protocol-only"]
    code, output, errors = command("run", "digits", *arguments)
    assert code == 128 + number and "--resume" in output and not errors
    (folder,) = (tmp_path / "sweeps" / "s" / "trials").iterdir()
    assert (read_outcome(folder) or {})["outcome"] == "killed"
    with sqlite3.connect(tmp_path / "mlflow.db") as store:
        assert {status for (status,) in store.execute("select status from runs")} == {"KILLED"}
    assert [signal.getsignal(each) for each in process.STOP_SIGNALS] == handlers


def test_an_ignored_signal_stays_ignored() -> None:
    """As under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with process.stop_signals(process.interrupt):
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_words_come_while_it_waits_and_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, enough = list[str](), threading.Event()

    def say(text: str, flush: bool) -> None:
        lines.append(text)
        if len(lines) == 2:
            enough.set()

    monkeypatch.setattr(process, "print", say, raising=False)
    monkeypatch.setattr(process, "WAIT_S", 0.001)
    with pytest.raises(KeyError), waiting("node 10.0.0.7"):
        assert enough.wait(60)
        raise KeyError
    count = len(lines)
    assert lines[0] == "  waiting for node 10.0.0.7 (0 s)"
    with saying(lambda: "never", 1e6):
        pass
    assert len(lines) == count
