"""The driver dies, or is asked to stop; the same command with --resume gives the undisturbed table."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from conftest import Sweep, check_whole, wait_until

pytestmark = pytest.mark.survival


def kill_group(process) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def half_way(sweep: Sweep) -> bool:
    return len(sweep.outcomes()) >= 1


def resume(sweep: Sweep) -> str:
    process = sweep.start("--resume")
    output = sweep.end_of(process)
    assert process.returncode == 0, output
    return output


def test_a_killed_driver_is_resumed(tmp_path, undisturbed):
    sweep = Sweep(tmp_path)
    process = sweep.start()
    wait_until(lambda: half_way(sweep), "an outcome", progress=sweep.progress)
    kill_group(process)
    assert 1 <= len(sweep.outcomes()) < len(undisturbed)
    output = resume(sweep)
    assert "Traceback" not in output
    check_whole(sweep, undisturbed)


def test_of_two_drivers_started_at_once_one_runs(tmp_path, undisturbed):
    sweep = Sweep(tmp_path)
    (tmp_path / "mlflow.db").unlink()  # its tables they make at once, too
    processes = [sweep.start(), sweep.start()]
    outputs = [sweep.end_of(process) for process in processes]
    codes = [process.returncode for process in processes]
    assert sorted(codes) == [0, 2], outputs
    refused = outputs[codes.index(2)]
    assert "error: survivor is being run by process " in refused and "Traceback" not in refused
    check_whole(sweep, undisturbed)


def test_an_interrupted_driver_says_how_to_resume_and_is_resumed(tmp_path, undisturbed):
    sweep = Sweep(tmp_path)
    process = sweep.start()
    wait_until(lambda: half_way(sweep), "an outcome", progress=sweep.progress)
    process.send_signal(signal.SIGINT)
    output = sweep.end_of(process)
    assert process.returncode == 130, output
    assert "--name survivor" in output and output.rstrip().splitlines()[-2].endswith("--resume")
    assert "Traceback" not in output
    assert "RUNNING" not in {status for _, status, _ in sweep.runs()}
    assert 1 <= sum(outcome["outcome"] == "finished" for outcome in sweep.outcomes().values()) < len(undisturbed)
    resume(sweep)
    check_whole(sweep, undisturbed)


def processes_of(session: int) -> set[int]:
    """All that belong to a session: Ray's workers are in groups of their own."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of = stat.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        if int(of) == session and state != "Z":
            found.add(int(stat.parent.name))
    return found


def test_a_signal_to_the_whole_process_group_ends_the_sweep_in_order(tmp_path):
    """As `timeout` and schedulers send it: Ray's processes are in the driver's group too."""
    sweep = Sweep(tmp_path)
    process = sweep.start("--no-baselines")
    wait_until(lambda: sweep.progress()[0] > 0, "a commit", progress=sweep.progress, every=0.01)
    os.killpg(process.pid, signal.SIGTERM)
    output = sweep.end_of(process)
    assert process.returncode == 130, output
    assert "Traceback" not in output and "--name survivor" in output
    begun = {folder.parent.name for folder in sweep.folder.glob("trials/*/config.json")}
    outcomes = sweep.outcomes()
    assert begun == outcomes.keys()
    assert "killed" in {outcome["outcome"] for outcome in outcomes.values()}
    assert (sweep.folder / "report" / "report.html").exists()
    assert "RUNNING" not in {status for _, status, _ in sweep.runs()}
    wait_until(lambda: not processes_of(process.pid), "all processes of the sweep to end", 30)
