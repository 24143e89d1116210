"""Nodes join a sweep and are drained; two sweeps share a cluster."""

import os
import signal

import pytest
from conftest import Command, Sweep
from nodes import COORDINATOR, Federated, check_unharmed

pytestmark = pytest.mark.survival


def drain(address: str, node_id: str) -> None:
    """What `ray drain-node` does, and whoever was told that a spot machine goes."""
    import ray
    from ray.core.generated.autoscaler_pb2 import DRAIN_NODE_REASON_PREEMPTION

    accepted, why = ray._raylet.GcsClient(address=address).drain_node(node_id, DRAIN_NODE_REASON_PREEMPTION, "spot", 0)
    assert accepted, why


def test_a_node_joins_and_another_is_drained(tmp_path, nodes, expected):
    """Two trials run side by side once the node is there; what ran on the one that left goes on, on the other."""
    first, second = nodes.worker_nodes()
    nodes.remove(second)
    sweep = Federated(tmp_path, "--grid", "seed=0,1,2")
    with Command(sweep, "--max-concurrent=2", address=nodes.address) as running:
        running.until(lambda: sweep.sent(1, 0), "round 1")
        coordinator, raylet = nodes.only(COORDINATOR)
        os.kill(coordinator, signal.SIGSTOP)  # so that it is still there when the node is
        nodes.complete()
        both = "a trial on the node that has joined"
        running.until(lambda: {of for _, of in nodes.processes(COORDINATOR)} > {raylet}, both)
        assert "running up to 2 trials concurrently\n" in running.output()
        drain(nodes.address, first.node_id)
        line = "running up to 1 trial concurrently\n"  # It was printed at the start, too.
        running.until(lambda: running.output().count(line) == 2, "a line on it")
        nodes.kill(raylet)
        running.end()
    assert "its processes were lost; it goes on after round" in running.output()
    check_unharmed(sweep, expected, trials=3)


def test_a_second_sweep_waits_for_a_slot_of_the_first(tmp_path, nodes):
    """It begins when the first sweep has fewer trials left than slots, and both end."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first, second = Federated(tmp_path / "a"), Federated(tmp_path / "b", "--grid", "seed=0")

    def begun(sweep: Sweep) -> int:
        return len(list(sweep.folder.glob("trials/*/config.json")))

    with Command(first, "--max-concurrent=8", address=nodes.address) as a:
        a.until(lambda: begun(first) == 2, "the first sweep to have all nodes")
        one, other = (pid for pid, _ in nodes.processes(COORDINATOR))
        for pid in (one, other):  # until the second sweep is there, and waits
            os.kill(pid, signal.SIGSTOP)
        with Command(second, "--max-concurrent=8", address=nodes.address) as b:
            waits = "waiting for resources, which other jobs may hold"
            b.until(lambda: waits in b.output(), "the second sweep to wait")
            assert begun(second) == 0
            for pid in (one, other):
                os.kill(pid, signal.SIGCONT)
            b.end()
        a.end()
