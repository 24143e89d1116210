"""Exact sums of uploads, whose bits depend neither on the order nor on the grouping.

Each summand is rounded once, to a `Grid`, then 64-bit integers are added without error.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raydiff.tree import Flat, Layout, Params, Tensors

SUM_BITS = 62  # of a whole sum, so that int64 holds it with its sign
SUMMAND_BITS = 51  # of one summand: float64 rounds to whole numbers of this size (see ROUND)
ROUND = 1.5 * 2.0**52  # float64s of so many steps are whole steps: adding them rounds, and the bits count the steps
BLOCK = 2**16  # entries whose float64 copies stay in a CPU's cache
Bits = np.ndarray[Any, np.dtype[np.int64]]  # numpy adds these three times as fast as torch


class OutOfRange(ValueError):
    """A summand is not finite, or too large for the grid."""


@dataclass(frozen=True)
class Grid:
    """Whole multiples of 2**exponent, to the nearest of which each summand of an `ExactSum` is rounded.

    All who add must know the grid beforehand, so it may depend on public values only.
    """

    exponent: int
    summands: int  # their number, at most
    largest: float  # absolute value of an entry of a summand, at most

    @classmethod
    def of(cls, largest: float, summands: int) -> "Grid":
        """Return the finest grid for so many summands with entries up to `largest`.

        With up to 2,048 summands an entry is rounded by at most 2**-52 of `largest`, with more by proportionally more.
        Raises ValueError unless both are positive and finite.
        """
        if not (0 < largest < math.inf and summands >= 1):
            raise ValueError(f"a grid needs a positive size and one summand at least, got {largest} and {summands}")
        bits = min(SUMMAND_BITS, SUM_BITS - math.ceil(math.log2(summands)))
        mantissa, exponent = math.frexp(largest)  # In [0.5, 1): a power of two is the half of the one above.
        return cls(exponent - (mantissa == 0.5) - bits, summands, largest)


class ExactSum:
    """sum of w_i a_i over trees with the same leaves."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.count = 0  # summands so far
        self.layout: Layout | None = None  # of the summands, with the type in which they are read; None without any
        self.dtypes: tuple[torch.dtype, ...] = ()  # of their leaves
        self._bits: Bits | None = None  # Includes each summand's `_origin`, modulo 2**64.

    def add(self, value: Tensors, weight: float = 1.0) -> None:
        """Add weight * value. Raises OutOfRange, and adds nothing, if it does not fit; ValueError for other leaves."""
        flat, dtypes = _summand(value)
        self._expect(flat.layout, dtypes, 1)
        for end in (end * weight for end in _ends(flat.buffer)):
            if not abs(end) <= self.grid.largest:  # Nor where it is NaN.
                # The entry is not quoted: more people read rejections than uploads.
                raise OutOfRange(f"an entry times its weight is not within the sum's range of {self.grid.largest:.4g}")
        self.layout = flat.layout
        self.dtypes = dtypes
        size = flat.layout.size
        if self._bits is None:
            self._bits = np.zeros(size, np.int64)
        origin = float(self._origin())
        block = torch.empty(min(BLOCK, size), dtype=torch.float64)
        bits = block.numpy().view(np.int64)
        for start in range(0, size, BLOCK):
            sums = self._bits[start : start + BLOCK]
            rounded = block[: len(sums)].copy_(flat.buffer[start : start + BLOCK])
            if weight != 1:
                rounded.mul_(weight)
            rounded.add_(origin)
            sums += bits[: len(sums)]
        self.count += 1

    def merge(self, other: "ExactSum") -> None:
        """Add another sum. Raises ValueError if its grid or its leaves differ."""
        if other.grid != self.grid:
            raise ValueError(f"sums on unlike grids do not add: {other.grid} and {self.grid}")
        if other._bits is None or other.layout is None:
            return
        self._expect(other.layout, other.dtypes, other.count)
        self.layout = other.layout
        self.dtypes = other.dtypes
        self.count = self.count + other.count
        if self._bits is None:
            self._bits = other._bits.copy()
        else:
            self._bits += other._bits

    def over(self, weight: float) -> Params:
        """Return the sum divided by `weight`, each leaf in its own type. Raises ValueError unless `weight` > 0."""
        if not weight > 0:
            raise ValueError(f"a mean needs one summand at least and a positive weight, got {weight}")
        if self.layout is None or self._bits is None:
            return {}
        steps = math.ldexp(weight, -self.grid.exponent)
        offset = self._origin().reshape(1).view(np.int64) * self.count
        size = self.layout.size
        out = torch.empty(size, dtype=self.layout.dtype)
        for start in range(0, size, BLOCK):
            whole = torch.from_numpy(self._bits[start : start + BLOCK] - offset)
            out[start : start + BLOCK].copy_(whole.double().div_(steps))
        mean = Flat(self.layout, out)
        if all(dtype == self.layout.dtype for dtype in self.dtypes):
            return mean
        return {k: v.to(dtype) for (k, v), dtype in zip(mean.items(), self.dtypes, strict=True)}

    def _origin(self) -> np.float64:
        return np.float64(math.ldexp(ROUND, self.grid.exponent))

    def _expect(self, layout: Layout, dtypes: tuple[torch.dtype, ...], count: int) -> None:
        if self.count + count > self.grid.summands:
            raise ValueError(f"a grid for {self.grid.summands} summands has no room for {self.count + count}")
        if self.layout is not None and (layout != self.layout or dtypes != self.dtypes):
            raise ValueError(f"summands differ in their leaves: {list(layout.names)} and {list(self.layout.names)}")


def _summand(value: Tensors) -> tuple[Flat, tuple[torch.dtype, ...]]:
    """(its leaves in one type, their own types). Integers, whose mean is none, count as float64."""
    if isinstance(value, Flat) and value.layout.dtype.is_floating_point:
        return value, (value.layout.dtype,) * len(value)
    dtypes = tuple(v.dtype if v.is_floating_point() else torch.float64 for _, v in sorted(value.items()))
    alike = len({*dtypes, *(v.dtype for v in value.values())}) <= 1
    return Flat.of(value if alike else {k: v.double() for k, v in value.items()}), dtypes


def _ends(x: Tensor) -> tuple[float, float]:
    """The least and the largest entry of x (n,), NaN if one is; 0.0 if it is empty. numpy is twice as fast as torch."""
    if not len(x):
        return 0.0, 0.0
    entries = (x if x.dtype in (torch.float32, torch.float64) else x.float()).numpy()
    with np.errstate(invalid="ignore"):
        return float(entries.min()), float(entries.max())
