"""Tables: CSV or parquet files to category vectors.

Each column is numbers, dates, durations or text (`kinds`), declared or else as its rows are. Numbers are cut into bins,
unless there are at most `bins` different ones; rare texts are merged. Missing values are a category. Columns that name
the rows, such as row numbers, are left out unless their kind is declared.

Without a preset, kinds, bins, categories and classes are fitted on all rows, before any mechanism, or on public rows
only, drawn by their place in the file. Other values of private rows then go to the first or last bin, to MISSING (no
finite number among bins), or to OTHER: a private cell changes its own code only.

Shapes: s rows, n columns, k categories at most.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Mapping as Dictionary
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydiff.data.tables import cells
from raydiff.data.tables.cells import Cells, Csv
from raydiff.data.tables.code_books import CODE_BOOKS, CodeBook
from raydiff.data.tables.encode import Column, Mapping, bins_of, groups_of, numbers
from raydiff.data.tables.kinds import MEANING, Kind, canonical, inferred, is_identifier, shown
from raydiff.lookup import check_one_of, nearest
from raydiff.seeding import generator

if TYPE_CHECKING:
    import pandas as pd

Ints = NDArray[np.int64]
SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
MOST_CLASSES = 100
MOST_NAMED = 6
"""Columns of one kind that a note names; of more, only their number."""


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """How a table's file is read."""

    bins: int | None = None
    """Largest number k of categories of a table's column, with missing values; None: the preset's, or 5, and one more for
    values of no public row."""
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
    def code_book(self) -> CodeBook | None:
        """The preset."""
        return CODE_BOOKS.get(self.preset or self.source)


@dataclass(frozen=True, eq=False)
class Encoded:
    """A table as category vectors."""

    codes: Tensor
    """(s, n) int64, each below the number of its column's categories."""
    labels: Tensor | None
    """(s,) int64; None: there is no label."""
    rows: Tensor
    """(s,) int64: the row of the file, 0 for the first below the header."""
    mapping: Mapping
    """Encoding of the columns."""
    says: str
    """Short description."""
    notes: tuple[str, ...] = ()
    """Kinds of the columns; columns and rows left out."""
    fitted_columns: tuple[str, ...] = ()
    """Columns, with the label, whose categories are undeclared and fitted on rows."""
    public: Tensor | None = None
    """(p,) int64: ascending positions of the public rows that `fitted_columns` was fitted on; None: on all rows."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the n columns."""
        return tuple(column.name for column in self.mapping.columns)

    @property
    def k(self) -> int:
        """Maximum number of categories of a column."""
        return max(len(column.categories) for column in self.mapping.columns)


def read(config: RawTable, *, public: int | None = None, seed: int = 0) -> Encoded:
    """The table, its undeclared categories fitted on `public` rows, drawn by `seed` (None: on all rows). Raises
    ValueError if the file cannot be read, a column is missing or unfit for `bins`, or rows are too few."""
    path = locate(config.source)
    table = cells.read(path, config.csv)
    columns, label = _chosen(config, table, path)
    order = torch.randperm(len(table.frame), generator=generator(seed, "splits", "public rows")).numpy()
    frame, notes = _complete(config, table, [*columns, *([label] if label else [])], label, path, public=public)
    declared = {*config.code_book.cuts, *config.code_book.groups} if config.code_book else set()
    fitted = tuple(name for name in frame if name not in declared)
    rows = None if public is None or not fitted else _drawn(frame, order, public, path, fitted)
    raw = frame if rows is None else frame.iloc[rows]
    kinds = {name: _kind(config, table, name, raw[name].dropna().unique()) for name in frame}
    frame = _canonical(frame, kinds, config, table)
    seen = frame if rows is None else frame.iloc[rows]
    guessed, most = {*fitted} - {*config.declared, *config.columns}, config.bins or 5
    identifiers = [c for c in columns if c in guessed and is_identifier(seen[c], kinds[c], rows=len(order), most=most)]
    if not (columns := tuple(name for name in columns if name not in identifiers)):
        raise ValueError(f"all columns of {path} name its rows: keep one with --data.types {identifiers[0]}=text")
    mapping = _fit(config, seen, columns, label, kinds, public=rows is not None)
    fitted = tuple(name for name in fitted if name not in identifiers)
    if fitted:
        notes += _taken(config, raw[list(fitted)], kinds, identifiers)
    if merged := [c.name for c in mapping.columns if c.edges is None and seen[c.name].nunique() > len(c.values)]:
        notes.append(f"rare values merged in {', '.join(merged)}")
    if fitted:
        notes.append(f"bins and categories were taken from {'these' if rows is None else f'{len(rows)} public'} rows")
    encoded = _encoded(frame, mapping, path.name, tuple(notes))
    return dataclasses.replace(encoded, fitted_columns=fitted, public=None if rows is None else torch.from_numpy(rows))


