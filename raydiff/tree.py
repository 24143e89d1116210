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

    def __reduce__(self) -> tuple[Any, ...]:
        return _layout, (self.names, self.shapes, self.dtype)


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
        return _travelled, (self.layout, self.buffer.detach().cpu().view(torch.uint8).numpy())

    def _read_only(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a flat tree is only read: `dict(tree)` can be written to")

    __setitem__ = __delitem__ = __ior__ = _read_only
    clear = pop = popitem = setdefault = update = _read_only


def _travelled(layout: Layout, data: np.ndarray[Any, Any]) -> Flat:
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
