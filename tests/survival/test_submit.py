"""`ray job submit` on `cluster/local.sh`: a head without CPUs and two nodes, with Ray's token authentication. What was
submitted is stopped and submitted again, loses a node, and finishes."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Sweep, wait_until
from nodes import Federated, check_unharmed

pytestmark = pytest.mark.survival
ENDED = ("STOPPED", "SUCCEEDED", "FAILED")


def local(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "cluster" / "local.sh"), *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The environment in which `ray` reaches the cluster; a home of its own, so that no token of the user's helps."""
    home = tmp_path_factory.mktemp("home")
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    env |= {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{env['PATH']}",
        "RAYDIFF_CLUSTER": str(home / "cluster"),
        "OMP_NUM_THREADS": "1",
        "RAY_worker_niceness": "0",
    }
    started = local(env, "start", "2", "1")
    assert started.returncode == 0, started.stdout + started.stderr
    try:
        output = subprocess.run(
            ["bash", "-c", f"eval \"$('{ROOT}/cluster/local.sh' env)\" && env -0"],
            env=env,
            capture_output=True,
            check=True,
        )
        yield dict(line.split("=", 1) for line in output.stdout.decode().split("\0") if line)
    finally:
        pids = [int(line.split()[0]) for line in (home / "cluster" / "pids").read_text().splitlines()]
        stopped = local(env, "stop")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert sorted(p.suffix for p in (home / "cluster").iterdir()) == [".log"] * 3  # the token is gone


def job(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ray", "job", *arguments], env=env, cwd=ROOT, capture_output=True, text=True, check=False)


def api(env: dict[str, str], path: str, method: str = "GET") -> Any:
    """What the job server answers to what `ray job` asks it, without the seconds that each `ray` takes to start."""
    token = Path(env["RAY_AUTH_TOKEN_PATH"]).read_text()
    asked = urllib.request.Request(f"{env['RAY_API_SERVER_ADDRESS']}/api/jobs/{path}", method=method)
    asked.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(asked) as answer:
        return json.load(answer)


def end_of(env: dict[str, str], name: str, sweep: Sweep) -> str:
    """How the job ended."""
    wait_until(lambda: api(env, name)["status"] in ENDED, f"the end of {name}", progress=sweep.progress)
    return str(api(env, name)["status"])


def submit(env: dict[str, str], name: str, sweep: Sweep, *more: str) -> None:
    options = ["--no-wait", "--working-dir", ".", "--submission-id", name, "--runtime-env", "cluster/runtime_env.yaml"]

    def taken() -> bool:
        done = job(env, "submit", *options, "--", "python", *sweep.arguments, *more)
        if "No available agent" in done.stderr:  # the head answers before its node's agent has registered
            return False
        assert done.returncode == 0, done.stdout + done.stderr
        return True

    wait_until(taken, "an agent that takes the job")


def commits(trial: Path) -> int:
    return len(list(trial.glob("commit-*.json")))


def test_a_submitted_sweep_is_stopped_continued_and_survives_the_loss_of_a_node(tmp_path, cluster, expected):
    again = local(cluster, "start")
    assert again.returncode == 2 and "running already" in again.stderr
    stranger = {k: v for k, v in cluster.items() if not k.startswith("RAY_AUTH")} | {"RAY_AUTH_MODE": "disabled"}
    refused = job(stranger, "list")
    assert refused.returncode != 0 and "Authentication required" in refused.stdout + refused.stderr

    sweep = Federated(tmp_path, "--grid", "seed=0,1,2")
    sweep.arguments += ["--runtime.workers=1", "--max-concurrent=2"]  # one on each node
    submit(cluster, "first", sweep)  # the submitting process is gone at once; the job goes on
    wait_until(lambda: sweep.progress()[0] >= 1, "a commit", progress=sweep.progress)
    assert api(cluster, "first/stop", "POST") == {"stopped": True}
    assert end_of(cluster, "first", sweep) == "STOPPED"
    log = job(cluster, "logs", "first").stdout
    assert "ready after" in log and "continue with: python jobs/sweep.py" in log and "0011223344" not in log

    before = {folder: commits(folder) for folder in sweep.folder.glob("trials/*")}
    submit(cluster, "second", sweep, "--resume")
    both = "both nodes to have a trial, and another one to wait"  # One of the three may have ended by then.
    wait_until(lambda: sum(commits(f) > n for f, n in before.items()) >= 2, both, progress=sweep.progress)
    leader = int((Path(cluster["RAYDIFF_CLUSTER"]) / "pids").read_text().splitlines()[-1].split()[0])
    os.killpg(leader, signal.SIGKILL)
    ended, log = end_of(cluster, "second", sweep), job(cluster, "logs", "second").stdout
    assert ended == "SUCCEEDED" and "its processes were lost; it goes on after round" in log, log
    check_unharmed(sweep, expected, trials=3)
