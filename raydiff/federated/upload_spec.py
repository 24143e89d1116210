"""What an upload must look like: declared by the method, checked by the round loop before `aggregate`."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from raydiff.tree import Flat, Layout, Tensors


@dataclass(frozen=True)
class TensorSpec:
    """One leaf of an upload."""

    shape: tuple[int | str, ...]  # a name stands for any size, the same one everywhere in the spec
    dtype: torch.dtype
    values: tuple[range, ...] = ()  # allowed entries of each column (last axis; one range: of all); empty: any
    each: int | None = None  # how often each value that occurs must occur; None: any number of times

    def mismatch(self, x: Tensor, sizes: dict[str, int]) -> str | None:
        """Return how `x` differs, in words after "its leaf ...", or None.

        Adds its named sizes to those of earlier leaves.
        """
        if x.shape == self.shape and x.dtype == self.dtype and not self.values and self.each is None:
            return None  # The usual case: an upload may have hundreds of leaves.
        expected = len(x.shape) == len(self.shape) and [
            sizes.setdefault(n, size) if isinstance(n, str) else n for n, size in zip(self.shape, x.shape, strict=True)
        ]
        if expected != list(x.shape) or x.dtype != self.dtype:
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
    layout: Layout | None = None  # of a flat tree with such leaves, which are then not checked one by one

    def mismatch(self, value: Tensors) -> str | None:
        """Return how an upload differs from this spec, in words, or None."""
        if isinstance(value, Flat) and value.layout == self.layout:
            return None
        for name in sorted(value.keys() ^ self.leaves.keys()):
            return f"it has a leaf {name!r} that nobody asked for" if name in value else f"its leaf {name!r} is missing"
        sizes: dict[str, int] = {}
        for name, leaf in self.leaves.items():
            if why := leaf.mismatch(value[name], sizes):
                return f"its leaf {name!r} {why}"
        return None


def upload_spec_of(value: Tensors) -> UploadSpec:
    """Return the spec of values with these shapes and types."""
    if isinstance(value, Flat):
        return UploadSpec(_leaves(value.layout), value.layout)
    return UploadSpec({k: TensorSpec(tuple(v.shape), v.dtype) for k, v in value.items()})


@functools.lru_cache(maxsize=64)
def _leaves(layout: Layout) -> Mapping[str, TensorSpec]:
    return {k: TensorSpec(shape, layout.dtype) for k, shape in zip(layout.names, layout.shapes, strict=True)}
