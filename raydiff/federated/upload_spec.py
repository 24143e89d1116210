"""What an upload has to look like: declared by the method, checked by the round loop before `aggregate` sees it."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from raydiff import tree
from raydiff.tree import Flat, Layout, Tensors


@dataclass(frozen=True)
class TensorSpec:
    """One leaf of an upload."""

    shape: tuple[int | str, ...]
    """A name stands for any size, and for the same one wherever it stands in the form."""
    dtype: torch.dtype
    values: tuple[range, ...] = ()
    """What the entries of each column (of the last axis; one range: of all) may be; empty: anything."""
    each: int | None = None
    """How often every value that there is has to be there; None: it does not matter."""

    def mismatch(self, x: Tensor, sizes: dict[str, int]) -> str | None:
        """Why `x` is no such leaf, in words that follow "its leaf ..."; None: it is. `sizes` are those of the names so
        far, and this leaf's are added."""
        if x.shape == self.shape and x.dtype == self.dtype and not self.values and self.each is None:
            return None  # As nearly all are: an upload may have hundreds of leaves.
        known = len(x.shape) == len(self.shape) and [
            sizes.setdefault(n, size) if isinstance(n, str) else n for n, size in zip(self.shape, x.shape, strict=True)
        ]
        if known != list(x.shape) or x.dtype != self.dtype:
            shape = tuple(sizes.get(n, n) if isinstance(n, str) else n for n in self.shape)
            return f"is {x.dtype} {tuple(x.shape)} in place of {self.dtype} {shape}"
        low, high = ([getattr(r, end) for r in self.values] for end in ("start", "stop"))
        if self.values and not bool(((x >= torch.tensor(low)) & (x < torch.tensor(high))).all()):
            return "has entries outside " + ", ".join(f"{r.start} .. {r.stop - 1}" for r in self.values)
        if self.each is not None and not bool((x.unique(return_counts=True)[1] == self.each).all()):
            return f"has values that are not there {self.each} times"
        return None


@dataclass(frozen=True)
class UploadSpec:
    """Leaves by name, and no others."""

    leaves: Mapping[str, TensorSpec] = field(default_factory=dict)
    longest: float = math.inf
    """Euclidean norm of all leaves together, at most."""
    layout: Layout | None = None
    """Of a flat tree whose leaves are like these, whatever is in them; None: each leaf is looked at."""

    def mismatch(self, value: Tensors) -> str | None:
        """Why an upload is not of this form, in words; None: it is."""
        alike = isinstance(value, Flat) and value.layout == self.layout
        if not alike and (why := self._tensor_mismatch(value)):
            return why
        if self.longest < math.inf and tree.norm(value) > self.longest:
            return f"its norm is above {self.longest:.4g}"  # not what it is: see `exact_sum`
        return None

    def _tensor_mismatch(self, value: Tensors) -> str | None:
        for name in sorted(value.keys() ^ self.leaves.keys()):
            return f"it has a leaf {name!r} that nobody asked for" if name in value else f"its leaf {name!r} is missing"
        sizes: dict[str, int] = {}
        for name, leaf in self.leaves.items():
            if why := leaf.mismatch(value[name], sizes):
                return f"its leaf {name!r} {why}"
        return None


def upload_spec_of(value: Tensors, *, longest: float = math.inf) -> UploadSpec:
    """The form of what has these shapes and types."""
    if isinstance(value, Flat):
        return UploadSpec(_leaves(value.layout), longest, value.layout)
    return UploadSpec({k: TensorSpec(tuple(v.shape), v.dtype) for k, v in value.items()}, longest)


@functools.lru_cache(maxsize=64)
def _leaves(layout: Layout) -> Mapping[str, TensorSpec]:
    return {k: TensorSpec(shape, layout.dtype) for k, shape in zip(layout.names, layout.shapes, strict=True)}
