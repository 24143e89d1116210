"""Nodes join a sweep and are drained; two sweeps share a cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest
from conftest import ROOT, Sweep, wait_until
from nodes import COORDINATOR, Federated, check_unharmed

pytestmark = pytest.mark.survival


def drain(address: str, node_id: str) -> None:
    """What `ray drain-node` does, and whoever was told that a spot machine goes."""
    import ray
    from ray.core.generated.autoscaler_pb2 import DRAIN_NODE_REASON_PREEMPTION

    accepted, why = ray._raylet.GcsClient(address=address).drain_node(node_id, DRAIN_NODE_REASON_PREEMPTION, "spot", 0)
    assert accepted, why


class Beside:
    """A sweep in a process of its own on the cluster, and what it says; started `by` a command."""

    def __init__(self, sweep: Sweep, address: str, *more: str, by: Sequence[str] = ()) -> None:
        self.sweep, self._log = sweep, sweep.storage / "log"
        env = {**os.environ, "RAY_ADDRESS": address, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        with self._log.open("w") as to:
            self._process = subprocess.Popen(
                [*by, sys.executable, *sweep.arguments, *more],
                cwd=ROOT,
                env=env,
                stdout=to,
                stderr=to,
                start_new_session=True,
            )

    def __enter__(self) -> Beside:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    def said(self) -> str:
        """All that it has said so far."""
        return self._log.read_text()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for it; not any longer where the sweep has ended."""
        held: list[bool] = []  # asked anew it may not hold: a process's title can be misread while it is written

        def over() -> bool:
            held.append(condition())
            return held[-1] or self._process.poll() is not None

        wait_until(over, what, progress=self.sweep.progress)
        assert held[-1] or condition(), self.said()

    def interrupted(self) -> int:
        """Send SIGINT; its exit code, once it has ended."""
        self._process.send_signal(signal.SIGINT)
        self.until(lambda: self._process.poll() is not None, "the sweep to end")
        return int(self._process.returncode)

    def end(self) -> None:
        """Wait until it has ended well."""
        self.until(lambda: self._process.poll() is not None, "the sweep to end")
        assert self._process.returncode == 0, self.said()


def test_a_node_joins_and_another_is_drained(tmp_path, nodes, expected):
    """Two trials run side by side once the node is there; what ran on the one that left goes on, on the other."""
    first, second = nodes.worker_nodes()
    nodes.remove(second)
    with Beside(sweep := Federated(tmp_path, "--grid", "seed=0,1,2"), nodes.address, "--max-concurrent=2") as running:
        running.until(lambda: sweep.sent(1, 0), "round 1")
        coordinator, raylet = nodes.only(COORDINATOR)
        os.kill(coordinator, signal.SIGSTOP)  # so that it is still there when the node is
        nodes.complete()
        both = "a trial on the node that has joined"
        running.until(lambda: {of for _, of in nodes.processes(COORDINATOR)} > {raylet}, both)
        assert "running up to 2 trials concurrently\n" in running.said()
        drain(nodes.address, first.node_id)
        running.until(lambda: "running up to 1 trial concurrently\n" in running.said(), "a line on it")
        nodes.kill(raylet)
        running.end()
    assert "its processes were lost; it goes on after round" in running.said()
    check_unharmed(sweep, expected, trials=3)


def test_a_second_sweep_on_the_cluster_gets_its_part(tmp_path, nodes):
    """It begins while the first, which had all nodes, has trials that have not begun."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first, second = (
        Federated(tmp_path / "a", "--grid", "seed=0,1,2"),
        Federated(tmp_path / "b", "--grid", "seed=0"),
    )

    def begun(sweep: Sweep) -> int:
        return len(list(sweep.folder.glob("trials/*/config.json")))

    with Beside(first, nodes.address, "--max-concurrent=8") as a:
        a.until(lambda: begun(first) == 2, "the first sweep to have all nodes")
        one, other = (pid for pid, _ in nodes.processes(COORDINATOR))
        for pid in (one, other):  # until the second sweep is there, and waits
            os.kill(pid, signal.SIGSTOP)
        with Beside(second, nodes.address, "--max-concurrent=8") as b:
            shared = "running up to 1 trial concurrently, beside 1 other job(s) on the cluster\n"
            b.until(lambda: shared in b.said(), "the second sweep to see the first")
            a.until(lambda: shared in a.said(), "the first sweep to see the second")
            os.kill(one, signal.SIGCONT)
            b.until(lambda: begun(second) == 1, "the second sweep to begin")
            assert begun(first) == 2
            os.kill(other, signal.SIGCONT)
            b.end()
        a.end()
