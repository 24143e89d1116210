"""Options of tables: the same for an audit and for the data of a trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raydiff.data.tables.cells import Csv
from raydiff.data.tables.code_books import CODE_BOOKS, CodeBook
from raydiff.data.tables.kinds import MEANING
from raydiff.lookup import check_one_of, nearest


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How a table's file is read."""

    bins: int | None = None
    """Largest number k of categories of a table's column, with missing values; None: the preset's, or 5, and one for
    values that no public row has."""
    exclude: tuple[str, ...] = ()
    """Columns of a table to leave out."""
    types: tuple[str, ...] = ()
    """COLUMN=TYPE of a table's columns: text, number, date or duration; others are inferred."""
    classes: tuple[str, ...] = ()
    """All classes of a table's label; empty: those of its rows. Rows of no such class are left out."""
    csv: Csv = Csv()
    """How a CSV file is written."""

    def __post_init__(self) -> None:
        if self.bins is not None and self.bins < 2:
            raise ValueError(f"data.bins must be at least 2, got {self.bins}")
        for column, kind in self.declared.items():
            if not column or kind not in MEANING:
                wanted = f"COLUMN=TYPE of the types {', '.join(MEANING)}"
                raise ValueError(f"data.types must be {wanted}, got '{column}={kind}'{nearest(kind, MEANING)}")

    @property
    def declared(self) -> dict[str, Any]:
        """{column: kind} of `types`."""
        return {column: kind for column, _, kind in (text.rpartition("=") for text in self.types)}


@dataclass(frozen=True, kw_only=True)
class RawTable(TableOptions):
    """A table and the encoding of its columns."""

    source: str = "adult"
    """A CSV or parquet file, or adult, german or loan below RAYDIFF_DATA."""
    preset: str | None = None
    """adult, german or loan: read `source` as that table, unless fields below are set."""
    label: str | None = None
    """The label column; None: the preset's, or none."""
    columns: tuple[str, ...] = ()
    """The columns, in order; empty: the preset's, or all but the label."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.preset is not None:
            check_one_of("preset", self.preset, CODE_BOOKS)
        if self.code_book and (self.types or self.classes):
            raise ValueError(f"data.types and data.classes must be empty: those of {self.source} are declared")
        if len(set(self.columns)) < len(self.columns):
            raise ValueError(f"columns must name each column once, got {' '.join(self.columns)}")

    @property
    def given_edges(self) -> dict[str, Sequence[float]]:
        """{column: edges} of columns with declared edges."""
        return dict(self.code_book.cuts) if self.code_book else {}

    @property
    def groups(self) -> dict[str, Mapping[str, Sequence[str]]]:
        """{column: {category: its values}} of columns of declared texts, and of a label of declared classes."""
        classes = {self.label: {text: (text,) for text in self.classes}} if self.label and self.classes else {}
        return {**(self.code_book.groups if self.code_book else {}), **classes}

    @property
    def code_book(self) -> CodeBook | None:
        """The preset."""
        return CODE_BOOKS.get(self.preset or self.source)
