"""Algebra on `dict[str, Tensor]`, the only form in which model state crosses a boundary.

Every function returns new tensors and leaves its arguments alone.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

Params = dict[str, Tensor]
Tensors = Mapping[str, Tensor]
"""A tree that is only read."""
Arrays = dict[str, np.ndarray[Any, Any]]
PIECE = 2**18  # entries
ALIGNMENT = 64  # bytes, of what torch allocates


def add(a: Tensors, b: Tensors) -> Params:
    """a + b, leaf by leaf."""
    _same_keys(a, b)
    return {k: a[k] + b[k] for k in a}


def sub(a: Tensors, b: Tensors) -> Params:
    """a - b, leaf by leaf."""
    _same_keys(a, b)
    return {k: a[k] - b[k] for k in a}


def scale(a: Tensors, factor: float) -> Params:
    """factor * a."""
    return {k: v * factor for k, v in a.items()}


def norm(a: Tensors) -> float:
    """Euclidean norm over all leaves together."""
    norms = (float(torch.linalg.vector_norm(v, dtype=torch.float64)) for v in a.values())
    return math.sqrt(sum(n * n for n in norms))


def largest(a: Tensors) -> float:
    """The largest size of an entry; 0.0 of no entries, NaN where one is."""
    ends = [abs(float(end)) for v in a.values() if v.numel() for end in v.aminmax()]
    return math.nan if any(map(math.isnan, ends)) else max(ends, default=0.0)


def prefixed(prefix: str, a: Params) -> Params:
    """{"prefix/key": leaf}: how several trees share one flat dict."""
    return {f"{prefix}/{k}": v for k, v in a.items()}


def under(prefix: str, a: Params) -> Params:
    """The inverse of `prefixed`: the subtree below `prefix`, with the prefix taken off."""
    start = prefix + "/"
    return {k[len(start) :]: v for k, v in a.items() if k.startswith(start)}


def clip_records(x: Tensor, clip: float, center: Tensor | None = None) -> Tensor:
    """x_i * min(1, clip / ||x_i||_2) for each record of x (N, ...), norm over the whole flattened record.

    With a center (...), x_i - center is clipped and the center added back.
    """
    if center is not None:
        return clip_records(x - center, clip) + center
    factor = shrinking(norms(x), clip, x.dtype)
    clipped: Tensor = x * factor.view(-1, *[1] * (x.dim() - 1))
    return clipped


def norms(x: Tensor) -> Tensor:
    """(N,) in float64: ||x_i||_2 of each record of x (N, ...), over the whole flattened record."""
    flat = x.reshape(len(x), math.prod(x.shape[1:]))
    # a CPU makes a float64 copy of what it sums: of a piece that stays in its cache
    rows = max(1, (PIECE if x.device.type == "cpu" else x.numel()) // max(1, flat.shape[1]))
    parts = [torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in flat.split(rows)]
    return torch.cat(parts)


def shrinking(norms: Tensor, clip: float, dtype: torch.dtype) -> Tensor:
    """min(1, clip / norm) of float64 norms in this type, rounded down: no factor is too large by its rounding."""
    return toward_zero((clip / norms.clamp_min(torch.finfo(norms.dtype).tiny)).clamp_max(1.0), dtype)


def toward_zero(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Float64 entries in this type, none larger in size for its rounding."""
    rounded = exact.to(dtype)
    return torch.where(rounded.abs() > exact.abs(), torch.nextafter(rounded, torch.zeros_like(rounded)), rounded)


def without(prefix: str, a: Params) -> Params:
    """All but the subtree below `prefix`."""
    return {k: v for k, v in a.items() if not k.startswith(prefix + "/")}


def nbytes(a: Tensors) -> int:
    """Bytes of all leaves: what a message costs on the wire, headers apart."""
    return sum(v.numel() * v.element_size() for v in a.values())


def is_finite(a: Tensors) -> bool:
    """Whether no leaf has a NaN or an infinite entry."""
    # a finite sum has finite terms, and costs much less than looking at each; one that overflows tells nothing
    return all(math.isfinite(float(v.sum())) or bool(v.isfinite().all()) for v in a.values())


def arrays(a: Tensors) -> Arrays:
    """As they travel between processes: numpy arrays over the same memory."""
    return {k: v.detach().cpu().numpy() for k, v in a.items()}


