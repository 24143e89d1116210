"""Records: some rows of a data set, as tensors. Every client, split and method works on these.

Shapes: N records, C channels, H x W pixels, K label columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Records:
    """Some records of a data set. The tensors are shared and never written to."""

    images: Tensor
    """(N, C, H, W) float32 on [-1, 1]."""
    labels: Tensor
    """(N, K) int64; column 0 is the class."""
    numbers: Tensor
    """(N,) int64: row numbers in the data set, the records' identity."""

    def __len__(self) -> int:
        return len(self.numbers)

    def select(self, index: Tensor) -> Records:
        """The records at `index` (positions or a boolean mask), in that order."""
        return Records(self.images[index], self.labels[index], self.numbers[index])


def public_mean(public: Records | None) -> Tensor:
    """The mean of the public pictures, (C, H, W). Raises ValueError where there are none."""
    if public is None or len(public) == 0:
        raise ValueError("clipping around a center needs public records: data.public is 0")
    return public.images.mean(0)
