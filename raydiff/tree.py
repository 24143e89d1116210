"""Algebra on `dict[str, Tensor]`, the only form in which model state crosses a boundary.

Every function returns new tensors and leaves its arguments alone.
"""

from __future__ import annotations

import functools
import hashlib
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch._utils import _unflatten_dense_tensors

Params = dict[str, Tensor]
Tensors = Mapping[str, Tensor]
"""A tree that is only read."""
Arrays = dict[str, np.ndarray[Any, Any]]
PIECE = 2**18  # entries
ALIGNMENT = 64  # bytes, of what torch allocates


@dataclass(frozen=True)
class Layout:
    """Where the leaves of a `Flat` lie in its buffer: by name, one after the other, each where torch would have put it
    (see `aligned`); what lies between them is 0."""

    names: tuple[str, ...]
    """Ascending."""
    shapes: tuple[tuple[int, ...], ...]
    """One for each name."""
    dtype: torch.dtype
    """Of all leaves."""

    @functools.cached_property
    def _pieces(self) -> list[tuple[str | None, Tensor]]:
        """What follows what in the buffer: something of the size of each leaf by its name, and, without one, of a gap;
        none has memory."""
        one, pieces = torch.empty(1, dtype=self.dtype), list[tuple[str | None, Tensor]]()
        for name, shape in zip(self.names, self.shapes, strict=True):
            pieces.append((name, one.expand(shape or (1,))))
            if gap := -math.prod(shape) % (ALIGNMENT // one.element_size()):
                pieces.append((None, one.expand(gap)))
        return pieces

    @functools.cached_property
    def size(self) -> int:
        """Entries of the buffer."""
        return sum(piece.numel() for _, piece in self._pieces)

    @functools.cached_property
    def nbytes(self) -> int:
        """Bytes of the leaves, gaps apart."""
        return sum(map(math.prod, self.shapes)) * self.dtype.itemsize

    def leaves(self, buffer: Tensor) -> Params:
        """Views of the buffer (size,)."""
        views = _unflatten_dense_tensors(buffer, [piece for _, piece in self._pieces])
        leaves = {name: v for (name, _), v in zip(self._pieces, views, strict=True) if name is not None}
        if all(self.shapes):
            return leaves
        return {k: leaves[k].view(shape) for k, shape in zip(self.names, self.shapes, strict=True)}  # Numbers are ().

    def joined(self, a: Tensors) -> Tensor:
        """A new buffer with these leaves, where they are."""
        where = next((v.device for v in a.values()), None)
        pieces = [
            piece.new_zeros(piece.shape, device=where) if name is None else a[name].detach().reshape(-1)
            for name, piece in self._pieces
        ]
        return torch.cat(pieces) if pieces else torch.empty(0, dtype=self.dtype)


@functools.lru_cache(maxsize=64)
def _layout(names: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> Layout:
    return Layout(names, shapes, dtype)  # Its pieces are made once.


class Flat(dict[str, Tensor]):
    """A tree whose leaves are views of one buffer: what is done to every entry takes one call, and a message has one
    part. Like every tree it is only read; whoever writes to it gets a TypeError."""

    def __init__(self, layout: Layout, buffer: Tensor) -> None:
        super().__init__(layout.leaves(buffer))
        self.layout, self.buffer = layout, buffer

    @classmethod
    def of(cls, a: Tensors) -> Flat:
        """The same leaves: `a` itself where it is flat, else a copy. Raises ValueError where types differ."""
        if isinstance(a, Flat):
            return a
        names = tuple(sorted(a))
        dtypes = {v.dtype for v in a.values()} or {torch.get_default_dtype()}
        if len(dtypes) > 1:
            raise ValueError(f"the leaves of a flat tree have one type, got {', '.join(sorted(map(str, dtypes)))}")
        layout = _layout(names, tuple(tuple(a[k].shape) for k in names), dtypes.pop())
        return cls(layout, layout.joined(a))

    def __reduce__(self) -> tuple[Any, ...]:
        of = (self.layout.names, self.layout.shapes, self.layout.dtype)
        return _travelled, (of, self.buffer.detach().cpu().view(torch.uint8).numpy())

    def _read_only(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a flat tree is only read: `dict(tree)` can be written to")

    __setitem__ = __delitem__ = __ior__ = _read_only
    clear = pop = popitem = setdefault = update = _read_only


def _travelled(of: tuple[Any, ...], data: np.ndarray[Any, Any]) -> Flat:
    layout = _layout(*of)
    return Flat(layout, _from_numpy(data).view(layout.dtype))


def flattened(a: Tensors) -> Params:
    """The same leaves, flat where they have one type."""
    return Flat.of(a) if len({v.dtype for v in a.values()}) == 1 else dict(a)


def add(a: Tensors, b: Tensors) -> Params:
    """a + b, leaf by leaf."""
    _same_keys(a, b)
    if isinstance(a, Flat) and isinstance(b, Flat) and a.layout == b.layout:
        return Flat(a.layout, a.buffer + b.buffer)
    return {k: a[k] + b[k] for k in a}


def sub(a: Tensors, b: Tensors) -> Params:
    """a - b, leaf by leaf."""
    _same_keys(a, b)
    if isinstance(a, Flat) and isinstance(b, Flat) and a.layout == b.layout:
        return Flat(a.layout, a.buffer - b.buffer)
    return {k: a[k] - b[k] for k in a}


def scale(a: Tensors, factor: float) -> Params:
    """factor * a."""
    return {k: v * factor for k, v in a.items()}


def norm(a: Tensors) -> float:
    """Euclidean norm over all leaves together, whatever their order."""
    norms = (float(torch.linalg.vector_norm(a[k], dtype=torch.float64)) for k in sorted(a))
    return math.sqrt(sum(n * n for n in norms))


def largest(a: Tensors) -> float:
    """The largest size of an entry; 0.0 of no entries, NaN where one is."""
    leaves = [a.buffer] if isinstance(a, Flat) else a.values()
    ends = [abs(float(end)) for v in leaves if v.numel() for end in v.aminmax()]
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
    if isinstance(a, Flat) and not any(k.startswith(prefix + "/") for k in a):
        return a
    return {k: v for k, v in a.items() if not k.startswith(prefix + "/")}


def nbytes(a: Tensors) -> int:
    """Bytes of all leaves: what a message costs on the wire, headers apart."""
    return a.layout.nbytes if isinstance(a, Flat) else sum(v.numel() * v.element_size() for v in a.values())


def is_finite(a: Tensors) -> bool:
    """Whether no leaf has a NaN or an infinite entry."""
    # A finite sum has finite terms, and costs much less than looking at each; one that overflows tells nothing.
    leaves = [a.buffer] if isinstance(a, Flat) else a.values()
    return all(math.isfinite(float(v.sum())) or bool(v.isfinite().all()) for v in leaves)


def arrays(a: Tensors) -> Arrays | Flat:
    """As they travel between processes: numpy arrays over the same memory; a flat tree is one by itself."""
    return a if isinstance(a, Flat) else {k: v.detach().cpu().numpy() for k, v in a.items()}


def tensors(given: Arrays | Flat) -> Params:
    """The inverse."""
    return given if isinstance(given, Flat) else {k: _from_numpy(v) for k, v in given.items()}


def _from_numpy(given: np.ndarray[Any, Any]) -> Tensor:
    """Ray's memory is read-only; nothing writes to it, since no method mutates its inputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return aligned(torch.from_numpy(given))


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
        """The sum in steps of the grid, leaf by leaf. What secure aggregation would mask: whole numbers, added modulo
        2**64."""
        if self.layout is None:
            return {}
        steps = self.layout.leaves(torch.from_numpy(self._whole() - self._offset()))
        return {k: v.numpy() for k, v in steps.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        of = self.layout and (self.layout.names, self.layout.shapes, self.layout.dtype)
        return _exact_sum, (self.grid, self.count, of, self.dtypes, self._whole())

    def add(self, value: Tensors, weight: float = 1.0) -> None:
        """One more summand, weight * value.

        Raises OutOfRange, and adds nothing, where it does not fit; ValueError where it has other leaves.
        """
        flat, dtypes = _summand(value)
        self._expect(flat.layout, dtypes, 1)
        for end in (end * weight for end in _ends(flat.buffer)):
            if not abs(end) <= self.grid.largest:  # Nor where it is NaN.
                room = f"the sum's range of {self.grid.largest:.4g}"
                raise OutOfRange(f"an entry times its weight is {end:.4g}, not within {room}")
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
    """(its leaves in one type, their own types)."""
    if isinstance(value, Flat):
        return value, (value.layout.dtype,) * len(value)
    dtypes = tuple(value[k].dtype for k in sorted(value))
    return Flat.of(value if len(set(dtypes)) <= 1 else {k: v.double() for k, v in value.items()}), dtypes


def _ends(x: Tensor) -> tuple[float, float]:
    """The least and the largest entry of x (n,), NaN where one is; 0.0 of none. numpy is twice as fast as torch."""
    if not len(x):
        return 0.0, 0.0
    entries = (x if x.dtype in (torch.float32, torch.float64) else x.float()).numpy()
    with np.errstate(invalid="ignore"):
        return float(entries.min()), float(entries.max())


def _exact_sum(grid: Grid, count: int, of: Any, dtypes: tuple[torch.dtype, ...], bits: Any) -> ExactSum:
    """A sum that has travelled."""
    made = ExactSum(grid)
    made.count, made.layout, made.dtypes, made._merged = count, of and _layout(*of), dtypes, [bits]
    return made
