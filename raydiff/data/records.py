"""Records: rows of a data set as tensors. Shapes: N records, C channels, H x W pixels, K label columns."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydiff.tree import Params

Center = Literal["grey", "black", "public"]
"""What pictures are clipped around: see `clip_center`."""


@dataclass(frozen=True, eq=False)
class Records:
    """Some records of a data set. The tensors are shared and never written to.

    `images` are (N, C, H, W) float32 on [-1, 1], of a table the codes of its rows (N, 1, 1, n); `labels` (N, K) int64,
    the class first; `numbers` (N,) int64 the row numbers in the data set, the records' identity; `base` (N,) int64 the
    base distributions if the class is a superclass, hidden from clients."""

    images: Tensor
    labels: Tensor
    numbers: Tensor
    base: Tensor | None = None

    @property
    def bases(self) -> Tensor:
        """(N,) int64: the base distribution of each record, the class unless it is a superclass."""
        return self.labels[:, 0] if self.base is None else self.base

    @property
    def leaves(self) -> Params:
        """The tensors by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def __len__(self) -> int:
        return len(self.numbers)

    def select(self, index: Tensor) -> Records:
        """The records at `index` (positions or a boolean mask), in that order."""
        base = None if self.base is None else self.base[index]
        return Records(self.images[index], self.labels[index], self.numbers[index], base)

    def of_classes(self, classes: Sequence[int]) -> Records:
        """The records of these classes."""
        return self.select(torch.isin(self.labels[:, 0], torch.tensor(classes, dtype=torch.int64)))

    def without_base(self) -> Records:
        """The records as clients see them."""
        return replace(self, base=None)


def join_records(parts: Sequence[Records]) -> Records:
    """Concatenated records, without base distributions."""
    return Records(*(torch.cat([getattr(p, f) for p in parts]) for f in ("images", "labels", "numbers")))


def public_mean(public: Records | None) -> Tensor:
    """The mean of the public pictures, (C, H, W). Raises ValueError without public records."""
    if public is None or len(public) == 0:
        raise ValueError("clipping around a center needs public records: data.public is 0")
    return public.images.mean(0)


def clip_center(center: Center, public: Records | None) -> Tensor | None:
    """What pictures on [-1, 1] are clipped around: None is grey (0), a scalar black (-1), (C, H, W) the public mean."""
    if center == "public":
        return public_mean(public)
    return torch.tensor(-1.0) if center == "black" else None


def codes_of(images: Tensor) -> Tensor:
    """(N, 1, 1, n) codes in the records' form -> (N, n) int64."""
    return images.flatten(1).long()


def images_of(codes: Tensor) -> Tensor:
    """(N, n) codes -> (N, 1, 1, n) float32, the records' form."""
    return codes.float()[:, None, None, :]


def half_counts(classes: Tensor) -> dict[int, int]:
    """Return records per class in one half of records of these classes (N,), without classes that have one record."""
    values, counts = torch.unique(classes, return_counts=True)
    return {int(c): int(n) // 2 for c, n in zip(values, counts, strict=True) if n > 1}


def label_rows(labels: Tensor, cardinalities: Sequence[int]) -> Tensor:
    """(N,) int64: which of the prod(cardinalities) rows of labels each of labels (N, K) is, the last column fastest."""
    return labels @ torch.tensor([math.prod(cardinalities[k + 1 :]) for k in range(len(cardinalities))]).long()


def label_numbers(names: Sequence[str]) -> list[int]:
    """The numbers of label values outside of raydiff: their names if all are whole numbers, else 0, 1, ...."""
    whole = all(re.fullmatch("0|-?[1-9][0-9]{0,17}", name) for name in names)
    return [int(name) for name in names] if whole else list(range(len(names)))


def label_values(numbers: NDArray[Any], names: Sequence[str], column: str) -> NDArray[np.int64]:
    """Label values (N,) of `label_numbers` (N,). Raises ValueError for other numbers."""
    every = label_numbers(names)
    if len(wrong := numbers[~np.isin(numbers, every)]):
        wanted = f"in 0..{len(every) - 1}" if every == list(range(len(every))) else f"one of {', '.join(names)}"
        raise ValueError(f"{column} must be {wanted}, got {wrong[0]}")
    order = np.argsort(every)
    return order[np.searchsorted(every, numbers, sorter=order)]