def tensors(given: Arrays) -> Params:
    """The inverse. Ray's memory is read-only; nothing writes to it, since no method mutates its inputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return {k: aligned(torch.from_numpy(v)) for k, v in given.items()}


def aligned(v: Tensor) -> Tensor:
    """The same numbers where torch would have put them. Files and Ray's messages have them anywhere, and products of a
    matrix with few columns or rows, as a network's skip has, add in another order at an address that is no multiple
    of 16: a model that was read would give other bits than the one that was trained."""
    return v if v.data_ptr() % ALIGNMENT == 0 else v.clone()


def digest(a: Tensors) -> str:
    """Hex SHA-256 over names, shapes, types and bits: equal digests mean bit-equal trees."""
    h = hashlib.sha256()
    for k in sorted(a):
        v = a[k].detach().cpu().contiguous()
        h.update(f"{k}{tuple(v.shape)}{v.dtype}".encode())
        h.update(v.reshape(-1).view(torch.uint8).numpy().tobytes())
    return h.hexdigest()


def digests(x: Tensor) -> list[str]:
    """Hex SHA-256 over the bits of each record of x (N, ...): equal digests mean the same record."""
    return [hashlib.sha256(record.numpy().tobytes()).hexdigest() for record in x.cpu().contiguous()]


def _same_keys(a: Tensors, b: Tensors) -> None:
    if a.keys() != b.keys():
        raise ValueError(f"trees differ in their keys: {sorted(a.keys() ^ b.keys())}")


# --- exact sums ---

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
        self.leaves: dict[str, tuple[torch.Size, torch.dtype]] = {}
        """Shape and type of each leaf, by its name; {} without summands."""
        self._bits: Bits | None = None  # Each summand's `_origin` is in it, too, modulo 2**64.
        self._merged: list[Bits] = []  # The same of other sums. Their memory may be read-only.

    @property
    def entries(self) -> int:
        """Of all leaves together."""
        return sum(shape.numel() for shape, _ in self.leaves.values())

    @property
    def nbytes(self) -> int:
        """What the sum takes on the wire, headers apart."""
        return 8 * self.entries

    @property
    def multiples(self) -> Bits:
        """The sum in steps of the grid, (entries,) in the leaves' order. What secure aggregation would mask:
        whole numbers, added modulo 2**64."""
        return self._whole() - self._offset()

    def __reduce__(self) -> tuple[Any, ...]:
        return _exact_sum, (self.grid, self.count, self.leaves, self._whole())

    def add(self, value: Tensors, weight: float = 1.0) -> None:
        """One more summand, weight * value.

        Raises OutOfRange, and adds nothing, where it does not fit; ValueError where it has other leaves.
        """
        leaves = {k: (value[k].shape, value[k].dtype) for k in sorted(value)}
        self._expect(leaves, 1)
        parts = _joined([value[k].reshape(-1) for k in leaves])
        for end in (float(end) * weight for part in parts if len(part) for end in part.aminmax()):
            if not abs(end) <= self.grid.largest:  # Nor where it is NaN.
                room = f"the sum's range of {self.grid.largest:.4g}"
                raise OutOfRange(f"an entry times its weight is {end:.4g}, not within {room}")
        self.leaves = leaves
        if first := self._bits is None:
            fits = self._spare is not None and len(self._spare) == self.entries
            self._bits = self._spare if fits else np.empty(self.entries, np.int64)
        assert self._bits is not None
        origin, start = float(self._origin()), 0
        buffer = torch.empty(min(BLOCK, self.entries), dtype=torch.float64)
        bits = buffer.numpy().view(np.int64)
        for entries in (block for part in parts for block in part.split(BLOCK)):
            rounded = buffer[: len(entries)].copy_(entries)
            if weight != 1:
                rounded.mul_(weight)
            rounded.add_(origin)
            sums = self._bits[start : start + len(entries)]
            np.copyto(sums, bits[: len(sums)]) if first else np.add(sums, bits[: len(sums)], out=sums)
            start += len(entries)
        self.count += 1

    def merge(self, other: ExactSum) -> None:
        """The summands of another sum on the same grid, to which nothing is added any more: its memory is kept. Raises
        ValueError where it is none."""
        if other.grid != self.grid:
            raise ValueError(f"sums on unlike grids do not add: {other.grid} and {self.grid}")
        if not other.count:
            return
        self._expect(other.leaves, other.count)
        self._merged += other._parts()
        self.leaves, self.count = other.leaves, self.count + other.count
        if len(self._merged) > MERGED:
            self._bits, self._merged = self._whole(), []

    def over(self, weight: float) -> Params:
        """The sum over `weight`, every leaf in its own type. Raises ValueError unless the weight is positive."""
        if not weight > 0:
            raise ValueError(f"a mean needs one summand at least and a positive weight, got {weight}")
        steps, offset, start = math.ldexp(weight, -self.grid.exponent), self._offset(), 0
        out = {k: torch.empty(shape, dtype=dtype) for k, (shape, dtype) in self.leaves.items()}
        buffer = torch.empty(min(BLOCK, self.entries), dtype=torch.float64)
        bits = np.empty(len(buffer), np.int64)
        for entries in (block for leaf in out.values() for block in leaf.view(-1).split(BLOCK)):
            size = len(entries)
            first, *more = (part[start : start + size] for part in self._parts())
            np.subtract(first, offset, out=bits[:size])
            for part in more:
                np.add(bits[:size], part, out=bits[:size])
            entries.copy_(buffer[:size].copy_(torch.from_numpy(bits[:size])).div_(steps))
            start += size
        return out

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

    def _expect(self, leaves: Mapping[str, tuple[torch.Size, torch.dtype]], count: int) -> None:
        if self.count + count > self.grid.summands:
            raise ValueError(f"a grid for {self.grid.summands} summands has no room for {self.count + count}")
        if self.count and leaves != self.leaves:
            raise ValueError(f"summands differ in their leaves: {sorted(leaves)} and {sorted(self.leaves)}")


def _joined(parts: list[Tensor]) -> list[Tensor]:
    """The same entries in fewer parts: leaves that are small together cost one call, not one each."""
    groups: list[list[Tensor]] = []
    room = 0
    for part in parts:
        if len(part) > room:
            groups.append([])
            room = BLOCK
        groups[-1].append(part)
        room -= len(part)
    return [torch.cat(group) if len(group) > 1 else group[0] for group in groups]


def _exact_sum(grid: Grid, count: int, leaves: dict[str, tuple[torch.Size, torch.dtype]], bits: Any) -> ExactSum:
    """A sum that has travelled."""
    made = ExactSum(grid)
    made.count, made.leaves, made._merged = count, leaves, [bits]
    return made
