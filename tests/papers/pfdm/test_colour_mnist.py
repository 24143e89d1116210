"""colour-mnist: the colour goes with the digit."""

from pathlib import Path
from typing import Any

import torch
from sets import pictures, png, write

from raydiff.data.datasets import Data, load_dataset

DIGITS: dict[str, Any] = {"train": 20, "public": 10, "validation": 0, "calibration": 0, "test": 10}


def tiny_mnist(root: Path) -> Path:
    """40 train and 20 test rows, each digit in turn, below a root."""
    for split, n in (("train", 40), ("test", 20)):
        encoded = [png(p) for p in pictures(n, first=n)]
        write(root / "mnist" / f"{split}-0.parquet", encoded, list(range(10)) * (n // 10), names=list("0123456789"))
    return root


def test_the_colour_goes_with_the_digit(tmp_path: Path) -> None:
    root = str(tiny_mnist(tmp_path))
    grey, colour = (load_dataset(Data(name=name, root=root, **DIGITS)) for name in ("mnist", "colour-mnist"))
    assert (colour.shape, colour.cardinalities) == ((3, 4, 4), (10, 2))
    assert (colour.label_columns, colour.label_names[1]) == (("digit", "colour"), ("red", "blue"))
    for split, records in colour.splits.items():
        assert torch.equal(records.numbers, grey.splits[split].numbers)
        labels = records.labels.tolist()
        for image, plain, (digit, hue) in zip(records.images, grey.splits[split].images, labels, strict=True):
            assert hue == (0 if digit in (0, 1, 6, 7, 9) else 1)
            drawn = 2 * hue
            assert torch.equal(image[drawn], plain[0])
            assert (image[[c for c in range(3) if c != drawn]] == -1).all()
    assert "coloured by digit: 0 1 6 7 9 red, the others blue" in colour.notes
