"""An MLflow server on PostgreSQL, as cluster/mlflow.yaml has it: eight trials log at once, and none is lost."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import wait_until
from test_submit import free_port

from raydiff.experiment import config, overrides
from raydiff.formats.jsonl import Jsonl
from raydiff.tracking.writer import Mlflow

pytestmark = pytest.mark.survival
TRIALS, ROUNDS = 8, 40
BIN = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)  # Debian keeps it off the PATH


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes], how: signal.Signals) -> Iterator[None]:
    """End the process and its group afterwards."""
    try:
        yield
    finally:
        process.send_signal(how)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """The URI of an empty database on a server of its own. The server refuses to run as root."""
    assert BIN is not None
    user = "postgres" if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="raydiff-pg-"))  # the server's user cannot look into pytest's folders
    if user:
        shutil.chown(folder, user)
    port = free_port()
    initdb = [BIN / "initdb", "-D", folder / "data", "-U", "mlflow", "--auth=trust", "--no-sync"]
    subprocess.run(initdb, check=True, capture_output=True, user=user, cwd=folder)
    command = [BIN / "postgres", "-D", folder / "data", "-p", str(port), "-k", folder, "-h", "127.0.0.1"]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, user=user, cwd=folder, stdout=log, stderr=log, start_new_session=True)
    ready = [BIN / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
    with ended(server, signal.SIGINT):  # its fast shutdown
        wait_until(lambda: subprocess.run(ready, check=False).returncode == 0, "PostgreSQL")
        yield f"postgresql+psycopg2://mlflow@127.0.0.1:{port}/postgres"
    shutil.rmtree(folder)


@contextlib.contextmanager
def mlflow_server(database: str, folder: Path, *, port: int = 0, workers: int = 2) -> Iterator[str]:
    """The URI of an MLflow server over this database."""
    uri = f"http://127.0.0.1:{port or free_port()}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", uri.rpartition(":")[2]]
    command += ["--backend-store-uri", database, "--artifacts-destination", str(folder / "artifacts")]
    command += ["--workers", str(workers)]
    env = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # processes that only its other uses need
    with (folder / "mlflow.log").open("w") as log:
        server = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)

    def up() -> bool:
        assert server.poll() is None, (folder / "mlflow.log").read_text()
        try:
            return urllib.request.urlopen(f"{uri}/health", timeout=5).status == 200
        except (urllib.error.URLError, OSError):
            return False

    with ended(server, signal.SIGTERM):
        wait_until(up, "the MLflow server", 600)
        yield uri


def log_at_once(uri: str, folder: Path, experiment: config.Experiment) -> None:
    """Eight sweeps of one trial each, followed side by side while their files grow; then all of it must be there."""
    from mlflow import MlflowClient

    logs, followers = [], []
    for seed in range(TRIALS):
        trial = replace(experiment, seed=seed, data_digest="0" * 64)
        sweep = folder / "sweeps" / str(seed)
        at = sweep / "trials" / trial.digest
        logs.append(Jsonl(at / "metrics.jsonl"))
        (sweep / "sweep.json").write_text(json.dumps({"id": f"sweep {seed}"}))
        (at / "config.json").write_text(json.dumps(overrides.to_dict(trial)))
        followers.append(Mlflow(uri, experiment="at once", sweep=sweep, tags={}, artifacts=None))
    for follower in followers:
        follower.start()
    for follower in followers:
        follower.wait_ready()
        follower.begin()
    for step in range(ROUNDS):
        for seed, log in enumerate(logs):
            log.log(step, {"loss": seed + step / ROUNDS, "other": float(step)})
    for log in logs:
        outcome = {"outcome": "finished", "says": "epsilon inf", "server": {"epsilon": 1.0}}
        (log.path.parent / "outcome.json").write_text(json.dumps(outcome))
    for follower in followers:
        follower.close(600)
        assert follower.error is None and follower.end("FINISHED") is None

    client = MlflowClient(uri)
    found = client.get_experiment_by_name("at once")
    runs = client.search_runs([found.experiment_id], "tags.`raydiff.kind` = 'trial'")
    assert sorted(run.data.params["seed"] for run in runs) == [str(seed) for seed in range(TRIALS)]
    assert {run.info.status for run in runs} == {"FINISHED"}
    for run in runs:
        history = sorted((m.step, m.value) for m in client.get_metric_history(run.info.run_id, "loss"))
        assert history == [(step, int(run.data.params["seed"]) + step / ROUNDS) for step in range(ROUNDS)]


@pytest.mark.skipif(BIN is None, reason="there is no PostgreSQL server here (Debian: postgresql)")
@pytest.mark.skipif(importlib.util.find_spec("psycopg2") is None, reason="psycopg2 is not installed (psycopg2-binary)")
def test_eight_trials_log_at_once_and_none_is_lost(tmp_path: Path, tiny: config.Experiment) -> None:
    with postgres() as database, mlflow_server(database, tmp_path) as uri:
        log_at_once(uri, tmp_path, tiny)
