"""Sums of uploads with the same bits in any order and in any grouping: each summand is rounded once, to a `Grid`, and
whole numbers of 64 bits are added."""

from __future__ import annotations

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
MERGED = 8  # sums that are kept side by side, for adding them all at the end reads each but once
BLOCK = 2**17  # entries whose float64 copies stay in a CPU's cache
Bits = np.ndarray[Any, np.dtype[np.int64]]  # numpy adds these three times as fast as torch


class OutOfRange(ValueError):
    """A summand is not finite, or larger than the grid has room for."""


@dataclass(frozen=True)
class Grid:
    """Whole multiples of 2**exponent: what the summands of an `ExactSum` are rounded to, each once, to the nearest.

    Whole numbers of 64 bits add without error, so that no sum depends on the order of its summands or on how they are
    grouped. Whoever adds has to know the grid beforehand, so it may depend on what is public alone.
    """

    exponent: int
    summands: int
    """How many there may be."""
    largest: float
    """Size of an entry of a summand, at most."""

    @classmethod
    def of(cls, largest: float, summands: int) -> Grid:
        """The finest grid on which so many summands fit, none larger than `largest`.

        With up to 2,048 of them an entry is off by 2**-51 of `largest` at most, and by as much more as they are more.
        """
        if not (0 < largest < math.inf and summands >= 1):
            raise ValueError(f"a grid needs a positive size and one summand at least, got {largest} and {summands}")
        bits = min(SUMMAND_BITS, SUM_BITS - math.ceil(math.log2(summands)))
        mantissa, exponent = math.frexp(largest)  # In [0.5, 1): a power of two is the half of the one above.
        return cls(exponent - (mantissa == 0.5) - bits, summands, largest)

    @property
    def error(self) -> float:
        """By how much an entry of a summand moves, at most: half a step."""
        return math.ldexp(0.5, self.exponent)


