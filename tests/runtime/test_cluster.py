"""Joining and starting Ray, and what a cluster says of its nodes."""

import importlib
import os
import queue
import socket
import time
from types import SimpleNamespace

import pytest
import ray
from ray.core.generated.common_pb2 import NODE_OUT_OF_MEMORY
from ray.core.generated.gcs_pb2 import WorkerTableData

from raydiff import runtime
from raydiff.runtime import cluster

UV = "RAY_ENABLE_UV_RUN_RUNTIME_ENV"


@pytest.mark.parametrize(
    ("error", "address", "remedy"),
    [
        (Exception("The current node timed out during startup.\nThis could happen because of much."), "", "of much."),
        (PermissionError(13, "Permission denied", "/nonexistent"), "", "HOME .* RAY_TMPDIR .* RAY_AUTH_TOKEN_PATH"),
        (OSError("AF_UNIX path length cannot exceed 107 bytes"), "", "RAY_TMPDIR .at most 40 characters.: set"),
        (ConnectionError("Could not reach the GCS"), "10.0.0.1:6379", "unset RAY_ADDRESS=10.0.0.1:6379"),
        (RuntimeError("Version mismatch: The cluster was started with Ray: 2.9"), "h:1", "2.9; unset RAY_ADDRESS=h:1"),
        (AssertionError, "ray://h:10001", "`ray job submit`"),
    ],
)
def test_a_ray_that_does_not_start_is_one_sentence_with_a_remedy(error, address, remedy, monkeypatch):
    def init(**_):
        raise error

    monkeypatch.setattr(cluster.ray, "init", init)
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ValueError, match=rf"^[^\n]*{remedy}[^\n]*$"), cluster.join_cluster():
        pass


@pytest.mark.ray
def test_a_ray_of_this_process_is_joined_and_left_as_it_was(workers):
    with cluster.join_cluster() as nodes:
        assert nodes[0]["CPU"] == 4
    assert ray.is_initialized()


@pytest.mark.ray
def test_a_task_that_runs_a_sweep_keeps_its_resources(workers):
    counted = ray.remote(num_cpus=1)(lambda: [node["CPU"] for node in cluster.list_nodes().values()])
    assert ray.get(counted.remote(), timeout=60) == [3]


@pytest.mark.ray
def test_no_process_was_killed_for_lack_of_memory(workers, monkeypatch):
    assert cluster.explain_memory_kill() == ""
    job, now = f"job ID={ray.get_runtime_context().get_job_id()}", int(1000 * time.time())
    kill = WorkerTableData(exit_type=NODE_OUT_OF_MEMORY, exit_detail=f"Memory was 4 of 5 GB\n{job}", end_time_ms=now)
    old = WorkerTableData(exit_type=NODE_OUT_OF_MEMORY, exit_detail=f"old\n{job}", end_time_ms=now - 10**6)
    other = WorkerTableData(exit_type=NODE_OUT_OF_MEMORY, exit_detail="another job's", end_time_ms=now)
    rows = SimpleNamespace(get_worker_table=lambda: [row.SerializeToString() for row in (old, kill, other)])
    monkeypatch.setattr(cluster.ray._private.state.state, "_global_state_accessor", rows)
    assert cluster.explain_memory_kill() == f"Ray: Memory was 4 of 5 GB: {cluster.MORE_MEMORY}"


def test_a_head_that_is_gone_is_reported_in_time(monkeypatch):
    reasons = queue.Queue()
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        monkeypatch.setattr(cluster.ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address=address))
        monkeypatch.setattr(cluster, "HEAD_S", 0.05)
        monkeypatch.setattr(cluster, "CHECK_HEAD_S", 0.01)
        with cluster.watch_head(reasons.put):
            head.accept()
            assert reasons.empty()
            head.close()
            assert address in reasons.get(timeout=60)


@pytest.mark.parametrize(("environment", "packs"), [({}, "0"), ({"RAY_ADDRESS": "h:1"}, None), ({UV: "1"}, "1")])
def test_under_uv_run_a_local_ray_packs_nothing(environment, packs, monkeypatch):
    """On a cluster Ray needs the folder; what the user sets stays."""
    for name in ("RAY_ADDRESS", UV):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    importlib.reload(runtime)
    assert os.environ.get(UV) == packs


@pytest.mark.parametrize(
    ("labels", "alive", "grows"),
    [({"ray.io/node-group": "gpus"}, True, True), ({"ray.io/node-group": "gpus"}, False, False), ({}, True, False)],
)
def test_a_cluster_with_node_groups_may_grow(labels, alive, grows, monkeypatch):
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(cluster.ray, "nodes", lambda: [{"Labels": labels, "Alive": alive}])
    assert cluster.is_autoscaled() == grows
