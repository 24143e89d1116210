"""Tables whose columns, edges, groups and classes are written down: nothing about them is taken from rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raydiff import lookup


@dataclass(frozen=True, kw_only=True)
class CodeBook:
    """Declared columns, categories and classes of one table."""

    files: tuple[str, ...]  # training rows and, if there are, test rows, below the root
    label: str  # the label column
    classes: tuple[str, ...]  # values of the label
    bins: int  # maximum number of categories of a column
    read: Mapping[str, Sequence[float] | Mapping[str, Sequence[str]]]
    """{column: the edges of its bins, where it has numbers, else {category: values}}, in the order of the columns."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, without the label."""
        return tuple(self.read)

    @property
    def cuts(self) -> dict[str, Sequence[float]]:
        """Edges of the columns of numbers."""
        return {name: how for name, how in self.read.items() if not isinstance(how, Mapping)}

    @property
    def groups(self) -> dict[str, Mapping[str, Sequence[str]]]:
        """{column: {category: values}}, of all other columns and the label."""
        grouped = {name: how for name, how in self.read.items() if isinstance(how, Mapping)}
        return {**grouped, self.label: {value: (value,) for value in self.classes}}


CODE_BOOKS: lookup.Registry[CodeBook] = lookup.Registry(
    {name.lower(): f"raydiff.papers.discrete.tables:{name}" for name in ("ADULT", "GERMAN", "LOAN")}
)
"""By the name of the data set."""