class ExactSum:
    """sum of w_i a_i over trees with the same leaves: the same bits in any order, in any grouping."""

    def __init__(self, grid: Grid, spare: Bits | None = None) -> None:
        """`spare` is the memory of a sum that nobody needs any more, for it costs more to get than to fill."""
        self.grid = grid
        self._spare = spare
        self.count = 0
        """Summands so far."""
        self.layout: Layout | None = None
        """Of the summands; None without any. It has the type in which they are read, `dtypes` those that they have."""
        self.dtypes: tuple[torch.dtype, ...] = ()
        self._bits: Bits | None = None  # Each summand's `_origin` is in it, too, modulo 2**64.
        self._merged: list[Bits] = []  # The same of other sums. Their memory may be read-only.
        self._block: Tensor | None = None  # Where a part of a summand is rounded.

    @property
    def nbytes(self) -> int:
        """What the sum takes on the wire, headers apart."""
        return 8 * self.layout.size if self.layout else 0

    @property
    def multiples(self) -> dict[str, Bits]:
        """The sum in steps of the grid, leaf by leaf: whole numbers, added modulo 2**64."""
        if self.layout is None:
            return {}
        steps = self.layout.leaves(torch.from_numpy(self._whole() - self._offset()))
        return {k: v.numpy() for k, v in steps.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return _travelled, (self.grid, self.count, self.layout, self.dtypes, self._whole())

    def add(self, value: Tensors, weight: float = 1.0) -> None:
        """One more summand, weight * value.

        Raises OutOfRange, and adds nothing, where it does not fit; ValueError where it has other leaves.
        """
        flat, dtypes = _summand(value)
        self._expect(flat.layout, dtypes, 1)
        for end in (end * weight for end in _ends(flat.buffer)):
            if not abs(end) <= self.grid.largest:  # Nor where it is NaN.
                # Not which: rejections are read by more people than uploads are.
                raise OutOfRange(f"an entry times its weight is not within the sum's range of {self.grid.largest:.4g}")
        self.layout, self.dtypes, size = flat.layout, dtypes, flat.layout.size
        if first := self._bits is None:
            fits = self._spare is not None and len(self._spare) == size
            self._bits = self._spare if fits else np.empty(size, np.int64)
        if self._block is None:
            self._block = torch.empty(min(BLOCK, size), dtype=torch.float64)
        assert self._bits is not None
        origin, bits = float(self._origin()), self._block.numpy().view(np.int64)
        for start in range(0, size, BLOCK):
            sums = self._bits[start : start + BLOCK]
            rounded = self._block[: len(sums)].copy_(flat.buffer[start : start + BLOCK])
            if weight != 1:
                rounded.mul_(weight)
            rounded.add_(origin)
            np.copyto(sums, bits[: len(sums)]) if first else np.add(sums, bits[: len(sums)], out=sums)
        self.count += 1

    def merge(self, other: ExactSum) -> None:
        """The summands of another sum on the same grid, to which nothing is added any more: its memory is kept. Raises
        ValueError where it is none."""
        if other.grid != self.grid:
            raise ValueError(f"sums on unlike grids do not add: {other.grid} and {self.grid}")
        if not other.count:
            return
        assert other.layout is not None
        self._expect(other.layout, other.dtypes, other.count)
        self._merged += other._parts()
        self.layout, self.dtypes, self.count = other.layout, other.dtypes, self.count + other.count
        if len(self._merged) > MERGED:
            self._bits, self._merged = self._whole(), []

    def over(self, weight: float) -> Params:
        """The sum over `weight`, every leaf in its own type. Raises ValueError unless the weight is positive."""
        if not weight > 0:
            raise ValueError(f"a mean needs one summand at least and a positive weight, got {weight}")
        if self.layout is None:
            return {}
        steps, offset, size = math.ldexp(weight, -self.grid.exponent), self._offset(), self.layout.size
        out = torch.empty(size, dtype=self.layout.dtype)
        block = torch.empty(min(BLOCK, size), dtype=torch.float64)
        bits = np.empty(len(block), np.int64)
        for start in range(0, size, BLOCK):
            entries = out[start : start + BLOCK]
            first, *more = (part[start : start + BLOCK] for part in self._parts())
            np.subtract(first, offset, out=bits[: len(entries)])
            for part in more:
                np.add(bits[: len(entries)], part, out=bits[: len(entries)])
            entries.copy_(block[: len(entries)].copy_(torch.from_numpy(bits[: len(entries)])).div_(steps))
        mean = Flat(self.layout, out)
        if all(dtype == self.layout.dtype for dtype in self.dtypes):
            return mean
        return {k: v.to(dtype) for (k, v), dtype in zip(mean.items(), self.dtypes, strict=True)}

    @property
    def memory(self) -> Bits | None:
        """Where the summands were added: `spare` for another sum once this one and those that it was merged into are
        gone."""
        return self._bits

    def _parts(self) -> list[Bits]:
        return [*([] if self._bits is None else [self._bits]), *self._merged]

    def _whole(self) -> Bits:
        """All in one: this sum's own memory, or another's, where there is but one part."""
        first, *more = self._parts() or [np.zeros(0, np.int64)]
        whole = first.copy() if more else first
        for part in more:
            whole += part
        return whole

    def _origin(self) -> np.float64:
        return np.float64(math.ldexp(ROUND, self.grid.exponent))

    def _offset(self) -> Bits:
        return self._origin().reshape(1).view(np.int64) * self.count

    def _expect(self, layout: Layout, dtypes: tuple[torch.dtype, ...], count: int) -> None:
        if self.count + count > self.grid.summands:
            raise ValueError(f"a grid for {self.grid.summands} summands has no room for {self.count + count}")
        if self.layout is not None and (layout != self.layout or dtypes != self.dtypes):
            raise ValueError(f"summands differ in their leaves: {list(layout.names)} and {list(self.layout.names)}")


def _summand(value: Tensors) -> tuple[Flat, tuple[torch.dtype, ...]]:
    """(its leaves in one type, their own types). Of whole numbers, whose mean is none, float64."""
    if isinstance(value, Flat) and value.layout.dtype.is_floating_point:
        return value, (value.layout.dtype,) * len(value)
    dtypes = tuple(v.dtype if v.is_floating_point() else torch.float64 for _, v in sorted(value.items()))
    alike = len({*dtypes, *(v.dtype for v in value.values())}) <= 1
    return Flat.of(value if alike else {k: v.double() for k, v in value.items()}), dtypes


def _ends(x: Tensor) -> tuple[float, float]:
    """The least and the largest entry of x (n,), NaN where one is; 0.0 of none. numpy is twice as fast as torch."""
    if not len(x):
        return 0.0, 0.0
    entries = (x if x.dtype in (torch.float32, torch.float64) else x.float()).numpy()
    with np.errstate(invalid="ignore"):
        return float(entries.min()), float(entries.max())


def _travelled(grid: Grid, count: int, layout: Layout | None, dtypes: tuple[torch.dtype, ...], bits: Bits) -> ExactSum:
    made = ExactSum(grid)
    made.count, made.layout, made.dtypes, made._merged = count, layout, dtypes, [bits]
    return made
