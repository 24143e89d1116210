"""Classes are the values or names that records have, by whatever type and file they come."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sets import message, pictures, png

from raydiff.data.datasets import Data, load_dataset
from raydiff.data.picture_files import write_parquet
from raydiff.data.records import label_numbers, label_values
from raydiff.data.unseen_client import Choice, choose_client
from raydiff.experiment import suggested
from raydiff.results.finished import Finished

SIZES: dict[str, Any] = {"public": 24, "validation": 6, "calibration": 6, "test": 10}
ANIMALS = ("ant", "bee", "cow", "doe")


def write(path: Path, labels: Any, *, names: Sequence[str] = (), first: int = 0, **conditions: Any) -> Path:
    """A parquet file of pictures with these labels, its column `label` a ClassLabel if it has names."""
    path.parent.mkdir(exist_ok=True)
    images = [png(p) for p in pictures(len(labels), first=first)]
    table = pa.table({"image": images, "label": labels, **conditions})
    features = {"label": {"_type": "ClassLabel", "names": list(names)}} if names else {}
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})}), path)
    return path.parent


@pytest.mark.parametrize(
    ("labels", "stored", "names"),
    [
        ([1, 2, 3], None, ()),
        ([3, 10, 20], pa.uint8(), ()),
        ([-1, 1, 7], pa.int16(), ()),
        ([-100, 0], pa.int64(), ()),
        ([1_700_000_000_000_000_000, 1_700_000_000_000_000_001], pa.int64(), ()),
        ([2**40, 2**41], pa.uint64(), ()),
        ([1, 3], pa.dictionary(pa.int8(), pa.int32()), ()),
        ([False, True], pa.bool_(), ()),
        (["1", "10", "01"], pa.string(), ()),
        (["", "x"], pa.dictionary(pa.int8(), pa.large_string()), ()),
        ([1, 2, 3], None, ANIMALS),
        ([0, 1, 3], pa.int32(), ANIMALS),
        ([0, 1], pa.int8(), ANIMALS),
        ([0, 1, 2, 3], None, ANIMALS),
    ],
    ids=str,
)
def test_a_class_is_what_a_record_has(
    tmp_path: Path, labels: list[Any], stored: pa.DataType | None, names: Sequence[str]
) -> None:
    held = [labels[i % len(labels)] for i in range(60)]
    data = load_dataset(
        Data(name=str(write(tmp_path / "set" / "x.parquet", pa.array(held, stored), names=names)), **SIZES)
    )
    spelled = [names[v] if names else str(v).lower() if isinstance(v, bool) else str(v) for v in labels]
    assert sorted(data.label_names[0]) == sorted(spelled)
    for records in data.splits.values():
        result = [data.label_names[0][v] for v in records.labels[:, 0].tolist()]
        assert result == [spelled[n % len(labels)] for n in records.numbers.tolist()]
    assert all(len(data.splits["train"].of_classes([c])) for c in range(len(spelled)))
    assert data.fitted_columns == (() if len(names) == len(labels) else ("label",))


@pytest.mark.parametrize(
    ("train", "test", "names"),
    [
        ([0, 1], [-1] * 20, ("ant", "bee")),
        ([1, 2], [-1] * 20, ()),
        ([0, 1], [-100] * 20, ("ant", "bee")),
        (["ant", "bee"], ["unknown"] * 20, ()),
        ([0, 1], [0, 2] * 10, ANIMALS[:3]),
        ([5, 6], [7, 6] * 10, ()),
        ([0, 1], [0, -1] * 10, ("ant", "bee")),
    ],
    ids=str,
)
def test_test_rows_of_a_class_without_other_rows_are_left_out(
    tmp_path: Path, train: list[Any], test: list[Any], names: Sequence[str]
) -> None:
    write(tmp_path / "set" / "test.parquet", test, names=names, first=100)
    folder = write(tmp_path / "set" / "train.parquet", train * 30, names=names)
    data = load_dataset(Data(name=str(folder), **SIZES))
    assert len(data.label_names[0]) == 2 and len(data.splits["test"]) == 10
    assert data.notes == ("test rows left out: those whose label no other row has",)
    kept = [label in train for label in test]
    assert (data.splits["test"].numbers >= 60).all() == any(kept)


def test_a_class_of_private_records_alone_is_refused_if_names_were_left_out(tmp_path: Path) -> None:
    """Which of the names have records must not depend on a private one; where all have, they are as declared."""
    folder = write(tmp_path / "set" / "x.parquet", [0, 1] * 30, names=ANIMALS)
    config = Data(name=str(folder), **SIZES)
    data = load_dataset(config)
    assert data.label_names == (("ant", "bee"),)
    private = int(data.splits["train"].numbers[0])
    write(tmp_path / "other" / "x.parquet", [3 if i == private else i % 2 for i in range(60)], names=ANIMALS)
    other = replace(config, name=str(tmp_path / "other"))
    assert message(other).startswith("none of the 24 public records has the label 'doe' of 1 parquet file")
    assert load_dataset(replace(other, fitted_on="all")).private_fit == "the classes, taken from all records"
    held = [0 if i == 0 else 1 for i in range(60)]
    assert load_dataset(
        replace(config, name=str(write(tmp_path / "all" / "x.parquet", held, names=ANIMALS[:2])))
    ).label_names


def test_conditions_and_superclasses_are_those_of_records(tmp_path: Path) -> None:
    """0 and 9 are missing, so that two of the five pairs have one class; and so is a hue where rows are left out."""
    digits = [1 + i % 8 for i in range(63)] + [77]
    hues = ["red" if i < 30 else "blue" for i in range(63)] + ["green"]
    folder = write(tmp_path / "set" / "x.parquet", digits, hue=hues)
    config = Data(name=str(folder), labels=("label", "hue"), fitted_on="all", **SIZES)
    assert load_dataset(config).label_names == (
        ("1", "2", "3", "4", "5", "6", "7", "8", "77"),
        ("blue", "green", "red"),
    )
    data = load_dataset(replace(config, superclasses="pairs"))
    assert data.label_names == (("0/1", "2/3", "4/5", "6/7", "8/9"), ("blue", "red"))
    assert data.base_names == tuple("12345678")
    for records in data.splits.values():
        assert records.labels[:, 0].tolist() == [digits[n] // 2 for n in records.numbers.tolist()]
    few = write(tmp_path / "few" / "x.parquet", [1 + i % 4 for i in range(60)])
    assert "pairs needs the class '6'" in message(replace(config, name=str(few), labels=(), superclasses="pairs"))


def test_a_class_without_training_records_is_neither_counted_nor_drawn(tmp_path: Path) -> None:
    """None of the class 3 is left by a cut. Where labels are private, every class of a public record is drawn."""
    config = Data(name=str(write(tmp_path / "set" / "x.parquet", [1, 2] * 28 + [3] * 4)), fitted_on="all", **SIZES)
    data = load_dataset(replace(config, train=5))
    counts = data.splits["train"].labels[:, 0].bincount(minlength=3)
    assert int(counts[2]) == 0 and len(data.label_names[0]) == 3
    assert f"a class has {int(counts[:2].min())} training" in suggested.suggested(data, clients=2).why["partition.kind"]
    for declared, drawn in ((("labels",), [[0], [1]]), ((), [[0], [1], [2]])):
        finished: Any = SimpleNamespace(dataset=data, published=SimpleNamespace(declared=declared))
        assert Finished._labels(finished, "uniform").tolist() == drawn


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (("0", "1"), [0, 1]),
        (("1", "2", "3"), [1, 2, 3]),
        (("20", "-1"), [20, -1]),
        (ANIMALS, [0, 1, 2, 3]),
        (("1", "01"), [0, 1]),
        (("1", "(other)"), [0, 1]),
        (("1", "9" * 30), [0, 1]),
    ],
)
def test_a_number_outside_is_the_name_where_all_names_are_numbers(names: Sequence[str], numbers: list[int]) -> None:
    assert label_numbers(names) == numbers
    assert label_values(np.array(numbers[::-1]), names, "label").tolist() == list(range(len(names)))[::-1]
    with pytest.raises(ValueError, match=r"^label must be .*, got 77$"):
        label_values(np.array([77]), names, "label")


@pytest.mark.parametrize(("names", "numbers"), [(("1", "3", "30"), [1, 3, 30]), (("ant", "bee", "cow"), [0, 1, 2])])
def test_generated_labels_are_those_of_records(tmp_path: Path, names: tuple[str, ...], numbers: list[int]) -> None:
    labels = torch.tensor([[0], [1], [2]] * 20)
    pixels = torch.from_numpy(pictures(60))[..., None]
    write_parquet(tmp_path / "x.parquet", pixels, labels, names={"label": names}, about={"privacy": "none"})
    assert pq.read_table(tmp_path / "x.parquet")["label"].to_pylist() == numbers * 20
    data = load_dataset(Data(name=str(tmp_path), **SIZES))
    assert data.label_names == (names,)
    assert all(torch.equal(r.labels, labels[r.numbers]) for r in data.splits.values())


def test_a_new_client_names_its_classes(tmp_path: Path) -> None:
    config = Data(name=str(write(tmp_path / "set" / "x.parquet", [1, 2, 3] * 30)), **SIZES | {"train": 20, "test": 30})
    data = load_dataset(config)
    client = choose_client(Choice(classes=("1",)), config, data, usual=4)
    assert {data.label_names[0][v] for v in client.records.labels[:, 0].tolist()} == {"1"}
    with pytest.raises(ValueError, match="no class '0'; they have 1, 2, 3"):
        choose_client(Choice(classes=("0",)), config, data, usual=4)
    assert torch.equal(client.records.labels.unique(), torch.tensor([0]))


def test_without_public_records_declared_names_are_taken_as_they_are(tmp_path: Path) -> None:
    """Private records could only tell which of them have any; and rows without a label are left out nevertheless."""
    write(tmp_path / "set" / "test.parquet", [0, -1] * 10, names=ANIMALS, first=100)
    config = Data(name=str(write(tmp_path / "set" / "train.parquet", [0, 2] * 30, names=ANIMALS)), **SIZES)
    data = load_dataset(replace(config, public=0))
    assert (data.label_names, data.fitted_columns) == ((ANIMALS,), ())
    assert len(data.splits["test"]) == 10 and not data.splits["test"].labels.any()
