"""`raydiff personalize`: what it prints, writes and logs."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from storages import Storage

from raydiff.cli import personalize
from raydiff.experiment.config import Experiment
from raydiff.models.training import Training
from raydiff.papers.spire.method import SPIRE
from raydiff.results.finished import open_finished
from raydiff.runtime import sweep_folder
from raydiff.tracking import mlflow_models


@pytest.fixture(scope="module")
def shop(storage: Storage, tiny: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Storage:
    """The storage's sweeps and spire, for this file to write to: the feature network is trained once for all."""
    root = tmp_path_factory.mktemp("shop") / "storage"
    shutil.copytree(storage.root, root)
    copy = Storage(root)
    method = SPIRE(model=tiny.method.model, local=Training(steps=8, batch=8), rounds=2)
    copy.finish("spire", replace(tiny, method=method, evaluation=None))
    return copy


def call(shop: Storage, command: str) -> list[str]:
    return [*command.split(), "--storage", str(shop.root)]


def folder_of(shop: Storage, sweep: str) -> Path:
    (folder,) = (shop.sweeps / sweep / "unseen").iterdir()
    return folder


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.open()))


def test_what_it_prints_and_keeps(shop: Storage, capsys: pytest.CaptureFixture[str]) -> None:
    """Twice the same: the folder is the request's, and all but the seconds are equal."""
    command = call(shop, "fedavg --classes 2,7 --records 20 --epochs 2,1 --lr 1e-3,1e-2 --no-mlflow")
    assert personalize.main(command) == 0
    output = capsys.readouterr().out
    digest, folder = shop.folder("fedavg").name, folder_of(shop, "fedavg")
    assert output.startswith(f"FedAvg {digest[:8]}, an unseen client: 20 records of 2 7; 16 held out\n")
    assert f"files in {folder}; " in output and "it trains 12,000 of 12,000 parameters (100.000%)" in output
    rows = table(folder / "curves.csv")
    assert [(r["learning_rate"], r["epoch"], r["steps"]) for r in rows] == [
        (rate, epoch, steps) for rate in ("0.001", "0.01") for epoch, steps in (("0", "0"), ("1", "3"), ("2", "6"))
    ]
    assert rows[0]["kd_cnn"] == rows[3]["kd_cnn"] != rows[5]["kd_cnn"] and rows[0]["loss"] == "" != rows[1]["loss"]
    parts = [f"personal-{rate}.{end}" for rate in ("0.001", "0.01") for end in ("json", "safetensors")]
    assert sorted(p.name for p in folder.iterdir()) == sorted(["curves.csv", "curves.png", *parts])
    card = json.loads((folder / "personal-0.01.json").read_text())
    assert card["measured"]["kd_cnn"] == float(rows[5]["kd_cnn"]) and "raydiff" in card["made_by"]
    before = {p.name: p.read_bytes() for p in folder.glob("*.safetensors")}
    assert personalize.main(command) == 0
    assert folder_of(shop, "fedavg") == folder
    assert {p.name: p.read_bytes() for p in folder.glob("*.safetensors")} == before
    unlike = ({k for k in a if a[k] != b[k]} for a, b in zip(rows, table(folder / "curves.csv"), strict=True))
    assert set().union(*unlike) <= {"seconds"}


def test_a_rate_that_diverges_does_not_stop_the_others(
    shop: Storage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = f"fedavg --records 5 --classes 2,7 --epochs 3 --lr 1e30,1e-3 --no-mlflow --out {out}"
    assert personalize.main(call(shop, command)) == 0
    assert "\n1e+30: the loss became nan at step " in capsys.readouterr().out
    rows = [(r["learning_rate"], r["epoch"]) for r in table(out / "curves.csv")]
    assert rows == [("1e+30", "0"), ("0.001", "0"), ("0.001", "3")]
    assert [p.name for p in out.glob("*.safetensors")] == ["personal-0.001.safetensors"]


@pytest.mark.slow
def test_its_run_is_the_trial_s_child(shop: Storage, migrated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One metric a reading and rate with the epoch as its step; a repeated command replaces its earlier run."""
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shutil.copy(migrated, shop.root / "mlflow.db")
    folder = shop.folder("spire")
    experiment = open_finished(folder).trial.experiment
    about = {"experiment": "raydiff-digits", "command": ["raydiff"]}
    follower = sweep_folder.build_writer(shop.sweeps / "spire", "digits", base=experiment, about=about, swept={})
    follower.start()
    follower.wait_ready()
    follower.begin()
    follower.close()
    assert follower.error is None
    client, parent = MlflowClient(follower.uri), mlflow_models.find_run(follower.uri, folder)
    command = call(shop, f"{parent} --records 6 --classes 2,7 --epochs 1,2 --lr 0.5,1")
    for _ in range(2):
        assert personalize.main(command) == 0
        (child,) = client.search_runs(["1"], f"tags.`mlflow.parentRunId` = '{parent}'")
    rows = table(folder_of(shop, "spire") / "curves.csv")
    for rate in ("0.5", "1.0"):
        expected = [(int(r["epoch"]), float(r["kd_cnn"])) for r in rows if r["learning_rate"] == rate]
        history = client.get_metric_history(child.info.run_id, f"kd_cnn/lr_{float(rate):g}")
        assert [(m.step, m.value) for m in history] == expected and [step for step, _ in expected] == [0, 1, 2]
    assert [m.step for m in client.get_metric_history(child.info.run_id, "loss/lr_1")] == [1, 2]
    tags, params = child.data.tags, child.data.params
    assert (tags["raydiff.privacy"], tags["raydiff.kind"]) == ("none", "unseen")
    assert (params["classes"], params["records"], params["parameters"]) == ("2 7", "6", "32")
    assert child.info.status == "FINISHED"
    assert {f.path for f in client.list_artifacts(child.info.run_id)} == {"curves.csv", "curves.png"}
    assert mlflow_models.find_run(follower.uri, folder) == parent  # and not the child
