"""The driver dies, or is asked to stop; the same command with --resume gives the undisturbed table."""

import os
import signal
from pathlib import Path

import pytest
from conftest import Command, Sweep, check_whole, wait_until

pytestmark = pytest.mark.survival


def finished(sweep: Sweep) -> int:
    return sum(outcome["outcome"] == "finished" for outcome in sweep.outcomes().values())


def processes_of(session: int) -> set[int]:
    """All that belong to a session: Ray's workers are in groups of their own."""
    processes = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of = stat.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        if int(of) == session and state != "Z":
            processes.add(int(stat.parent.name))
    return processes


def test_of_two_drivers_one_runs_and_its_process_group_is_signalled_resumed_killed_and_resumed(tmp_path, undisturbed):
    """`timeout` and schedulers signal the whole group: Ray's processes are in it too."""
    sweep = Sweep(tmp_path)
    (tmp_path / "mlflow.db").unlink()  # its tables they make at once, too
    with Command(sweep) as one, Command(sweep) as other:
        both = one.process, other.process
        wait_until(lambda: any(p.poll() is not None for p in both), "one to be refused", progress=sweep.progress)
        refused, driver = sorted((one, other), key=lambda command: command.process.poll() is None)
        assert "error: survivor is being run by process " in refused.end(2)
        driver.until(lambda: finished(sweep) >= 1, "an outcome")
        os.killpg(driver.process.pid, signal.SIGTERM)
        output = driver.end(128 + signal.SIGTERM)
    (line,) = (line for line in output.splitlines() if line.startswith("interrupted; continue with: "))
    assert "--name survivor" in line and line.endswith("--resume")
    assert "RUNNING" not in {status for _, status, _ in sweep.runs()}
    assert {folder.parent.name for folder in sweep.folder.glob("trials/*/config.json")} == sweep.outcomes().keys()
    assert 1 <= finished(sweep) < len(undisturbed) and (sweep.folder / "report" / "report.html").exists()
    wait_until(lambda: not processes_of(driver.process.pid), "all processes of the sweep to end", 30)

    commits, _ = sweep.progress()
    with Command(sweep, "--resume") as driver:
        driver.until(lambda: sweep.progress()[0] > commits, "a commit", every=0.01)
        driver.kill()
    assert finished(sweep) < len(undisturbed)
    with Command(sweep, "--resume") as driver:
        driver.end()
    check_whole(sweep, undisturbed)
