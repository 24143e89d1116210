"""`raydiff preview`: what it prints and writes, and that it shows no private picture."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sets import with_other_private_pictures, zoo
from sklearn.datasets import load_digits

from raydiff.cli import preview
from raydiff.data import datasets, public_preview
from raydiff.data.datasets import Data
from raydiff.evaluation import figures


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take most of the time: here their files are empty."""
    for module, name in ((public_preview, "draw_pictures"), (figures, "draw_counts")):
        monkeypatch.setattr(module, name, lambda *args, **_: next(a for a in args if isinstance(a, Path)).touch())


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert preview.main(list(map(str, arguments))) == 0
    return capsys.readouterr().out


def test_a_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str], undrawn: None) -> None:
    output = call(capsys, "digits", "--runtime.storage", tmp_path, "--clients", 3, "--partition", "iid")
    assert "digits: scikit-learn's digits\npictures: 8 x 8 L, values on [-1, 1]\n" in output
    assert "splits: train 847, public 250, validation 200, calibration 100, test 400" in output
    public = datasets.load_dataset(Data()).splits["public"]
    pixels = torch.from_numpy(load_digits().images[public.numbers.numpy()]) / 8 - 1
    norms = pixels.flatten(1).norm(dim=1)
    assert f"suggested clip: {norms.median():.2f}, the median norm of the 250 public pictures" in output
    assert f"clip 6.8 clips {(norms > 6.8).double().mean():.1%} of the public pictures" in output
    clients = re.findall(r"^client \d( +\d+){10} +(\d+)$", output, flags=re.M)
    assert sorted(int(n) for _, n in clients) == [282, 282, 283]
    written = {path.name for path in (tmp_path / "previews" / "digits").iterdir()}
    assert written == {"partition.png", "pictures.png"}
    assert f"next: raydiff run digits --runtime.storage {tmp_path} --clients 3 --partition iid\n" in output


def test_around_a_center_the_clip_is_that_of_the_differences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], undrawn: None
) -> None:
    output = call(capsys, "digits", "--method.center", "public", "--method.clip", "4.3", "--out", tmp_path)
    images = datasets.load_dataset(Data()).splits["public"].images
    norms = (images - images.mean(0)).flatten(1).norm(dim=1)
    assert f"suggested clip: {norms.quantile(0.5):.2f}, the median norm of the 250 public pictures\n" in output
    assert f"clip 4.3 clips {(norms > 4.3).double().mean():.1%} of the public pictures" in output


def test_a_small_folder_gets_splits_that_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str], undrawn: None) -> None:
    folder = zoo(tmp_path / "zoo")
    output = call(
        capsys, folder, "--data.size", 4, "--evaluation", "none", "--partition", "iid", "--out", tmp_path / "out"
    )
    assert f"{folder}: 40 pictures in 2 class folders of {folder}\n" in output
    assert "splits: train 21, public 5, validation 4, calibration 2, test 8" in output
    assert "label column class (the class): 2 values" in output and "clips" not in output  # no clip is set
    assert f"next: raydiff init {folder} --data.size 4 --evaluation none" in output


def test_without_a_public_split_nothing_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], undrawn: None
) -> None:
    output = call(capsys, "--data.public", 0, "--out", tmp_path)
    assert "suggested clip: none, since data.public is 0" in output and "median" not in output
    assert [p.name for p in tmp_path.iterdir()] == ["partition.png"]


def test_no_private_picture_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Other private pictures change nothing: neither a word nor a pixel."""
    output, dataset = [], datasets.load_dataset(Data())
    for _ in range(2):
        out = tmp_path / str(len(output))
        output.append(call(capsys, "--out", out).replace(str(out), ""))
        monkeypatch.setattr(datasets, "load_dataset", lambda config: with_other_private_pictures(dataset))
    assert output[0] == output[1]
    for path in (tmp_path / "0").iterdir():
        assert path.read_bytes() == (tmp_path / "1" / path.name).read_bytes(), path.name


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """300 rows, most of them private, that begin with the same 150 public or private ones."""
    rng = np.random.default_rng(0)
    table = {
        "age": rng.integers(18, 90, 300),
        "town": rng.choice(["Ulm", "Bonn"], 300),
        "y": rng.choice(["a", "b"], 300),
    }
    pd.DataFrame(table).to_csv(tmp_path / "people.csv", index=False)
    return tmp_path / "people.csv"


def test_a_table_has_columns_in_place_of_pictures(
    people: Path, capsys: pytest.CaptureFixture[str], undrawn: None
) -> None:
    """Its label is private unless the partition deals by it."""
    out = people.parent / "out"
    output = call(capsys, people, "--data.labels", "y", "--out", out)
    assert "a table\nsplits: train 141, public 42, validation 33, calibration 18, test 66" in output
    data = Data(name=str(people), labels=("y",), train=None, public=42, validation=33, calibration=18, test=66)
    ages = pd.read_csv(people)["age"].iloc[datasets.load_dataset(data).splits["public"].numbers]
    assert re.search(r"columns, what each was taken for, and the 42 public rows by category:\n  age ", output)
    edge, count = (int(x) for x in re.search(r"< (\d+): (\d+), ", output).groups())  # type: ignore[union-attr]
    assert (ages < edge).sum() == count
    assert re.search(r"\n  town +text +Bonn: \d+, Ulm: \d+, \(other\): 0\n", output)
    assert re.search(r"\n +public\na +\d+\n", output) and re.search(r"\n +all\nclient 0 +141\n", output)
    assert "pictures" not in output and not out.exists() and f"next: raydiff init {people}" in output
    by_class = call(capsys, people, "--data.labels", "y", "--out", out, "--clients", 2, "--partition", "byclass")
    assert re.search(r"\n +train +public .*\na +\d+", by_class) and [p.name for p in out.iterdir()] == ["partition.png"]


@pytest.mark.parametrize("partition", ["pooled", "iid"])
def test_no_private_cell_is_counted(people: Path, capsys: pytest.CaptureFixture[str], partition: str) -> None:
    """Other private rows change not a word, nor do rows that a reader must convert."""
    arguments = (people, "--data.labels", "y", "--partition", partition)
    before, table = call(capsys, *arguments), pd.read_csv(people)
    data = Data(name=str(people), labels=("y",), train=None, public=42, validation=33, calibration=18, test=66)
    private = ~table.index.isin(datasets.load_dataset(data).splits["public"].numbers.tolist())
    for column, cell in {"age": 10**6, "town": "Rome", "y": "c"}.items():
        table.loc[private, column] = cell
    table.to_csv(people, index=False)
    datasets._load.cache_clear()
    assert call(capsys, *arguments) == before
