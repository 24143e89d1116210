"""jobs/preview.py: what it says and writes, and that it looks at no private picture."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from raydiff.cli import preview
from raydiff.data import datasets
from raydiff.data.datasets import Data


def zoo(folder: Path, each: int = 20) -> Path:
    """Two classes of grey 6 x 4 pictures, one of one shade each."""
    for c, name in enumerate(("ant", "bee")):
        for i in range(each):
            path = folder / name / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((4, 6), 10 * i + 5 * c, np.uint8)).save(path)
    return folder


def test_a_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert preview.main(["digits", "--out", str(tmp_path), "--clients", "3", "--partition", "iid"]) == 0
    said = capsys.readouterr().out
    assert "digits: scikit-learn's digits\npictures: 8 x 8 L, values on [-1, 1]\n" in said
    assert "splits: train 847, public 250, validation 200, calibration 100, test 400" in said
    public = datasets.load(Data()).splits["public"]
    pixels = torch.from_numpy(load_digits().images[public.numbers.numpy()]) / 8 - 1
    norms = pixels.flatten(1).norm(dim=1)
    assert f"suggested clip: {norms.median():.2f}, the public median" in said
    assert f"clip 6.8 clips {(norms > 6.8).double().mean():.1%} of the public pictures" in said
    clients = re.findall(r"^  client \d( +\d+){10} +(\d+)$", said, flags=re.M)
    assert sorted(int(n) for _, n in clients) == [282, 282, 283]
    assert f"pictures in {tmp_path}" in said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["norms.png", "partition.png", "pictures.png"]
    assert said.endswith("train on it: raydiff run digits --clients 3 --partition iid\n")


def test_around_a_center_the_clip_is_that_of_the_differences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--method.center", "true", "--method.clip", "4.3", "--out", str(tmp_path)]
    assert preview.main(["digits", *arguments]) == 0
    said = capsys.readouterr().out
    images = datasets.load(Data()).splits["public"].images
    norms = (images - images.mean(0)).flatten(1).norm(dim=1)
    assert f"suggested clip: {norms.quantile(0.5):.2f}, the public median\n" in said
    assert f"clip 4.3 clips {(norms > 4.3).double().mean():.1%} of the public pictures" in said


def test_a_small_folder_gets_splits_that_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(zoo(tmp_path / "zoo"))
    arguments = ["--data.size", "4", "--evaluation", "none", "--out", str(tmp_path / "out")]
    assert preview.main([folder, *arguments]) == 0
    said = capsys.readouterr().out
    assert f"{folder}: 40 pictures in 2 class folders of {folder}\n" in said
    assert "  cropped to the central square and resized to 4 x 4 by area averaging\n" in said
    assert "splits: train 21, public 5, validation 4, calibration 2, test 8" in said
    assert "label column class (the class): 2 values" in said
    assert "clips" not in said  # nobody gave a clip
    assert said.endswith(f"train on it: raydiff init {folder} --data.size 4 --evaluation none\n")


def test_what_a_run_would_refuse_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path)]
    assert preview.main(["--clients", "120", *out]) == 0
    said = capsys.readouterr().out
    assert "partition: none, see below" in said and re.search(
        r"raydiff run would refuse it: a minority client would get", said
    )
    assert not (tmp_path / "partition.png").exists() and (tmp_path / "norms.png").exists()


def test_without_a_public_split_nothing_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert preview.main(["--data.public", "0", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "norms: none, since there is no public split" in said and "median" not in said
    assert [p.name for p in tmp_path.iterdir()] == ["partition.png"]


def test_no_private_picture_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """Other private pictures change nothing: neither a word nor a pixel."""
    said, dataset = [], datasets.load(Data())
    for _ in range(2):
        assert preview.main(["--out", str(tmp_path / str(len(said)))]) == 0
        said.append(capsys.readouterr().out.replace(str(tmp_path / str(len(said))), ""))
        splits = {
            name: r if name == "public" else datasets.Records(-r.images, r.labels, r.numbers)
            for name, r in dataset.splits.items()
        }
        others = datasets.Dataset(
            dataset.name, splits, dataset.label_names, "", dataset.label_columns, dataset.says, dataset.notes
        )
        monkeypatch.setattr(datasets, "load", lambda config, others=others: others)
    assert said[0] == said[1]
    for path in (tmp_path / "0").iterdir():
        assert path.read_bytes() == (tmp_path / "1" / path.name).read_bytes(), path.name


def test_the_default_folder_is_below_the_storage(tmp_path: Path) -> None:
    assert preview.main(["digits", "--runtime.storage", str(tmp_path)]) == 0
    assert (tmp_path / "previews" / "digits" / "norms.png").exists()
