"""Tables: CSV or parquet files to category vectors.

A column is numeric if all of its texts spell a number. Numbers are cut into bins, unless there are at most `bins`
different ones; rare texts are merged. Missing values (`cells.MARKS`) are a category.

Without a preset, types, bins, categories and classes are fitted on all rows, before any mechanism, or on public rows
only, drawn by their place in the file. Other values of private rows then go to the first or last bin, to MISSING (no
finite number among bins), or to OTHER: a private cell changes its own code only.

Shapes: s rows, n columns, k categories at most.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from collections.abc import Mapping as Dictionary
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydiff.data.tables import cells
from raydiff.data.tables.code_books import CODE_BOOKS, CodeBook
from raydiff.data.tables.encode import Column, Mapping, are_numbers, bins_of, groups_of, numbers, plain
from raydiff.lookup import check_one_of, nearest
from raydiff.seeding import generator

if TYPE_CHECKING:
    import pandas as pd

Ints = NDArray[np.int64]
SUFFIXES = (".csv", ".parquet")
MOST_CLASSES = 100


@dataclass(frozen=True, kw_only=True)
class RawTable:
    """A table and the encoding of its columns."""

    source: str = "adult"
    """A CSV or parquet file, or adult, german or loan below RAYDIFF_DATA."""
    preset: str | None = None
    """adult, german or loan: read `source` as that table, unless fields below are set."""
    label: str | None = None
    """The label column; None: the preset's, or none."""
    columns: tuple[str, ...] = ()
    """The columns, in order; empty: the preset's, or all but the label."""
    exclude: tuple[str, ...] = ()
    """Columns to leave out."""
    bins: int | None = None
    """Maximum number k of categories of a column, with missing values; None: the preset's, or 5."""

    def __post_init__(self) -> None:
        if self.preset is not None:
            check_one_of("preset", self.preset, CODE_BOOKS)
        if self.bins is not None and self.bins < 2:
            raise ValueError(f"bins must be at least 2, got {self.bins}")
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
    """Rows left out."""
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
    frame = cells.frame(path)
    columns, label = _chosen(config, frame, path)
    order = torch.randperm(len(frame), generator=generator(seed, "splits", "public rows")).numpy()
    frame, notes = _complete(config, frame[[*columns, *([label] if label else [])]], label, path, public=public)
    declared = {*config.code_book.cuts, *config.code_book.groups} if config.code_book else set()
    fitted = tuple(name for name in (*columns, label) if name is not None and name not in declared)
    rows = None if public is None or not fitted else _drawn(frame, order, public, path, fitted)
    seen = (frame if rows is None else frame.iloc[rows]).apply(_typed)
    mapping = _fit(config, seen, columns, label, public=rows is not None)
    if merged := [c.name for c in mapping.columns if c.edges is None and seen[c.name].nunique() > len(c.values)]:
        notes.append(f"rare values merged in {', '.join(merged)}")
    if fitted:
        notes.append(f"bins and categories were taken from {'these' if rows is None else f'{len(rows)} public'} rows")
    encoded = _encoded(frame, mapping, path.name, tuple(notes))
    return dataclasses.replace(encoded, fitted_columns=fitted, public=None if rows is None else torch.from_numpy(rows))


def read_again(config: RawTable, path: Path, mapping: Mapping) -> Encoded:
    """Another file of the same table, by a fitted mapping. Raises ValueError as `read`, and on unknown values."""
    frame = cells.frame(path)
    label = None if mapping.label is None else mapping.label.name
    _check_columns(names := [column.name for column in mapping.decoded], frame.columns, path)
    frame, notes = _complete(config, frame[names], label, path)
    return _encoded(frame, mapping, path.name, tuple(notes))


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
        wanted = f"{', '.join(CODE_BOOKS)}, or a .csv or .parquet file"
        raise ValueError(f"a table is {wanted}, got {source!r}{nearest(source, CODE_BOOKS)}")
    if source in CODE_BOOKS and not root:
        raise ValueError(f"the table {source!r} needs a folder of data sets, set RAYDIFF_DATA or data.root")
    below = Path(root or "") / CODE_BOOKS[source].files[part] if source in CODE_BOOKS else Path(source)
    if not (path := below.expanduser().absolute()).is_file():
        raise ValueError(f"there is no file {path}")
    return path


