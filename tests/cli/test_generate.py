"""The job as people call it; above all, killed in the middle and called again."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raydiff.cli import generate
from raydiff.data.datasets import Data, load_dataset
from raydiff.runtime import sweep_folder
from raydiff.tracking import mlflow_models

ROOT = Path(__file__).resolve().parents[2]

PARTS = 4


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def arguments(storage: Any, out: Path) -> list[str]:
    return ["pfdm", "--num", str(1000 * PARTS), "--out", str(out), "--storage", str(storage.root)]


def start(storage: Any, out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "raydiff", "generate", *arguments(storage, out)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.survival
def test_killed_and_called_again_it_gives_the_same_files(
    storage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the process that nobody disturbed."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert generate.main(arguments(storage, whole)) == 0
    assert len(files(whole)) == PARTS + 1
    assert "\n1,000 of 4,000 samples\n" in capsys.readouterr().out
    victim = start(storage, cut)
    assert victim.stdout is not None
    for line in victim.stdout:
        if line.startswith("2,000 of "):
            victim.send_signal(signal.SIGKILL)
            break
    victim.communicate()
    assert victim.returncode == -signal.SIGKILL
    assert 2 <= len(list(cut.glob("train-*"))) < PARTS
    output, _ = (again := start(storage, cut)).communicate()
    assert again.returncode == 0 and not output.startswith("0 of "), output
    assert files(cut) == files(whole)
    rows = load_dataset(Data(name=str(cut), test=0, public=0, validation=0, calibration=0)).splits["train"]
    assert len(rows) == 1000 * PARTS


def test_where_it_writes_and_what_it_says(
    storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    digest = storage.folder("pfdm").name
    run = [digest[:8], "--num", "2", "--per-class", "--storage", str(storage.root)]
    assert generate.main(run) == generate.main([*run, "--client", "1"]) == 0
    assert generate.main([*run, "--source", "global"]) == 0
    out = capsys.readouterr().out
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == [f"samples-{digest[:8]}-{whose}" for whose in ("client0", "client1", "global")]
    assert f"samples: {names[0]} (privacy: none)" in out and f"samples: {names[2]} (privacy: epsilon 5.97 (per" in out
    assert f"--data.name {tmp_path / names[0]}" in out


@pytest.mark.slow
def test_a_run_of_mlflow(
    copied, tiny, migrated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its sampler logged by the follower, logged again by the job, and its samples written."""
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shutil.copy(migrated, copied.root / "mlflow.db")
    folder = copied.finish("measured", tiny)
    about = {"experiment": "mine", "command": ["raydiff"]}
    follower = sweep_folder.build_writer(folder.parents[1], "digits", base=tiny, about=about, swept={})
    follower.start()
    follower.wait_ready()
    follower.begin()
    follower.close()
    assert follower.end("FINISHED") is None
    run, client = mlflow_models.find_run(follower.uri, folder), MlflowClient(follower.uri)
    logged = client.search_logged_models([client.get_run(run).info.experiment_id])
    assert [m.name for m in logged] == ["sampler"]
    at = ["--storage", str(copied.root)]
    assert generate.main([run, "--log-model", "--source", "global", *at]) == 0
    assert f'mlflow.pyfunc.load_model("runs:/{run}/sampler-global")' in capsys.readouterr().out
    assert client.get_run(run).data.tags["raydiff.privacy.sampler-global"].startswith("epsilon 5.97 (per example")
    assert generate.main([run, "--num", "3", "--out", str(tmp_path / "out"), *at]) == 0
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 1
