"""Public records from another data set: labels by name, the same shape, and no picture that a client holds."""

from pathlib import Path
from typing import Any

import pytest
import torch
from sets import assert_cut, message, pictures, png, write

from raydiff.data import datasets
from raydiff.data.datasets import SPLITS, Data, load_dataset
from raydiff.experiment import config

FEW: dict[str, Any] = {"train": 12, "public": 10, "validation": 3, "calibration": 3, "test": 6}
NAMES = ["ant", "bee", "cat"]


def animals(path: Path, *, first: int, names: list[str] = NAMES, shape: Any = (4, 4), n: int = 30) -> str:
    """A folder of n pictures, each class in turn."""
    labels = [i % len(names) for i in range(n)]
    write(path / "x.parquet", [png(p) for p in pictures(n, first=first, shape=shape)], labels, names=names)
    return str(path)


def test_public_records_are_the_other_sets(tmp_path: Path) -> None:
    own, other = animals(tmp_path / "own", first=0), animals(tmp_path / "other", first=50)
    data = load_dataset(Data(name=own, public_from=other, **FEW))
    public = data.splits["public"]
    source = torch.from_numpy(pictures(30, first=50)).float().unsqueeze(1) / 127.5 - 1
    torch.testing.assert_close(public.images, source[public.numbers - 30], rtol=0, atol=1e-6)
    assert public.labels[:, 0].tolist() == [(int(n) - 30) % 3 for n in public.numbers]
    assert {split: len(data.splits[split]) for split in SPLITS} == FEW
    assert_cut(data, [(SPLITS, torch.tensor([0, 1, 2] * 10))])
    assert data.notes == (f"public records: from 1 parquet file in {other}",)


@pytest.mark.parametrize("copied", [1, 30])
def test_a_public_picture_that_is_also_a_record_is_refused(tmp_path: Path, copied: int) -> None:
    """The last `copied` pictures of one set are the first of the other."""
    sizes: dict[str, Any] = FEW | {"train": None, "public": 30}
    own, other = animals(tmp_path / "own", first=0), tmp_path / "other"
    shared = [png(p) for p in pictures(30)[30 - copied :]]
    fresh = [png(p) for p in pictures(30, first=50)[copied:]]
    write(other / "x.parquet", shared + fresh, [0, 1, 2] * 10, names=NAMES)
    output = message(Data(name=own, public_from=str(other), **sizes))
    assert output.startswith(
        f"public records must hold no record of the run, but {copied} of 30 pictures are, such as row "
    )
    if copied == 1:
        assert f"row 0 of {other}/x.parquet, which is row 29 of {own}/x.parquet (split " in output


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"names": ["ant", "dog"]}, "has the label 'dog', which 1 parquet file in {own} has not: public"),
        ({"n": 9}, "there are 9 rows in 1 parquet file in {other}, too few for data.public=10"),
        (
            {"shape": (6, 6, 3)},
            "are 6 x 6 RGB, but those of 1 parquet file in {own} are 4 x 4 L: set data.size",
        ),
    ],
)
def test_refused(tmp_path: Path, other: dict[str, Any], says: str) -> None:
    own, path = animals(tmp_path / "own", first=0), animals(tmp_path / "other", first=50, **other)
    assert says.format(own=own, other=path) in message(Data(name=own, public_from=path, **FEW))


def test_public_from_is_a_name(tmp_path: Path) -> None:
    assert "data set 'gone/x' has a /, so it is a path" in message(Data(public_from="gone/x"))
    output = message(Data(public_from="colour-mnist", root=animals_root(tmp_path)))
    assert output == (
        "public records need the same label columns, but MNIST in colour, from 1 parquet file in "
        f"{tmp_path}/mnist has the label columns digit colour, and scikit-learn's digits has the label columns digit"
    )


def animals_root(root: Path) -> str:
    """A root with a tiny mnist; big enough for 250 public records."""
    digits = [str(d) for d in range(10)]
    write(root / "mnist" / "x.parquet", [png(p) for p in pictures(250, shape=(8, 8))], [*range(10)] * 25, names=digits)
    return str(root)


def test_the_trial_digest_does_not_know_where_the_data_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = Data(name="a/set", public_from="a/public")
    resolved = datasets.anywhere(here)
    assert (resolved.name, resolved.public_from) == (f"{tmp_path}/a/set", f"{tmp_path}/a/public")
    digests = {config.Experiment(data=d).digest for d in (here, resolved, Data(name="b/set", public_from="b/public"))}
    assert len(digests) == 1
    assert config.Experiment(data=Data(name="a/set")).digest not in digests
