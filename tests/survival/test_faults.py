"""A full disk, a read-only disk, an MLflow server that is away, a trial that always fails: each gives one message, and
the same command then finishes the sweep."""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import wait_until
from nodes import COORDINATOR, ROUNDS, Federated, check_unharmed, faulty
from servers import free_port, mlflow_server

pytestmark = pytest.mark.survival


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A disk of 48 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a disk of its own can be mounted by root alone")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> bool:
    """Leave no byte."""
    with (disk / "ballast").open("wb", buffering=0) as f, pytest.raises(OSError, match="No space left"):
        while True:
            f.write(bytes(2**16))
    return True


def empty(disk: Path) -> None:
    """Undo `fill`."""
    (disk / "ballast").unlink()


def remount(disk: Path, mode: str) -> bool:
    """Whether it could be: `ro` is refused while a file is being written."""
    command = ["mount", "-o", f"remount,{mode}", str(disk)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


FULL = (fill, empty, "No space left on device")
LOCKED = (functools.partial(remount, mode="ro"), functools.partial(remount, mode="rw"), "Read-only file system")


def test_storage_that_cannot_be_written(disk, tmp_path, nodes, expected, migrated, monkeypatch, capsys):
    """Full, then read-only: the trials end with its name and the reason; what was committed stays, and counts when the
    sweep is resumed."""
    shutil.copy(migrated, tmp_path / "mlflow.db")
    sweep = Federated(disk)
    sweep.mlflow = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sweep.mlflow)
    committed, resume = 0, list[str]()
    for fail, mend, why in (FULL, LOCKED):

        def failed(coordinator, fail):
            os.kill(coordinator, signal.SIGSTOP)  # so that the sweep has not ended when its disk fails
            try:
                return fail(disk)
            finally:
                os.kill(coordinator, signal.SIGCONT)

        def meanwhile(fail=fail, most=committed + 2):
            wait_until(lambda: sweep.progress()[0] >= most, "two more commits", every=0.002)
            coordinator, _ = nodes.only(COORDINATOR)
            wait_until(lambda: failed(coordinator, fail), "a moment in which no file is being written", every=0.002)

        assert sweep.run(*resume, meanwhile=meanwhile) == 1
        output = capsys.readouterr().out
        assert f"FAILED, the storage folder {sweep.folder} cannot be written: {why}" in output
        assert "Traceback" not in output and "RUNNING" not in {status for _, status, _ in sweep.runs()}
        assert committed + 2 <= sweep.progress()[0] < 2 * ROUNDS
        committed, resume = sweep.progress()[0], ["--resume"]
        mend(disk)
    assert sweep.run("--resume") == 0
    check_unharmed(sweep, expected)


def test_an_mlflow_server_is_away_for_a_while(tmp_path, nodes, expected, migrated, monkeypatch):
    """Nothing waits for it, and what it has missed it is told."""
    shutil.copy(migrated, tmp_path / "server.db")
    port, sweep = free_port(), Federated(tmp_path)
    sweep.mlflow = f"http://127.0.0.1:{port}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sweep.mlflow)
    start = functools.partial(mlflow_server, f"sqlite:///{tmp_path}/server.db", tmp_path, port=port)

    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:

        def meanwhile():
            wait_until(lambda: sweep.progress()[0] >= 2, "two commits", every=0.002)
            coordinator, _ = nodes.only(COORDINATOR)
            os.kill(coordinator, signal.SIGSTOP)  # so that the sweep has not ended when it is gone
            first.close()
            os.kill(coordinator, signal.SIGCONT)
            wait_until(lambda: len(sweep.outcomes()) >= 1, "an outcome without it", progress=sweep.progress, every=0.01)
            os.kill(coordinator, signal.SIGSTOP)  # nor when it is back
            second.enter_context(start())
            os.kill(coordinator, signal.SIGCONT)

        first.enter_context(start())
        assert sweep.run(meanwhile=meanwhile) == 0
        check_unharmed(sweep, expected)


def poisoned(client, trial) -> None:
    """One trial's clients cannot train."""

    def run(server, number):
        raise RuntimeError("this trial is poisoned")

    if trial.experiment.seed == 0:
        client.run = run


def test_a_poisoned_trial_fails_alone_is_retried_alone_and_the_sweep_is_extended(
    tmp_path, nodes, expected, monkeypatch, capsys
):
    from raydiff.runtime import tuner

    sweep = Federated(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(tuner, "Coordinator", faulty(tuner, poisoned))
        assert sweep.run() == 1
    assert "FAILED, this trial is poisoned" in capsys.readouterr().out
    outcomes = sweep.outcomes()
    (bad,) = (digest for digest, outcome in outcomes.items() if outcome["outcome"] == "failed")
    (good,) = outcomes.keys() - {bad}
    assert outcomes[good]["outcome"] == "finished" and outcomes[bad]["reason"] == "this trial is poisoned"
    assert sorted(status for _, status, _ in sweep.runs()) == ["FAILED", "FINISHED", "FINISHED"]
    assert sweep.tag("raydiff.reason", of=bad) == "this trial is poisoned"

    written = (sweep.folder / "trials" / good / "outcome.json").stat().st_mtime_ns
    assert sweep.run("--resume") == 0
    assert (sweep.folder / "trials" / good / "outcome.json").stat().st_mtime_ns == written
    check_unharmed(sweep, expected)

    parent = sweep.tag("mlflow.parentRunId", of=good)
    assert sweep.run("--resume", "--extend", "--grid", "seed=0,1,2") == 0
    assert (sweep.folder / "trials" / good / "outcome.json").stat().st_mtime_ns == written
    check_unharmed(sweep, expected, trials=3)
    assert {sweep.tag("mlflow.parentRunId", of=digest) for digest in sweep.outcomes()} == {parent}
