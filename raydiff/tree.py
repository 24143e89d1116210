"""Algebra on `dict[str, Tensor]`, the only form in which model state crosses a boundary.

Every function returns new tensors and leaves its arguments alone.
"""

import functools
import hashlib
import itertools
import math
import operator
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

Params = dict[str, Tensor]
Tensors = Mapping[str, Tensor]
"""A tree that is only read."""
Arrays = dict[str, np.ndarray[Any, Any]]
PIECE = 2**18  # entries
ALIGNMENT = 64  # bytes, of what torch allocates


@dataclass(frozen=True)
class Layout:
    """Names, shapes and type of the leaves in a `Flat`'s buffer, each as torch aligns memory, zeros between them."""

    names: tuple[str, ...]
    """Ascending."""
    shapes: tuple[tuple[int, ...], ...]
    """One for each name."""
    dtype: torch.dtype
    """Of all leaves."""

    @functools.cached_property
    def _starts(self) -> list[int]:
        """The first entry of each leaf, then the size of the buffer."""
        unit = ALIGNMENT // self.dtype.itemsize
        return [0, *itertools.accumulate(math.ceil(math.prod(shape) / unit) * unit for shape in self.shapes)]

    @property
    def size(self) -> int:
        """Entries of the buffer."""
        return self._starts[-1]

    @functools.cached_property
    def nbytes(self) -> int:
        """Bytes of the leaves, gaps apart."""
        return sum(map(math.prod, self.shapes)) * self.dtype.itemsize

    @functools.cached_property
    def _views(self) -> list[tuple[str, tuple[int, ...], tuple[int, ...], int]]:
        """(name, shape, strides, first entry) of each leaf."""
        strides = (
            tuple(math.prod(max(n, 1) for n in shape[i + 1 :]) for i in range(len(shape))) for shape in self.shapes
        )
        return list(zip(self.names, self.shapes, strides, self._starts, strict=False))

    def __reduce__(self) -> tuple[Any, ...]:
        return _layout, (self.names, self.shapes, self.dtype)  # What is derived does not travel.

    def leaves(self, buffer: Tensor) -> Params:
        """Views of the buffer (size,), or of several (M, size) as leaves (M, ...)."""
        first = buffer.storage_offset()
        many = buffer.shape[:-1]
        apart = buffer.stride()[:-1]
        return {
            name: buffer.as_strided((*many, *shape), (*apart, *strides), first + start)
            for name, shape, strides, start in self._views
        }

    @classmethod
    def of(cls, a: Tensors) -> "Layout":
        """The layout of these leaves. Raises ValueError where their types differ."""
        dtypes = {v.dtype for v in a.values()} or {torch.get_default_dtype()}
        if len(dtypes) > 1:
            raise ValueError(f"the leaves of a flat tree have one type, got {', '.join(sorted(map(str, dtypes)))}")
        names = tuple(sorted(a))
        return _layout(names, tuple(tuple(a[k].shape) for k in names), dtypes.pop())

    def joined(self, a: Tensors, *many: int) -> Tensor:
        """A new buffer (*many, size) with these leaves (*many, ...), on their device."""
        device = next((v.device for v in a.values()), None)
        buffer = torch.zeros(*many, self.size, dtype=self.dtype, device=device)
        for name, view in self.leaves(buffer).items():
            view.copy_(a[name].detach())
        return buffer


@functools.lru_cache(maxsize=64)
def _layout(*fields: Any) -> Layout:
    """One object for equal layouts, so that each process derives their views once."""
    return Layout(*fields)