def read_again(config: RawTable, path: Path, mapping: Mapping) -> Encoded:
    """Another file of the same table, by a fitted mapping. Raises ValueError as `read`, and on unknown values."""
    table = cells.read(path, config.csv)
    kinds = {column.name: column.kind for column in mapping.decoded}
    _check_columns([*kinds], table.frame.columns, path)
    frame, notes = _complete(config, table, [*kinds], mapping.label and mapping.label.name, path)
    return _encoded(_canonical(frame, kinds, config, table), mapping, path.name, tuple(notes))


def is_table(name: str) -> bool:
    """Whether this names a preset or a file of tables."""
    return name in CODE_BOOKS or is_file(name)


def is_file(name: str) -> bool:
    """Whether this is the path of a CSV or parquet file."""
    return name.lower().endswith(SUFFIXES) and not Path(name).expanduser().is_dir()


def locate(source: str, root: str | None = None, *, part: int = 0) -> Path:
    """Path of the file; of a preset its training rows (part 0) or test rows (1). Raises ValueError if it is missing."""
    root = root or os.environ.get("RAYDIFF_DATA")
    if not is_table(source):
        wanted = f"{', '.join(CODE_BOOKS)}, or a .csv, .tsv or .parquet file"
        raise ValueError(f"a table is {wanted}, got {source!r}{nearest(source, CODE_BOOKS)}")
    if source in CODE_BOOKS and not root:
        raise ValueError(f"the table {source!r} needs a folder of data sets, set RAYDIFF_DATA or data.root")
    below = Path(root or "") / CODE_BOOKS[source].files[part] if source in CODE_BOOKS else Path(source)
    if not (path := below.expanduser().absolute()).is_file():
        raise ValueError(f"there is no file {path}")
    return path


def _chosen(config: RawTable, table: Cells, path: Path) -> tuple[tuple[str, ...], str | None]:
    preset, names = config.code_book, table.frame.columns
    label = config.label or (preset.label if preset else None)
    columns = config.columns or (preset.columns if preset else tuple(c for c in names if c != label))
    _check_columns((*columns, *([label] if label else []), *config.declared), names, path)
    _check_columns(config.exclude, columns, path)
    columns = tuple(c for c in columns if c not in config.exclude)
    if not columns:
        raise ValueError(f"{path} has no column but the label {label!r} and those that data.exclude names")
    if label in columns:
        raise ValueError(f"label {label!r} is also among the columns: it is a condition, apart from them")
    for name in (*columns, *([label] if label else [])):
        if (kind := table.kinds.get(name, "text")) not in MEANING:
            raise ValueError(
                f"column {name!r} of {path.name} has the type {kind}, which is no value: --data.exclude {name}"
            )
    return columns, label


def _check_columns(names: Sequence[str], columns: Iterable[str], path: Path) -> None:
    for name in names:
        if name not in columns:
            hint = nearest(name, columns) or f"; it has {', '.join(columns)}"
            raise ValueError(f"{path.name} has no column {name!r}{hint}")


