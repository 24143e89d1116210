"""Source: all rows of a data set before the splits, with labels in memory and pictures on demand.

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
"""(location, stored picture)."""
MOST_VALUES = 65_536
"""Labels must be below this, since models have a row of weights for each value."""


@dataclass(frozen=True)
class Source:
    """All rows of a data set."""

    labels: Tensor
    """(N, K) int64; column 0 is the class."""
    columns: tuple[str, ...]
    """Names of the K label columns."""
    names: tuple[tuple[str, ...], ...]
    """Names of the values 0, 1, ... of each label column."""
    own_test: int
    """Number of test rows, at the end."""
    pictures: Callable[[Tensor], Iterator[Picture]]
    """Ascending row numbers (n,) -> iterator over the n pictures."""
    says: str
    """Description."""
    top: int = 255
    """The value of a white pixel."""
    notes: tuple[str, ...] = ()
    """Conversions, and rows or files left out."""
    base: Tensor | None = None
    """(N,) int64: the class of each row, if column 0 is a superclass."""
    base_names: tuple[str, ...] = ()
    """Names of the values of `base`."""
    codes: Tensor | None = None
    """(N, n) int64: codes of a table's rows, in place of pictures."""
    mapping: Mapping | None = None
    """Meaning of the codes."""
    fitted_columns: tuple[str, ...] = ()
    """Label columns, and of a table all columns, whose values are undeclared and taken from rows."""
    public: Tensor | None = None
    """(p,) int64: row numbers of the public rows, if drawn before any row was read."""

    def select(self, labels: Sequence[str]) -> Source:
        """The source with only these label columns, in this order; all if empty."""
        for name in labels:
            if name not in self.columns:
                raise ValueError(f"{self.says} has no label column {name!r}; it has {', '.join(self.columns)}")
        if not labels:
            return self
        index = [self.columns.index(name) for name in labels]
        names = tuple(self.names[i] for i in index)
        undeclared = tuple(name for name in labels if name in self.fitted_columns)
        chosen = self.labels[:, index]
        return dataclasses.replace(self, labels=chosen, columns=tuple(labels), names=names, fitted_columns=undeclared)
