"""`python jobs/run.py` whose server is trained by several processes."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from raydiff.experiment import overrides
from raydiff.formats.metric_records import columns, read_metrics

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow  # each has a Ray of its own


def start(storage: Path, name: str, *arguments: str, job: str = "run") -> subprocess.Popen[str]:
    command = [sys.executable, f"jobs/{job}.py", "digits", "--name", name, "--runtime.storage", str(storage)]
    short = ["--method.local.steps", "20", "--method.server.steps", "200", "--method.server-rounds", "1"]
    few = ["--data.train", "60", "--data.public", "80", "--partition", "iid"]  # which may lack a class
    return subprocess.Popen(
        [*command, *short, *few, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", overrides.SECRET: "00" * 16},
    )


def trial_of(storage: Path, name: str) -> Path:
    (folder,) = (storage / "sweeps" / name / "trials").iterdir()
    return folder


def losses(folder: Path) -> list[float]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    rounds = [columns(read_metrics(line["metrics"])) for line in lines]
    return [metrics["server/loss"] for metrics in rounds if "server/loss" in metrics]


def test_two_processes_train_the_server_as_one_does(tmp_path: Path) -> None:
    """In a sweep too. Without noise, which would be another trial's, both train on the same uploads; each process draws
    its batches."""
    one, two = ("--runtime.pool", "local"), ("--numerics.server-workers", "2", "--no-baselines", "--grid", "seed=0")
    for name, job, more in (("one", "run", one), ("two", "sweep", two)):
        process = start(tmp_path, name, *more, "--method.epsilon", "none", job=job)
        output, _ = process.communicate()
        assert process.returncode == 0, output
    (alone,), (together,) = (losses(trial_of(tmp_path, name)) for name in ("one", "two"))
    assert together == pytest.approx(alone, rel=0.02)
    assert not (trial_of(tmp_path, "two") / "train").exists()


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize(
    ("means", "number"),
    [("--numerics.server-workers 2", signal.SIGINT), ("--runtime.pool local", signal.SIGHUP)],
)
def test_an_interrupt_while_the_server_trains_is_no_success(tmp_path: Path, means: str, number: signal.Signals) -> None:
    process = start(tmp_path, "long", *means.split(), "--method.server.steps", "1000000", "--protocol-only")
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    assert any(line.startswith("round 1/2") for line in lines), "".join(lines)
    process.send_signal(number)
    output, _ = process.communicate()
    assert process.returncode == 128 + number, output
    assert "--name long" in output and "Traceback" not in output
    outcome = json.loads((trial_of(tmp_path, "long") / "outcome.json").read_text())
    assert outcome["outcome"] == "killed" and outcome["server"]["epsilon"] > 0
    with sqlite3.connect(tmp_path / "mlflow.db") as store:
        assert {status for (status,) in store.execute("select status from runs")} == {"KILLED"}