def _chosen(config: RawTable, frame: pd.DataFrame, path: Path) -> tuple[tuple[str, ...], str | None]:
    preset = config.code_book
    label = config.label or (preset.label if preset else None)
    columns = config.columns or (preset.columns if preset else tuple(c for c in frame.columns if c != label))
    _check_columns((*columns, *([label] if label else [])), frame.columns, path)
    _check_columns(config.exclude, columns, path)
    columns = tuple(c for c in columns if c not in config.exclude)
    if not columns:
        raise ValueError(f"{path} has no column but the label {label!r} and those that exclude names")
    if label in columns:
        raise ValueError(f"label {label!r} is also among the columns: it is a condition, apart from them")
    return columns, label


def _check_columns(names: Sequence[str], columns: Iterable[str], path: Path) -> None:
    for name in names:
        if name not in columns:
            hint = nearest(name, columns) or f"; it has {', '.join(columns)}"
            raise ValueError(f"{path.name} has no column {name!r}{hint}")


def _complete(
    config: RawTable, wanted: pd.DataFrame, label: str | None, path: Path, *, public: int | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """The kept rows, and notes: a preset leaves out rows with a missing value, else those without a label may go."""
    if config.code_book is None and (public is not None or label is None):
        return wanted, []
    kept = wanted.dropna(subset=None if config.code_book else [label])
    if len(kept) < 2:
        raise ValueError(f"{path} has {len(kept)} of {len(wanted)} rows without missing values, a table needs two")
    what = "a missing value" if config.code_book else "no label"
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


def _typed(values: pd.Series) -> pd.Series:
    """Numbers in their shortest spelling, if all are numbers. Raises ValueError on one that is not finite."""
    if numeric := are_numbers(values.dropna().unique()):
        numbers(values.dropna(), str(values.name))
    return values.map(plain, na_action="ignore") if numeric else values


def _fit(config: RawTable, frame: pd.DataFrame, columns: Sequence[str], label: str | None, *, public: bool) -> Mapping:
    """`public`: these are the public rows only."""
    preset, cuts = config.code_book, config.given_edges
    bins = config.bins or (preset.bins if preset else 5)
    groups = preset.groups if preset else {}
    if public and bins < 3:
        raise ValueError(f"bins must be at least 3, one of them for values of no public row, got {bins}")
    fitted = []
    for name in columns:
        values, numeric = frame[name], are_numbers(frame[name].dropna().unique())
        ours, different = public and name not in {*cuts, *groups}, values.nunique(dropna=False)
        if different < 2 and not public:
            raise ValueError(f"column {name!r} has one value only: leave it out of the columns")
        if name in cuts or (numeric and name not in groups and different > bins - ours):
            column = bins_of(values, name=name, bins=bins, edges=cuts.get(name), public=ours)
        else:
            column = groups_of(values, name=name, bins=bins, groups=groups.get(name), public=ours)
        if (size := len(column.categories)) > bins:
            raise ValueError(f"column {name!r} has {size} categories, more than the {bins} that bins allow")
        if not public and len(np.unique(column.codes(values))) < 2:
            raise ValueError(f"all values of column {name!r} fall into one category: give it other cuts")
        fitted.append(column)
    return Mapping(tuple(fitted), None if label is None else _label(frame[label].dropna(), groups.get(label), public))


def _label(values: pd.Series, groups: Dictionary[str, Sequence[str]] | None, public: bool) -> Column:
    name, classes = str(values.name), values.nunique()
    if classes < 2:
        raise ValueError(f"label {name!r} has one value only{' in its public rows' if public else ''}")
    if classes > MOST_CLASSES:
        raise ValueError(f"label {name!r} must have at most {MOST_CLASSES} classes, got {classes}")
    return groups_of(values, name=name, bins=MOST_CLASSES + public, groups=groups, public=public)


def _encoded(frame: pd.DataFrame, mapping: Mapping, says: str, notes: tuple[str, ...]) -> Encoded:
    codes, labels = mapping.encode(frame)
    numbers = torch.from_numpy(frame.index.to_numpy(dtype=np.int64).copy())
    classes = None if labels is None else torch.from_numpy(labels)
    return Encoded(torch.from_numpy(codes), classes, numbers, mapping, says, notes)
