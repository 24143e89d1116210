"""How a table is read, and tables whose columns, edges, groups and classes are declared.

Nothing about declared ones is taken from rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge

from raydiff.data.tables.cells import Csv
from raydiff.data.tables.kinds import MEANING
from raydiff.lookup import Door, check_one_of, nearest
from raydiff.settings import settings


@dataclass(frozen=True, kw_only=True)
class CodeBook:
    """Declared columns, categories and classes of one table."""

    files: tuple[str, ...]  # training rows and, if there are, test rows, below the root
    label: str  # the label column
    classes: tuple[str, ...]  # values of the label
    bins: int  # maximum number of categories of a column
    read: Mapping[
        str, Sequence[float] | Mapping[str, Sequence[str]]
    ]  # {column: edges of numbers, or {category: values}}

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
        classes = {value: (value,) for value in self.classes}
        return {name: how for name, how in {**self.read, self.label: classes}.items() if isinstance(how, Mapping)}


CODE_BOOKS: Door[CodeBook] = Door(
    "code book",  # by the name of the data set
    {name.lower(): f"raydiff.papers.discrete.tables:{name}" for name in ("ADULT", "GERMAN", "LOAN")},
)


@settings(frozen=True, kw_only=True)
class TableOptions:
    """How a table's file is read."""

    bins: Annotated[int, Ge(2)] | None = None
    """Most categories of a table's column, with missing values; None: the preset's, or 5 and one for unseen values."""
    exclude: tuple[str, ...] = ()
    """Columns of a table to leave out."""
    types: tuple[str, ...] = ()
    """COLUMN=TYPE of a table's columns: text, number, date or duration; others are inferred."""
    classes: tuple[str, ...] = ()
    """All classes of a table's label; empty: those of its rows. Rows of no such class are left out."""
    csv: Csv = Csv()
    """How a CSV file is written."""

    def __post_init__(self) -> None:
        for column, kind in self.declared.items():
            if not column or kind not in MEANING:
                raise ValueError(
                    f"data.types must be COLUMN=TYPE of the types {', '.join(MEANING)}, got "
                    f"'{column}={kind}'{nearest(kind, MEANING)}"
                )

    @property
    def declared(self) -> dict[str, Any]:
        """{column: kind} of `types`."""
        return {column: kind for column, _, kind in (text.rpartition("=") for text in self.types)}


@settings(frozen=True, kw_only=True)
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
        if self.code_book:
            return self.code_book.groups
        return {self.label: {text: (text,) for text in self.classes}} if self.label and self.classes else {}

    @property
    def code_book(self) -> CodeBook | None:
        """The preset."""
        return CODE_BOOKS.get(self.preset or self.source)
