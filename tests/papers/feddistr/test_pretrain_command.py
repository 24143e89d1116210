"""`raydiff pretrain`: what it writes, logs and refuses."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from raydiff import tree
from raydiff.data import datasets
from raydiff.data.datasets import Data
from raydiff.papers.feddistr import pretrain_command as pretrain
from raydiff.papers.feddistr.latent import model
from raydiff.tracking import mlflow_store

SHORT = ["--training.steps=2", "--training.vae-steps=2", "--training.words=1", "--training.widths", "8", "16"]
SHORT += ["--training.vae-widths", "8", "8", "--training.width=8", "--data.public=40"]


def test_a_short_run(tmp_path: Path, migrated: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(pretrain, "STEPS", 2)
    shutil.copy(migrated, tmp_path / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)
    assert pretrain.main([*SHORT, "--out", "made", "--storage", str(tmp_path / "storage")]) == 0
    output, out = capsys.readouterr().out, tmp_path / "made"
    assert "40 public records of scikit-learn's digits; 0 left out" in output
    assert "auto-encoder: step 2 of 2, loss" in output and "denoiser: step 2 of 2, loss" in output
    assert output.endswith(f"use it: --method.model.path {out}\n")
    card, dataset = json.loads((out / "card.json").read_text()), datasets.load_dataset(Data(public=40))
    public = tree.digest(dataset.splits["public"].leaves)
    assert (card["public_records"], card["left_out"], card["data_digest"]) == (40, 0, public)
    assert card["data"]["public"] == 40 and card["training"]["steps"] == 2 and card["words"] == 10
    hashes = json.loads((out / "public.json").read_text())["sha256"]
    assert hashes == tree.digests(dataset.splits["public"].images)
    with Image.open(out / "samples.png") as picture:
        assert picture.text["privacy"] == "public split" and picture.height == 10 * 9 * 4
    model.load_latent(str(out)).check((1, 8, 8))

    client = mlflow_store.connect(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("raydiff-latent")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.tags["raydiff.latent"] == model.load_latent(str(out)).digest and run.info.status == "FINISHED"
    logged = {item.path for item in client.list_artifacts(run.info.run_id, "made")}
    assert {"made/model_index.json", "made/unet", "made/tokens.safetensors", "made/samples.png"} <= logged


def test_a_folder_is_never_overwritten(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="exists already: give another --out"):
        pretrain.main(["--out", str(tmp_path)])


def test_a_learning_rate_that_is_too_high(tmp_path: Path) -> None:
    arguments = [*SHORT, "--training.learning-rate=1e38", "--no-mlflow", "--out", str(tmp_path / "out")]
    with pytest.raises(ValueError, match=r"the loss became .*: lower the learning rate"):
        pretrain.main(arguments)
