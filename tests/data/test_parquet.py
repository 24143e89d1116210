"""Label columns of parquet files: several, text, booleans, and what is refused."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sets import FEW, message, pictures, png

from raydiff.data.datasets import Data, load_dataset


def table(path: Path, names: dict[str, list[str]] | None = None, **columns: Sequence[Any]) -> Path:
    """30 pictures with these label columns."""
    images = [png(p) for p in pictures(30)]
    written = pa.table({"image": images, **columns})
    if names:
        features = {column: {"_type": "ClassLabel", "names": values} for column, values in names.items()}
        written = written.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(exist_ok=True)
    pq.write_table(written, path, row_group_size=7)
    return path


SHAPES, HUES = [0, 1, 2] * 10, [0, 1] * 15


def test_several_label_columns_the_first_is_the_class(tmp_path: Path) -> None:
    path = table(tmp_path / "set" / "x.parquet", {"hue": ["red", "blue"]}, hue=HUES, shape=SHAPES, weight=[0.5] * 30)
    data = load_dataset(Data(name=str(path.parent), labels=("shape", "hue"), **FEW))
    assert data.label_columns == ("shape", "hue")
    assert data.label_names == (("0", "1", "2"), ("red", "blue"))
    for records in data.splits.values():
        assert records.labels.tolist() == [[SHAPES[i], HUES[i]] for i in records.numbers.tolist()]


def test_text_and_booleans_become_names_in_order(tmp_path: Path) -> None:
    kinds, smiles = ["pear", "apple", "fig"] * 10, [True, False] * 15
    encoded = pa.array(kinds).dictionary_encode()
    path = table(tmp_path / "set" / "x.parquet", kind=encoded, smile=smiles)
    data = load_dataset(Data(name=str(path.parent), labels=("kind", "smile"), **FEW))
    assert data.label_names == (("apple", "fig", "pear"), ("false", "true"))
    for records in data.splits.values():
        for (kind, smile), i in zip(records.labels.tolist(), records.numbers.tolist(), strict=True):
            assert (data.label_names[0][kind], bool(smile)) == (kinds[i], smiles[i])


def test_files_left_unread_are_told(tmp_path: Path) -> None:
    for split in ("train", "test", "validation"):
        table(tmp_path / "set" / f"{split}-0.parquet", label=SHAPES)
    for name in ("pictures", ".cache"):
        (tmp_path / "set" / name).mkdir()
    data = load_dataset(Data(name=str(tmp_path / "set"), **FEW))
    assert data.notes == ("left unread: validation-0.parquet, pictures",)
    assert data.says == f"2 parquet files in {tmp_path}/set"


@pytest.mark.parametrize(
    ("labels", "columns", "says"),
    [
        (("hue",), {"shape": SHAPES, "size": SHAPES}, "has no column 'hue'; it has shape, size"),
        (("image",), {"shape": SHAPES}, "has no column 'image'; it has shape"),
        ((), {"label": np.array([2**64 - 1] * 30)}, "column 'label' of {path} must hold integers below 2^63"),
        ((), {"label": [1.5, 2] * 15}, "column 'label' of {path} must hold integers, text or booleans, got double"),
        (
            (),
            {"label": ["a", None] * 15},
            "column 'label' of {path} must hold integers, text or booleans, got 15 nulls",
        ),
        ((), {"y": SHAPES}, "{path} has no column 'label' or 'fine_label'; it has y"),
        ((), {"label": [3] * 30}, "has one class only, '3': there is nothing to condition on"),
    ],
)
def test_bad_label_columns(tmp_path: Path, labels: tuple[str, ...], columns: dict[str, Any], says: str) -> None:
    path = table(tmp_path / "set" / "x.parquet", **columns)
    assert says.format(path=path) in message(Data(name=str(path.parent), labels=labels, **FEW))


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (["a"] * 30, "must hold integers, got string"),
        ([0] * 29 + [None], "must hold integers, got 1 nulls"),
        ([0] * 29 + [3], "row 29 of"),
        ([0, -100] * 15, "row 1 of"),
    ],
)
def test_labels_that_a_file_does_not_name(tmp_path: Path, labels: list[Any], says: str) -> None:
    path = table(tmp_path / "set" / "x.parquet", {"label": ["ant", "bee"]}, label=labels)
    text = message(Data(name=str(path.parent), **FEW))
    assert says in text and str(path) in text
    if says.startswith("row"):
        assert text.endswith("but names are of 0 to 1: name it, or leave such rows out of the files")
