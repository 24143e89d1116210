"""The network to a node is cut while its trial runs: what is cut off computes on and sees the storage, and the trial
goes on elsewhere."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Command, wait_until
from networks import Parted, possible
from nodes import COORDINATOR, Federated, check_unharmed

pytestmark = pytest.mark.survival


@pytest.fixture
def parted() -> Iterator[Parted]:
    if not possible():
        pytest.skip("needs root and `ip netns`, to make networks")
    cluster = Parted()
    yield cluster
    cluster.stop()


def test_a_trial_that_is_cut_off_counts_once(tmp_path: Path, parted: Parted, expected: dict[str, tuple]) -> None:
    """Its coordinator stands still in round 1, and goes on when the trial has long gone on on the other side."""
    sweep = Federated(tmp_path, "--grid", "seed=0")
    parted.far()
    with Command(sweep, "--max-concurrent=1", address=parted.address, by=parted.by()) as running:
        running.until(lambda: sweep.sent(1, 0), "round 1")
        [(late, _)] = parted.processes(COORDINATOR)
        os.kill(late, signal.SIGSTOP)
        commits = sweep.progress()
        parted.near()
        parted.cut()
        running.until(lambda: sweep.progress() > (commits[0] + 1, 0), "two rounds more on the other side")
        assert "its processes were lost; it goes on after round" in running.output()
        os.kill(late, signal.SIGCONT)
        wait_until(lambda: (late, parted.there) not in parted.processes(COORDINATOR), "the late round to end")
        assert (late, parted.there) in parted.processes("ray::Coordinator")  # It lives, and waits for the next.
        parted.join()
        running.end()
        wait_until(lambda: all(side == parted.here for _, side in parted.processes("ray::")), "the lost node to end")
    check_unharmed(sweep, expected, trials=1)