class Flat(dict[str, Tensor]):
    """A read-only tree whose leaves are views of one buffer: arithmetic takes one call, and a message has one part."""

    def __init__(self, layout: Layout, buffer: Tensor) -> None:
        super().__init__(layout.leaves(buffer))
        self.layout = layout
        self.buffer = buffer

    @classmethod
    def of(cls, a: Tensors) -> "Flat":
        """`a` itself where it is flat, else a flat copy. Raises ValueError where the leaves' types differ."""
        if isinstance(a, Flat):
            return a
        layout = Layout.of(a)
        return cls(layout, layout.joined(a))

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self.layout, self.buffer.detach().cpu().view(torch.uint8).numpy())

    def _read_only(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a flat tree is read-only: change dict(tree) instead")

    __setitem__ = __delitem__ = __ior__ = _read_only
    clear = pop = popitem = setdefault = update = _read_only


def _received(layout: Layout, data: np.ndarray[Any, Any]) -> Flat:
    return Flat(layout, _from_numpy(data).view(layout.dtype))


def flatten(a: Tensors) -> Params:
    """`a`, flat where its leaves have one type."""
    return Flat.of(a) if len({v.dtype for v in a.values()}) == 1 else dict(a)


def add(a: Tensors, b: Tensors) -> Params:
    """a + b, leaf by leaf."""
    return _leafwise(operator.add, a, b)


def sub(a: Tensors, b: Tensors) -> Params:
    """a - b, leaf by leaf."""
    return _leafwise(operator.sub, a, b)


def _leafwise(operation: Callable[[Tensor, Tensor], Tensor], a: Tensors, b: Tensors) -> Params:
    if a.keys() != b.keys():
        raise ValueError(f"trees differ in their keys: {sorted(a.keys() ^ b.keys())}")
    if isinstance(a, Flat) and isinstance(b, Flat) and a.layout == b.layout:
        return Flat(a.layout, operation(a.buffer, b.buffer))
    return {k: operation(a[k], b[k]) for k in a}


def scale(a: Tensors, factor: float) -> Params:
    """factor * a."""
    return {k: v * factor for k, v in a.items()}


def norm(a: Tensors) -> float:
    """Euclidean norm over all leaves together; their order does not matter."""
    norms = (float(torch.linalg.vector_norm(a[k], dtype=torch.float64)) for k in sorted(a))
    return math.sqrt(sum(n * n for n in norms))


def largest(a: Tensors) -> float:
    """Largest absolute value of an entry; 0.0 without entries, NaN where one is NaN."""
    ends = [abs(float(end)) for v in _parts(a) if v.numel() for end in v.aminmax()]
    return math.nan if any(map(math.isnan, ends)) else max(ends, default=0.0)


def prefixed(prefix: str, a: Params) -> Params:
    """{"prefix/key": leaf}, so that one dict can hold several trees."""
    return {f"{prefix}/{k}": v for k, v in a.items()}


def under(prefix: str, a: Params) -> Params:
    """The inverse of `prefixed`: the subtree below `prefix`, without it in the names."""
    return {k.removeprefix(f"{prefix}/"): v for k, v in a.items() if k.startswith(f"{prefix}/")}


def without(prefix: str, a: Params) -> Params:
    """All but the subtree below `prefix`."""
    if isinstance(a, Flat) and not any(k.startswith(f"{prefix}/") for k in a):
        return a
    return {k: v for k, v in a.items() if not k.startswith(f"{prefix}/")}


def clip_records(x: Tensor, clip: float, center: Tensor | None = None) -> Tensor:
    """x_i * min(1, clip / ||x_i||_2) for each record of x (N, ...), norm over the whole flattened record.

    With a center (...), x_i - center is clipped and the center added back.
    """
    if center is not None:
        return clip_records(x - center, clip) + center
    factor = clip_factors(norms(x), clip, x.dtype)
    clipped: Tensor = x * factor.view(-1, *[1] * (x.dim() - 1))
    return clipped


def norms(x: Tensor) -> Tensor:
    """(N,) in float64: ||x_i||_2 of each record of x (N, ...), over the whole flattened record."""
    flat = x.reshape(len(x), math.prod(x.shape[1:]))
    # On a CPU the sum makes a float64 copy: of pieces that fit its cache.
    rows = max(1, (PIECE if x.device.type == "cpu" else x.numel()) // max(1, flat.shape[1]))
    parts = [torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in flat.split(rows)]
    return torch.cat(parts)


def clip_factors(norms: Tensor, clip: float, dtype: torch.dtype) -> Tensor:
    """min(1, clip / norm) of float64 norms, in this type, rounded down."""
    return toward_zero((clip / norms.clamp_min(torch.finfo(norms.dtype).tiny)).clamp_max(1.0), dtype)


def toward_zero(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Float64 entries in this type, rounded toward zero."""
    rounded = exact.to(dtype)
    return torch.where(rounded.abs() > exact.abs(), torch.nextafter(rounded, torch.zeros_like(rounded)), rounded)


def nbytes(a: Tensors) -> int:
    """Bytes of all leaves: what a message costs on the wire, headers apart."""
    return a.layout.nbytes if isinstance(a, Flat) else sum(v.numel() * v.element_size() for v in a.values())


class NotFinite(ValueError):
    """What a model computes is NaN or infinite."""


def finite(values: Tensor, what: str) -> Tensor:
    """Return the values. Raises NotFinite where one is NaN or infinite: clamped or rounded, it would look like data."""
    if not values.isfinite().all():
        raise NotFinite(f"{what} are not finite: training diverged; lower the learning rate")
    return values


def is_finite(a: Tensors) -> bool:
    """Whether no leaf has a NaN or an infinite entry."""
    # A finite sum has finite terms and is much cheaper; a sum that overflows decides nothing.
    return all(math.isfinite(float(v.sum())) or bool(v.isfinite().all()) for v in _parts(a))


def _parts(a: Tensors) -> Iterable[Tensor]:
    """The tensors that hold all entries."""
    return [a.buffer] if isinstance(a, Flat) else a.values()


def arrays(a: Tensors) -> Arrays | Flat:
    """The form for messages between processes: numpy arrays over the same memory, or the flat tree itself."""
    return a if isinstance(a, Flat) else {k: v.detach().cpu().numpy() for k, v in a.items()}


def tensors(message: Arrays | Flat) -> Params:
    """The inverse of `arrays`."""
    return message if isinstance(message, Flat) else {k: _from_numpy(v) for k, v in message.items()}


def _from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    with warnings.catch_warnings():  # Ray's memory is read-only; no method writes to its inputs.
        warnings.simplefilter("ignore", UserWarning)
        return align_memory(torch.from_numpy(array))


def align_memory(v: Tensor) -> Tensor:
    """`v` at an address as torch allocates it.

    In files and Ray's messages tensors lie anywhere, and at an address that is no multiple of 16 products of thin
    matrices add in another order, which gives other bits.
    """
    return v if v.data_ptr() % ALIGNMENT == 0 else v.clone()


def digest(a: Tensors) -> str:
    """Hex SHA-256 over names, shapes, types and bits."""
    h = hashlib.sha256()
    for k in sorted(a):
        v = a[k].detach().cpu().contiguous()
        h.update(f"{k}{tuple(v.shape)}{v.dtype}".encode())
        h.update(v.reshape(-1).view(torch.uint8).numpy().tobytes())
    return h.hexdigest()


def digests(x: Tensor) -> list[str]:
    """Hex SHA-256 over the bits of each record of x (N, ...)."""
    return [hashlib.sha256(record.numpy().tobytes()).hexdigest() for record in x.cpu().contiguous()]
