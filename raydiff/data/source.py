"""Source: all rows of a data set before they are cut into splits. Labels are at hand, pictures come on demand.

Shapes: N rows, K label columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from PIL import Image
from torch import Tensor

from raydiff.data.tables.encode import Mapping

Picture = tuple[str, Image.Image]
"""(where it is from, the picture as stored)."""
MOST_VALUES = 65_536
"""Labels must be below this: a model has a row of weights for each value up to the largest label."""


@dataclass(frozen=True)
class Source:
    """What a data set offers."""

    labels: Tensor
    """(N, K) int64; column 0 is the class."""
    columns: tuple[str, ...]
    """Names of the K label columns."""
    names: tuple[tuple[str, ...], ...]
    """For each label column the names of its values 0, 1, ..."""
    own_test: int
    """So many rows at the end are the source's own test rows (0: it has none)."""
    pictures: Callable[[Tensor], Iterator[Picture]]
    """Row numbers (n,), ascending -> the n pictures, one at a time; only these are decoded."""
    says: str
    """What it is, in a few words."""
    top: int = 255
    """The value of a white pixel."""
    notes: tuple[str, ...] = ()
    """What was done to the pictures, or left out, on the way in."""
    base: Tensor | None = None
    """(N,) int64: the class of each row, where column 0 is its superclass."""
    base_names: tuple[str, ...] = ()
    """Names of the values of `base`."""
    codes: Tensor | None = None
    """(N, n) int64: the rows of a table, which has no pictures."""
    mapping: Mapping | None = None
    """What the codes mean."""
    found: tuple[str, ...] = ()
    """Label columns, and of a table all columns, whose values nobody has given: they are those that rows have."""
    public: Tensor | None = None
    """(p,) int64: row numbers of the public rows, where these were drawn before any other row was looked at."""

    def select(self, labels: Sequence[str]) -> Source:
        """The source with these label columns only, in this order; all of them where none is named."""
        for name in labels:
            if name not in self.columns:
                raise ValueError(f"{self.says} has no label column {name!r}; it has {', '.join(self.columns)}")
        if not labels:
            return self
        index = [self.columns.index(name) for name in labels]
        names = tuple(self.names[i] for i in index)
        found = tuple(name for name in labels if name in self.found)
        return dataclasses.replace(self, labels=self.labels[:, index], columns=tuple(labels), names=names, found=found)
