"""A small sweep in processes of its own, to be killed; and what it gives when nobody disturbs it."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raydiff.experiment import overrides

ROOT = Path(__file__).resolve().parents[2]
SWEEP = [
    "jobs/sweep.py",
    "digits",
    "--name",
    "survivor",
    "--method.local.steps",
    "60",
    "--method.server.steps",
    "60",
    "--method.model.network.width=64",
    "--evaluation.attack=false",
    "--grid",
    "method.epsilon=10,none",
]
TRIALS = 2 + 1 + 1  # PFDM, LocalOnly, FedAvg


@pytest.fixture(scope="session", autouse=True)
def one_secret() -> Iterator[None]:
    """So that two sweeps can be compared bit for bit: drivers, heads and their jobs inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(overrides.SECRET, "00112233445566778899aabbccddeeff")
        yield


@pytest.fixture(scope="session", autouse=True)
def one_store(migrated: Path) -> Iterator[None]:
    """Sweeps begin with an MLflow store that has its tables: making them takes each its seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sweep, "tables", migrated, raising=False)
        yield


class Sweep:
    """The sweep's command in a storage folder of its own."""

    tables: Path

    def __init__(self, storage: Path) -> None:
        shutil.copy(self.tables, storage / "mlflow.db")
        self.storage, self.folder = storage, storage / "sweeps" / "survivor"
        self.arguments = [*SWEEP, "--runtime.storage", str(storage)]
        self.mlflow = f"sqlite:///{storage}/mlflow.db"

    def start(self, *more: str) -> subprocess.Popen[str]:
        """Start it in a process group of its own."""
        env = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        env.pop("RAY_ADDRESS", None)
        return subprocess.Popen(
            [sys.executable, *self.arguments, *more],
            cwd=ROOT,
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def end_of(self, process: subprocess.Popen[str]) -> str:
        """What the command has said, once it has ended; it is killed where it stands still."""
        try:
            wait_until(lambda: process.poll() is not None, "the sweep to end", progress=self.progress)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]

    def outcomes(self) -> dict[str, dict]:
        """digest -> outcome.json of every trial that has one."""
        files = (self.folder / "trials").glob("*/outcome.json")
        return {f.parent.name: json.loads(f.read_text()) for f in files}

    def progress(self) -> tuple[int, int]:
        """(committed rounds, outcomes): changes as long as the sweep goes on."""
        return len(list(self.folder.glob("trials/*/commit-*.json"))), len(self.outcomes())

    def table(self) -> dict[str, tuple]:
        """digest -> (outcome, final numbers, guarantee), seconds apart."""
        return {
            digest: (
                o["outcome"],
                {k: v for k, v in o.get("final", {}).items() if not k.startswith("time/")},
                o.get("text"),
            )
            for digest, o in self.outcomes().items()
        }

    def runs(self) -> list[tuple[str, str, list[int]]]:
        """(kind, status, logged rounds) of every MLflow run."""
        client, found = self._runs()
        return [
            (
                run.data.tags["raydiff.kind"],
                run.info.status,
                [m.step for m in client.get_metric_history(run.info.run_id, "round")],
            )
            for run in found
        ]

    def tag(self, name: str, *, of: str) -> str:
        """A tag of a trial's MLflow run."""
        return next(run.data.tags[name] for run in self._runs()[1] if run.data.tags.get("raydiff.trial") == of)

    def _runs(self) -> tuple[Any, list[Any]]:
        from mlflow import MlflowClient

        client = MlflowClient(self.mlflow)
        experiment = client.get_experiment_by_name("raydiff-digits")
        return client, list(client.search_runs([experiment.experiment_id]))


def wait_until(
    condition: Callable[[], bool],
    what: str,
    seconds: float = 600.0,
    *,
    progress: Callable[[], object] = lambda: None,
    every: float = 0.1,
) -> None:
    """Look until it holds; a failure says what was waited for. The seconds begin anew whenever `progress` changes."""
    deadline, before = time.monotonic() + seconds, progress()
    while not condition():
        if (now := progress()) != before:
            deadline, before = time.monotonic() + seconds, now
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(every)


@pytest.fixture(scope="session")
def undisturbed(once, tmp_path_factory) -> dict[str, tuple]:
    """The table of the sweep when nobody disturbs it."""

    def make(path: Path) -> None:
        sweep = Sweep(tmp_path_factory.mktemp("undisturbed"))
        process = sweep.start("--runtime.pool", "local")  # without Ray it takes a third of the time
        output = sweep.end_of(process)
        assert process.returncode == 0, output
        table = sweep.table()
        assert len(table) == TRIALS and all(outcome == "finished" for outcome, _, _ in table.values())
        path.write_bytes(pickle.dumps(table))

    return pickle.loads(once("undisturbed", make).read_bytes())


def check_whole(sweep: Sweep, undisturbed: dict[str, tuple]) -> None:
    """The resumed sweep is the undisturbed one, and MLflow has each round of each trial once, nothing left running."""
    assert sweep.table() == undisturbed
    runs = sweep.runs()
    assert sorted(kind for kind, _, _ in runs) == ["sweep"] + ["trial"] * TRIALS
    assert {status for _, status, _ in runs} == {"FINISHED"}
    for kind, _, steps in runs:
        if kind == "trial":
            assert sorted(steps) == list(range(len(steps))) and steps


@pytest.fixture(scope="session")
def expected(once, tmp_path_factory) -> dict[str, tuple]:
    """What three trials of `nodes.Federated` end with when nobody disturbs them."""
    from nodes import undisturbed_state

    def make(path: Path) -> None:
        path.write_bytes(pickle.dumps(undisturbed_state(tmp_path_factory.mktemp("expected"))))

    return pickle.loads(once("expected", make).read_bytes())


@pytest.fixture(scope="session")
def three_nodes():
    """One cluster for all tests of a session: a node costs seconds."""
    from nodes import Nodes

    started = Nodes()
    yield started
    started.stop()


@pytest.fixture
def nodes(three_nodes, monkeypatch):
    """The cluster, complete, that a sweep joins; at the sweep's end nothing may be left behind on it."""
    import ray
    from nodes import left_behind

    from raydiff.runtime import tuner as sweep

    ray.shutdown()  # of other tests' local Ray
    three_nodes.complete()
    monkeypatch.setenv("RAY_ADDRESS", three_nodes.address)
    run = sweep.run

    def checked(*arguments):
        interrupted = run(*arguments)
        wait_until(lambda: not left_behind(), "everything to be given back", 60)
        return interrupted

    monkeypatch.setattr(sweep, "run", checked)
    yield three_nodes
    ray.shutdown()
