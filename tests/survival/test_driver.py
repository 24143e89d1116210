"""The driver dies, or is asked to stop; the same command with --resume gives the undisturbed table."""

from __future__ import annotations

import os
import signal

import pytest
from conftest import Sweep, check_whole, wait_until

pytestmark = pytest.mark.survival


def kill_group(process) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def half_way(sweep: Sweep) -> bool:
    return len(sweep.outcomes()) >= 3


def resume(sweep: Sweep) -> str:
    process = sweep.start("--resume")
    output = sweep.end_of(process)
    assert process.returncode == 0, output
    return output


def test_a_killed_driver_is_resumed(tmp_path, undisturbed):
    sweep = Sweep(tmp_path)
    process = sweep.start()
    wait_until(lambda: half_way(sweep), "three outcomes", progress=sweep.progress)
    kill_group(process)
    assert 3 <= len(sweep.outcomes()) < len(undisturbed)
    output = resume(sweep)
    assert "Traceback" not in output
    check_whole(sweep, undisturbed)


def test_an_interrupted_driver_says_how_to_resume_and_is_resumed(tmp_path, undisturbed):
    sweep = Sweep(tmp_path)
    process = sweep.start()
    wait_until(lambda: half_way(sweep), "three outcomes", progress=sweep.progress)
    process.send_signal(signal.SIGINT)
    output = sweep.end_of(process)
    assert process.returncode == 130, output
    assert "--name survivor" in output and output.rstrip().splitlines()[-2].endswith("--resume")
    assert "Traceback" not in output
    assert "RUNNING" not in {status for _, status, _ in sweep.runs()}
    assert 3 <= sum(outcome["outcome"] == "finished" for outcome in sweep.outcomes().values()) < len(undisturbed)
    resume(sweep)
    check_whole(sweep, undisturbed)
