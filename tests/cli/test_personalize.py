"""The job as people call it: what it prints, keeps and logs, and what it refuses."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raydiff.cli import personalize
from raydiff.experiment.config import Experiment
from raydiff.models.training import Training
from raydiff.papers.spire.method import SPIRE
from raydiff.results import personalization
from raydiff.results.finished import open_finished
from raydiff.runtime import sweep_folder
from raydiff.tracking import mlflow_models

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def shop(storage, tiny: Experiment, tmp_path_factory: pytest.TempPathFactory):
    """The storage's sweeps and spire, for this file to write to: the feature network is trained once for all."""
    root = tmp_path_factory.mktemp("shop") / "storage"
    shutil.copytree(storage.root, root)
    made = type(storage)(root)
    method = SPIRE(model=tiny.method.model, local=Training(steps=8, batch=8), rounds=2)
    made.finish("spire", replace(tiny, method=method, evaluation=None))
    return made


def call(shop: Any, command: str) -> list[str]:
    return [*command.split(), "--storage", str(shop.root)]


def made(shop: Any, sweep: str) -> Path:
    (folder,) = (shop.sweeps / sweep / "newcomers").iterdir()
    return folder


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.open()))


def test_what_it_prints_and_keeps(shop, capsys: pytest.CaptureFixture[str]) -> None:
    """Twice the same: the folder is the request's, and all but the seconds are equal."""
    command = call(shop, "fedavg --classes 2,7 --records 20 --epochs 2,1 --lr 1e-3,1e-2 --no-mlflow")
    assert personalize.main(command) == 0
    said = capsys.readouterr().out
    digest, folder = shop.folder("fedavg").name, made(shop, "fedavg")
    assert said.startswith(f"FedAvg {digest[:8]}, a new client: 20 records of 2 7; 16 held out\n")
    assert "held out: the test split" in said and f"files in {folder}; " in said
    assert "it trains 12,000 of 12,000 parameters (100.000%)" in said
    rows = table(folder / "curves.csv")
    assert [(r["learning_rate"], r["epoch"], r["steps"]) for r in rows] == [
        (rate, epoch, steps) for rate in ("0.001", "0.01") for epoch, steps in (("0", "0"), ("1", "3"), ("2", "6"))
    ]
    assert rows[0]["kd_cnn"] == rows[3]["kd_cnn"] != rows[5]["kd_cnn"] and rows[0]["loss"] == "" != rows[1]["loss"]
    assert len(re.findall(r"^ +0\.001 ", said, re.M)) == 3 and "  -  " in said
    assert folder.name.startswith(f"{digest[:8]}-")
    parts = [f"personal-{rate}.{end}" for rate in ("0.001", "0.01") for end in ("json", "safetensors")]
    assert sorted(p.name for p in folder.iterdir()) == sorted(["curves.csv", "curves.png", *parts])
    card = json.loads((folder / "personal-0.01.json").read_text())
    assert card["measured"]["kd_cnn"] == float(rows[5]["kd_cnn"]) and "raydiff" in card["made_by"]
    personalization.reopen(open_finished(shop.folder("fedavg")), folder / "personal-0.01.safetensors")
    before = {p.name: p.read_bytes() for p in folder.glob("*.safetensors")}
    assert personalize.main(command) == 0
    assert made(shop, "fedavg") == folder and {p.name: p.read_bytes() for p in folder.glob("*.safetensors")} == before
    unlike = ({k for k in a if a[k] != b[k]} for a, b in zip(rows, table(folder / "curves.csv"), strict=True))
    assert set().union(*unlike) <= {"seconds"}


def test_with_an_embedding_nobody_forgets(shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = f"spire --records 5 --classes 2,7 --epochs 1 --lr 1 --forgetting --no-mlflow --out {out}"
    assert personalize.main(call(shop, command)) == 0
    said = capsys.readouterr().out.splitlines()
    assert "it trains 32 of 12,032 parameters (0.266%); the others stay as the server's" in said
    start = said.index("forgetting: the old clients, were the new client's model after its last epoch the shared one")
    assert said[start + 1].split() == ["learning_rate", "client", "kd_cnn_before", "kd_cnn_after", "kd_cnn_change"]
    for line, client in zip(said[start + 2 : start + 4], ("0", "1"), strict=True):
        assert line.split()[:2] == ["1", client] and line.split()[-1] == "0"
    assert [r["kd_cnn_change"] for r in table(out / "forgetting.csv")] == ["0.0", "0.0"]


def test_a_rate_that_diverges_does_not_stop_the_others(
    shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = f"fedavg --records 5 --classes 2,7 --epochs 3 --lr 1e30,1e-3 --forgetting --no-mlflow --out {out}"
    assert personalize.main(call(shop, command)) == 0
    said = capsys.readouterr().out
    assert "\n1e+30: the loss became nan at step " in said
    assert [(r["learning_rate"], r["epoch"]) for r in table(out / "curves.csv")] == [
        ("1e+30", "0"),
        ("0.001", "0"),
        ("0.001", "3"),
    ]
    assert [p.name for p in out.glob("*.safetensors")] == ["personal-0.001.safetensors"]
    lost = table(out / "forgetting.csv")
    assert [(r["learning_rate"], r["client"]) for r in lost] == [("0.001", "0"), ("0.001", "1")]
    assert all(float(r["kd_cnn_change"]) != 0 for r in lost)


def test_its_run_is_the_trial_s_child(shop, migrated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One metric a reading and rate with the epoch as its step; asked again, it takes the earlier one's place."""
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shutil.copy(migrated, shop.root / "mlflow.db")
    folder = shop.folder("spire")
    experiment = open_finished(folder).trial.experiment
    follower = sweep_folder.mlflow(
        shop.sweeps / "spire", "digits", experiment, experiment="raydiff-digits", samplers=False
    )
    follower.start()
    follower.wait_ready()
    follower.begin()
    follower.close()
    assert follower.error is None
    client, parent = MlflowClient(follower.uri), mlflow_models.find_run(follower.uri, folder)
    command = call(shop, f"{parent} --records 6 --classes 2,7 --epochs 1,2 --lr 0.5,1 --forgetting")
    for _ in range(2):
        assert personalize.main(command) == 0
        children = client.search_runs(["1"], f"tags.`mlflow.parentRunId` = '{parent}'")
        assert len(children) == 1
    (child,) = children
    rows = table(made(shop, "spire") / "curves.csv")
    for rate in ("0.5", "1.0"):
        mine = [(int(r["epoch"]), float(r["kd_cnn"])) for r in rows if r["learning_rate"] == rate]
        history = client.get_metric_history(child.info.run_id, f"kd_cnn/lr_{float(rate):g}")
        assert [(m.step, m.value) for m in history] == mine and [step for step, _ in mine] == [0, 1, 2]
    assert [m.step for m in client.get_metric_history(child.info.run_id, "loss/lr_1")] == [1, 2]
    assert child.data.metrics["kd_cnn_change/client_1/lr_1"] == 0
    tags, params = child.data.tags, child.data.params
    assert (tags["raydiff.privacy"], tags["raydiff.kind"]) == ("none", "newcomer")
    assert (params["classes"], params["records"], params["parameters"]) == ("2 7", "6", "32")
    assert child.info.status == "FINISHED"
    attached = {f.path for f in client.list_artifacts(child.info.run_id)}
    assert attached == {"curves.csv", "curves.png", "forgetting.csv"}
    assert mlflow_models.find_run(follower.uri, folder) == parent  # and not the child


# --- refusals ---
