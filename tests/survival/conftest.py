"""A small sweep in processes of its own, to be killed; and what it gives when nobody disturbs it."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from raydiff.experiment import overrides

ROOT = Path(__file__).resolve().parents[2]
SWEEP = ["jobs/sweep.py", "digits", "--name", "survivor", "--grid", "method.epsilon=10,none"]
SWEEP += ["--method.local.steps=60", "--method.server.steps=60", "--method.model.network.width=64"]
SWEEP += ["--evaluation.attacks=none"]
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
                outcome["outcome"],
                [metric for metric in outcome.get("final", []) if metric["name"] != "time/seconds"],
                outcome.get("text"),
            )
            for digest, outcome in self.outcomes().items()
        }

    def runs(self) -> list[tuple[str, str, list[int]]]:
        """(kind, status, logged rounds) of every MLflow run."""
        client, runs = self._runs()
        return [
            (
                run.data.tags["raydiff.kind"],
                run.info.status,
                [m.step for m in client.get_metric_history(run.info.run_id, "round")],
            )
            for run in runs
        ]

    def logged(self) -> list[list[int]]:
        """The logged rounds of every trial. MLflow must have one run of the sweep, and nothing left running."""
        runs = self.runs()
        assert [kind for kind, _, _ in runs].count("sweep") == 1
        assert {status for _, status, _ in runs} == {"FINISHED"}
        return [sorted(steps) for kind, _, steps in runs if kind == "trial"]

    def tag(self, name: str, *, of: str) -> str:
        """A tag of a trial's MLflow run."""
        return next(run.data.tags[name] for run in self._runs()[1] if run.data.tags.get("raydiff.trial") == of)

    def _runs(self) -> tuple[Any, list[Any]]:
        from mlflow import MlflowClient

        client = MlflowClient(self.mlflow)
        experiment = client.get_experiment_by_name("raydiff-digits")
        return client, list(client.search_runs([experiment.experiment_id]))


class Command:
    """The sweep's command in a process group of its own, started `by` another command; on a local Ray, or on the
    cluster at this address."""

    def __init__(self, sweep: Sweep, *more: str, address: str | None = None, by: Sequence[str] = ()) -> None:
        self.sweep, self._log = sweep, sweep.storage / f"log-{time.monotonic_ns()}"
        env = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | {"OMP_NUM_THREADS": "1"}
        env |= {"PYTHONUNBUFFERED": "1", **({"RAY_ADDRESS": address} if address else {})}
        command = [*by, sys.executable, *sweep.arguments, *more]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log, start_new_session=True)

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill the process group."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def output(self) -> str:
        """All that it has printed so far."""
        return self._log.read_text()

    def until(self, condition: Callable[[], bool], what: str, *, every: float = 0.1) -> None:
        """Wait for it; not any longer where the sweep has ended."""
        held: list[bool] = []  # asked anew it may not hold: a process's title can be misread while it is written

        def over() -> bool:
            held.append(condition())
            return held[-1] or self.process.poll() is not None

        wait_until(over, what, progress=self.sweep.progress, every=every)
        assert held[-1] or condition(), self.output()

    def end(self, code: int = 0) -> str:
        """Wait until it has ended with this code, without a traceback; all that it has printed."""
        self.until(lambda: self.process.poll() is not None, "the sweep to end")
        assert self.process.returncode == code and "Traceback" not in self.output(), self.output()
        return self.output()


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
        with Command(sweep, "--runtime.pool", "local") as command:  # without Ray it takes a third of the time
            command.end()
        table = sweep.table()
        assert len(table) == TRIALS and all(outcome == "finished" for outcome, _, _ in table.values())
        path.write_bytes(pickle.dumps(table))

    return pickle.loads(once("undisturbed", make).read_bytes())


def check_whole(sweep: Sweep, undisturbed: dict[str, tuple]) -> None:
    """The resumed sweep is the undisturbed one, and MLflow has each round of each trial once."""
    assert sweep.table() == undisturbed
    logged = sweep.logged()
    assert len(logged) == TRIALS and all(steps and steps == list(range(len(steps))) for steps in logged)


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

    started = Nodes(at_exit=False)  # A test's second thread adds nodes too.
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
    run = sweep.run_on_tune

    def checked(*arguments):
        ended = run(*arguments)
        wait_until(lambda: not left_behind(), "everything to be given back", 60)
        return ended

    monkeypatch.setattr(sweep, "run_on_tune", checked)
    yield three_nodes
    ray.shutdown()
