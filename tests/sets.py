"""Tiny data sets on disk, and what is asserted of every data set."""

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch import Tensor

from raydiff.data.datasets import SPLITS, Data, Dataset, load_dataset

FEW: dict[str, Any] = {"public": 6, "validation": 6, "calibration": 3, "test": 9}


def pictures(n: int, *, shape: Sequence[int] = (4, 4), first: int = 0) -> np.ndarray[Any, Any]:
    """n different pictures; picture i has the value first + i in its corner."""
    pixels = np.random.default_rng(first).integers(0, 256, (n, *shape), dtype=np.uint8)
    pixels[:, 0, 0] = (first + np.arange(n, dtype=np.uint8)).reshape(-1, *[1] * (len(shape) - 2))
    return pixels


def png(pixels: np.ndarray[Any, Any], mode: str | None = None) -> bytes:
    out = io.BytesIO()
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(out, "PNG")
    return out.getvalue()


def write(path: Path, encoded: Sequence[bytes | None], labels: Sequence[Any], **options: Any) -> Path:
    """One parquet file in the Hugging Face layout."""
    image, label = options.get("image", "image"), options.get("label", "label")
    raw = options.get("raw", False)
    column = encoded if raw else [{"bytes": data, "path": f"{i}.png"} for i, data in enumerate(encoded)]
    table = pa.table({image: column, label: labels})
    if "names" in options:
        features = {image: {"_type": "Image"}, label: {"_type": "ClassLabel", "names": options["names"]}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=7)
    return path


def grey_set(folder: Path) -> Path:
    """40 train rows in two files of several row groups, 20 test rows; grey, three classes of unequal size."""
    labels = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2] * 6
    encoded = [png(p) for p in pictures(60)]
    names = ["ant", "bee", "cat"]
    write(folder / "train-00000-of-00002.parquet", encoded[:25], labels[:25], names=names)
    write(folder / "train-00001-of-00002.parquet", encoded[25:40], labels[25:40], names=names)
    write(folder / "test-00000-of-00001.parquet", encoded[40:], labels[40:], names=names)
    return folder


def zoo(folder: Path, shade: int = 0) -> Path:
    """Two class folders of 20 grey 6 x 4 pictures, each of one shade."""
    for c, name in enumerate(("ant", "bee")):
        (folder / name).mkdir(parents=True)
        for i in range(20):
            Image.fromarray(np.full((4, 6), 10 * i + 5 * c + shade, np.uint8)).save(folder / name / f"{i}.png")
    return folder


def with_other_private_pictures(dataset: Dataset) -> Dataset:
    """The data set with all pictures negated but the public ones."""
    splits = {
        name: records if name == "public" else replace(records, images=-records.images)
        for name, records in dataset.splits.items()
    }
    return replace(dataset, splits=splits, digest="")


def message(config: Data) -> str:
    """What `load` says when it refuses: one line."""
    with pytest.raises(ValueError) as error:
        load_dataset(config)
    assert "\n" not in str(error.value)
    return str(error.value)


def assert_cut(data: Dataset, pools: Sequence[tuple[Sequence[str], Tensor]]) -> None:
    """Splits are disjoint, and the classes of each are those of rows drawn at random from the pool (labels) it came
    from: by the hypergeometric law no count is further than five deviations from its share."""
    numbers = torch.cat([data.splits[split].numbers for split in SPLITS])
    assert len(set(numbers.tolist())) == len(numbers)
    for splits, pool in pools:
        share, n = pool.bincount() / len(pool), len(pool)
        for split in splits:
            labels = data.splits[split].labels[:, 0]
            variance = len(labels) * share * (1 - share) * (n - len(labels)) / max(1, n - 1)
            deviation = labels.bincount(minlength=len(share)) - share * len(labels)
            assert (deviation.abs() <= 5 * variance.sqrt() + 1e-6).all(), split
