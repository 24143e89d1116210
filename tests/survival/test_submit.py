"""`ray job submit` against a real cluster, with Ray's token authentication on: stopped, submitted again, finished."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, TRIALS, Sweep, check_whole, wait_until

pytestmark = pytest.mark.survival
ENDED = ("stopped", "succeeded", "failed")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture
def head(tmp_path_factory):
    """The environment of a client of a local head, which is ended afterwards by its process id."""
    home = tmp_path_factory.mktemp("h")
    port, dashboard = free_port(), free_port()
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    env |= {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{env['PATH']}",  # the job's `python` is the one that the head finds
        "RAY_AUTH_MODE": "token",
        "OMP_NUM_THREADS": "1",
        "RAY_worker_niceness": "0",
        "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{dashboard}",
    }
    subprocess.run(["ray", "get-auth-token", "--generate"], env=env, check=True, capture_output=True)
    command = ["ray", "start", "--head", "--block", "--num-cpus=2", f"--port={port}", f"--dashboard-port={dashboard}"]
    command += ["--ray-client-server-port", str(free_port()), "--disable-usage-stats"]
    # any free port: an agent that finds its own taken, as by the Ray of this very process, lives on and takes no jobs
    command += ["--dashboard-agent-listen-port=0"]
    log = (home / "head.log").open("w")
    process = subprocess.Popen(command, env=env, start_new_session=True, stdout=log, stderr=log)
    try:
        wait_until(lambda: job(env, "list").returncode == 0, "the head's job server")
        yield env
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def job(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ray", "job", *arguments], env=env, cwd=ROOT, capture_output=True, text=True, check=False)


def status(env: dict[str, str], name: str) -> str:
    done = job(env, "status", name)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(
        (s for s in ENDED if f"Job '{name}' was {s}" in done.stdout or f"Job '{name}' {s}" in done.stdout), "running"
    )


def submit(env: dict[str, str], name: str, sweep: Sweep, *more: str) -> None:
    options = ["--no-wait", "--working-dir", ".", "--submission-id", name, "--runtime-env", "cluster/runtime_env.yaml"]

    def taken() -> bool:
        done = job(env, "submit", *options, "--", "python", *sweep.arguments, *more)
        if "No available agent" in done.stderr:  # the head answers before its node's agent has registered
            return False
        assert done.returncode == 0, done.stdout + done.stderr
        return True

    wait_until(taken, "an agent that takes the job")


def test_a_submitted_sweep_is_stopped_and_continued(tmp_path, head, undisturbed):
    sweep = Sweep(tmp_path)
    submit(head, "first", sweep)  # the submitting process is gone at once; the job goes on
    wait_until(lambda: len(sweep.outcomes()) >= 2, "two outcomes", progress=sweep.progress)
    stopped = job(head, "stop", "first")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    wait_until(lambda: status(head, "first") == "stopped", "the job to be stopped")
    log = job(head, "logs", "first").stdout
    assert f"[1/{TRIALS}]" in log and "ready after" in log
    assert "continue with: python jobs/sweep.py" in log and "0011223344" not in log

    submit(head, "second", sweep, "--resume")
    wait_until(lambda: status(head, "second") in ENDED, "the second job to end", progress=sweep.progress, every=2.0)
    assert status(head, "second") == "succeeded", job(head, "logs", "second").stdout
    assert "fd_cnn" in job(head, "logs", "second").stdout
    check_whole(sweep, undisturbed)
