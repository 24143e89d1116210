"""Nodes join a sweep, are drained, and are brought and taken by an autoscaler; two sweeps share a cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from conftest import ROOT, Sweep, wait_until
from nodes import COORDINATOR, Federated, check_unharmed
from test_submit import free_port

pytestmark = pytest.mark.survival
QUICK = ["--method.local.steps", "10", "--method.server.steps", "10", "--no-baselines"]
HEAD = "f" * 51 + "00000"  # what Ray's fake provider calls it


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


@pytest.fixture
def growing(tmp_path_factory):
    """(address of a head without CPUs whose autoscaler brings up to two nodes of one, the environment to join it).

    Ray's own AutoscalingCluster needs a file that its wheels do not have, and begins with `ray stop`, which ends every
    Ray of the user; so here is what it does, with its fake provider.
    """
    home, port = tmp_path_factory.mktemp("g"), free_port()
    config = {
        "cluster_name": "fake",
        "max_workers": 2,
        "idle_timeout_minutes": 0.1,
        "provider": {
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "launch_multiple": True,
            "head_node_id": HEAD,
            "gcs_address": f"127.0.0.1:{port}",
        },
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "cpu": {"resources": {"CPU": 1, "object_store_memory": 10**8}, "node_config": {}, "max_workers": 2},
        },
        "head_node_type": "ray.head.default",
        **{f"{of}setup_commands": [] for of in ("", "head_", "worker_")},
        **{f"{of}_start_ray_commands": [] for of in ("head", "worker")},
        **{name: [] for name in ("cluster_synced_files", "initialization_commands", "rsync_exclude", "rsync_filter")},
        **{name: {} for name in ("auth", "docker", "file_mounts")},
        "upscaling_speed": 1.0,
        "file_mounts_sync_continuously": False,
    }
    (home / "cluster.json").write_text(json.dumps(config))
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    env |= {"PATH": f"{Path(sys.executable).parent}:{env['PATH']}", "RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1"}
    fake = {"RAY_FAKE_CLUSTER": "1", "RAY_enable_autoscaler_v2": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
    fake |= {
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD,
        "RAY_CLOUD_INSTANCE_ID": HEAD,
        "RAY_NODE_TYPE_NAME": "ray.head.default",
    }
    command = ["ray", "start", "--head", "--block", "--num-cpus=0", "--num-gpus=0", f"--port={port}"]
    command += ["--disable-usage-stats", "--include-dashboard=false", "--ray-client-server-port", str(free_port())]
    command += ["--dashboard-agent-listen-port=0", "--min-worker-port=0", "--max-worker-port=0"]
    command += [f"--autoscaling-config={home / 'cluster.json'}"]
    log = home / "head.log"
    with log.open("w") as to:
        head = subprocess.Popen(command, env=env | fake, stdout=to, stderr=to, start_new_session=True)
    try:
        wait_until(lambda: head.poll() is not None or "Ray runtime started" in log.read_text(), "the head")
        assert head.poll() is None and alive(f"127.0.0.1:{port}", env) == 1, log.read_text()
        assert head.poll() is None, log.read_text()  # as it does where its autoscaler finds fault with the config
        yield f"127.0.0.1:{port}", env
    finally:
        head.send_signal(signal.SIGTERM)
        try:
            head.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(head.pid, signal.SIGKILL)


def alive(address: str, env: dict[str, str]) -> int:
    """Nodes of the cluster."""
    ask = f"import ray; ray.init('{address}', log_to_driver=False); print(sum(n['Alive'] for n in ray.nodes()))"
    said = subprocess.run([sys.executable, "-c", ask], env=env, capture_output=True, text=True, check=True)
    return int(said.stdout)


def test_a_sweep_on_a_cluster_without_nodes_waits_for_the_autoscaler_and_lets_its_nodes_go(tmp_path, growing):
    address, env = growing
    sweep = Sweep(tmp_path)
    sweep.arguments += ["--runtime.workers", "1", *QUICK, "--grid", "method.epsilon=10,none"]
    with Beside(sweep, address) as running:
        running.end()
    said = running.said()
    assert "a trial with 1 worker(s) needs 1 CPU; no node is large enough, waiting for the autoscaler" in said
    assert {outcome["outcome"] for outcome in sweep.outcomes().values()} == {"finished"}
    assert "running up to 2 trials concurrently" in said  # both were asked for
    wait_until(lambda: alive(address, env) == 1, "the nodes to be given back", 180, every=5)