def _complete(
    config: RawTable, table: Cells, names: Sequence[str], label: str | None, path: Path, *, public: int | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """The kept rows, and notes: a preset leaves out rows with a missing value, else those without a label may go."""
    wanted, what = table.frame[list(names)], "a missing value" if config.code_book else "no label"
    if label and config.classes:
        kind = _kind(config, table, label, ())
        texts = _canonical(wanted[[label]], {label: kind}, config, table)[label]
        is_class = texts.isin([canonical(text, kind) for text in config.classes])
        wanted = wanted.assign(**{label: wanted[label].where(is_class)})
        what = f"a {label} that is none of {', '.join(config.classes)}"
    elif config.code_book is None and (public is not None or label is None):
        return wanted, []
    kept = wanted.dropna(subset=None if config.code_book else [label])
    if len(kept) < 2:
        raise ValueError(f"{path} has {len(kept)} of {len(wanted)} rows without {what}, a table needs two")
    return kept, [f"rows with {what} are left out"]  # the number depends on single cells


def _drawn(frame: pd.DataFrame, order: Ints, public: int, path: Path, fitted: Sequence[str]) -> Ints:
    """Ascending positions of the public rows in `frame`: the first of its rows in this order."""
    if not 1 <= public <= len(frame):
        raise ValueError(
            f"the categories of {', '.join(fitted)} are undeclared: set data.public from 1 to {len(frame)}, to fit "
            f"them on public rows of {path.name}, or data.fitted_on to all (epsilon is then inf), got {public}"
        )
    kept = order[np.isin(order, frame.index)][:public]
    return np.flatnonzero(np.isin(frame.index, kept))


def _kind(config: RawTable, table: Cells, name: str, texts: Collection[str]) -> Kind:
    """The kind of a column: declared, of the file's type, or inferred from its declared or else from these texts."""
    groups = config.code_book.groups.get(name) if config.code_book else None
    if name == config.label and config.classes:
        texts = config.classes
    if groups is not None:
        texts = [text for group in groups.values() for text in group]
    if kind := "number" if name in config.given_edges else config.declared.get(name):
        return kind
    of_file: Any = table.kinds.get(name) if len(texts) else None  # A private cell may decide the type of no value.
    return of_file or inferred(texts, config.csv.decimal)


def _canonical(frame: pd.DataFrame, kinds: Dictionary[str, Kind], config: RawTable, table: Cells) -> pd.DataFrame:
    """Each cell by itself in the one spelling of its value."""

    def respelled(values: pd.Series) -> pd.Series:
        kind, texts = kinds[str(values.name)], values.dropna().unique()
        if kind == "text":  # A parquet file's dates have been read as seconds.
            of_file: Any = table.kinds.get(str(values.name), kind)
            return values.map({text: shown(text, of_file) for text in texts})
        return values.map({text: canonical(text, kind, config.csv.decimal) for text in texts})

    return frame.apply(respelled)


def _taken(config: RawTable, raw: pd.DataFrame, kinds: Dictionary[str, Kind], identifiers: Sequence[str]) -> list[str]:
    """Notes: what each column was taken for, and which were left out."""
    of_kind = {kind: _named([name for name in raw if kinds[name] == kind]) for kind in MEANING}
    notes = [f"columns taken for {'; '.join(f'{kind}: {names}' for kind, names in of_kind.items() if names)}"]
    if config.exclude:
        notes.append(f"columns left out by data.exclude: {_named(config.exclude)}")
    if identifiers:
        how = f"to keep one: --data.types '{identifiers[0]}=text', or number"
        notes.append(f"columns left out since they name rows: {_named(identifiers)} ({how})")
    return notes


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _fit(
    config: RawTable,
    frame: pd.DataFrame,
    columns: Sequence[str],
    label: str | None,
    kinds: Dictionary[str, Kind],
    *,
    public: bool,
) -> Mapping:
    """`frame`: canonical texts; of public rows only if `public`."""
    preset, cuts = config.code_book, config.given_edges
    bins = config.bins or (preset.bins if preset else 5 + public)
    groups = preset.groups if preset else {}
    if public and bins < 3:
        raise ValueError(f"data.bins must be at least 3, one of them for values of no public row, got {bins}")
    fitted = []
    for name in columns:
        values, kind = frame[name], kinds[name]
        ours, different = public and name not in {*cuts, *groups}, values.nunique(dropna=False)
        if kind != "text" and name not in groups:
            numbers(values.dropna(), kind)
        if name in cuts or (kind != "text" and name not in groups and different > bins - ours):
            column = bins_of(values, kind=kind, bins=bins, edges=cuts.get(name), public=ours)
        else:
            column = groups_of(values, kind=kind, bins=bins, groups=groups.get(name), public=ours)
        if (size := len(column.categories)) > bins:
            raise ValueError(f"column {name!r} has {size} categories, more than the {bins} that bins allow")
        fitted.append(column)
    if max(len(column.categories) for column in fitted) < 2:
        raise ValueError(f"all columns ({', '.join(columns)}) have one value only: there is nothing to learn")
    if label is not None and config.classes:
        groups = {label: {text: (text,) for text in config.classes}}
    return Mapping(tuple(fitted), None if label is None else _label(frame[label], kinds[label], groups, public))


def _label(
    values: pd.Series, kind: Kind, groups: Dictionary[str, Dictionary[str, Sequence[str]]], public: bool
) -> Column:
    values, name = values.dropna(), str(values.name)
    if (declared := groups.get(name)) is None and (classes := values.nunique()) < 2:
        only = f"one value only{f', {values.iloc[0]!r},' if classes else ''}{' in its public rows' if public else ''}"
        remedy = (
            f"name all its classes (--data.classes {values.iloc[0] if classes else 'no'} ...), or raise data.public"
        )
        raise ValueError(f"label {name!r} has {only}{f': {remedy}' if public else ''}")
    if declared is None and classes > MOST_CLASSES:
        raise ValueError(f"label {name!r} must have at most {MOST_CLASSES} classes, got {classes}")
    return groups_of(values, kind=kind, bins=MOST_CLASSES + public, groups=declared, public=public)


def _encoded(frame: pd.DataFrame, mapping: Mapping, says: str, notes: tuple[str, ...]) -> Encoded:
    codes, labels = mapping.encode(frame)
    numbers = torch.from_numpy(frame.index.to_numpy(dtype=np.int64).copy())
    classes = None if labels is None else torch.from_numpy(labels)
    return Encoded(torch.from_numpy(codes), classes, numbers, mapping, says, notes)
