"""Tables: CSV or parquet files to category vectors.

Each cell is read by itself, as text (`cells`). A column has numbers if all of its texts spell one. Numbers are cut into
bins, or are a category each where there are no more of them than `bins`; rare texts are put together. An empty field,
?, NA, N/A, NaN, nan, null, NULL and (missing) are missing values, a category of their own.

Without a preset, types, bins, categories and the label's classes are fitted on all rows, before any mechanism; or on so
many public rows alone, drawn by their place in the file. What another row has beyond those goes to the first or last
bin, to MISSING where a column of bins has no finite number, else to OTHER: a private cell changes its own code alone.

Shapes: s rows, n columns, k categories at most.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping as Dictionary
from collections.abc import Sequence
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
class Table:
    """Which table, and how its columns become categories."""

    source: str = "adult"
    """A CSV or parquet file; or adult, german or loan, found in the folder of data sets, RAYDIFF_DATA."""
    preset: str | None = None
    """adult, german or loan: read the file in `source` as that one is read. Fields that are given here win."""
    label: str | None = None
    """The label column; None: the preset's, or none."""
    columns: tuple[str, ...] = ()
    """The columns, in this order; empty: the preset's, or all but the label."""
    exclude: tuple[str, ...] = ()
    """Columns that are left out of these."""
    bins: int | None = None
    """k: the most categories of a column, missing values' included; None: the preset's, or 5."""

    def __post_init__(self) -> None:
        if not self.source:
            raise ValueError("source must name a table or a file, got ''")
        if self.preset is not None:
            check_one_of("preset", self.preset, CODE_BOOKS)
        if self.bins is not None and self.bins < 2:
            raise ValueError(f"bins must be at least 2, got {self.bins}")
        if len(set(self.columns)) < len(self.columns):
            raise ValueError(f"columns must name each column once, got {' '.join(self.columns)}")
        if self.label is not None and self.label in self.columns:
            raise ValueError(f"label {self.label!r} is also among the columns: it is a condition, apart from them")

    @property
    def known(self) -> CodeBook | None:
        """The preset by which it is read."""
        return CODE_BOOKS.get(self.preset or self.source)

    @property
    def given_edges(self) -> dict[str, Sequence[float]]:
        """{column: edges} of those that are not cut at quantiles."""
        return dict(self.known.cuts) if self.known else {}


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
    """From values to codes, and back."""
    says: str
    """What it is, in a few words."""
    notes: tuple[str, ...] = ()
    """What was left out or put together: a sentence each."""
    found: tuple[str, ...] = ()
    """Columns, the label among them, whose categories nobody has given: they are fitted on rows."""
    public: Tensor | None = None
    """(p,) int64: positions of the public rows that `found` was fitted on, ascending; None: on all rows."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the n columns."""
        return tuple(column.name for column in self.mapping.columns)

    @property
    def k(self) -> int:
        """The largest number of categories of a column."""
        return max(len(column.categories) for column in self.mapping.columns)


def read(config: Table, *, public: int | None = None, seed: int = 0) -> Encoded:
    """The table that `config` describes. What it leaves to be found is fitted on all rows, or on `public` rows alone,
    drawn by `seed`.

    Raises ValueError, in one sentence, on a file that cannot be read, a column or label that it has not, fewer than two
    rows, a column with one value or more than `bins` allow, numbers that are not finite, and too few public rows.
    """
    path = locate(config.source)
    frame = cells.frame(path)
    columns, label = _chosen(config, frame, path)
    order = torch.randperm(len(frame), generator=generator(seed, "splits", "public rows")).numpy()
    frame, notes = _complete(config, frame[[*columns, *([label] if label else [])]], label, path, public=public)
    found = _found(config, columns, label)
    rows = None if public is None or not found else _drawn(frame, order, public, path, found)
    seen = (frame if rows is None else frame.iloc[rows]).apply(_typed)
    mapping = _fitted(config, seen, columns, label, public=rows is not None)
    if merged := [c.name for c in mapping.columns if c.edges is None and seen[c.name].nunique() > len(c.values)]:
        notes.append(f"rare values merged in {', '.join(merged)}")
    if found:
        notes.append(f"bins and categories were taken from {'these' if rows is None else f'{len(rows)} public'} rows")
    encoded = _encoded(frame, mapping, f"{path.name}", tuple(notes))
    return dataclasses.replace(encoded, found=found, public=None if rows is None else torch.from_numpy(rows))


def read_again(config: Table, path: Path, mapping: Mapping) -> Encoded:
    """Another file of the same table, by a mapping that was fitted before. Raises ValueError as `read` does, and on
    values that have no category."""
    frame = cells.frame(path)
    label = None if mapping.label is None else mapping.label.name
    _check_there(names := [column.name for column in mapping.decoded], frame, path)
    frame, notes = _complete(config, frame[names], label, path)
    return _encoded(frame, mapping, path.name, tuple(notes))


def is_table(name: str) -> bool:
    """Whether this is the name of a table or of a file that may hold one."""
    return name in CODE_BOOKS or is_file(name)


def is_file(name: str) -> bool:
    """Whether this is the path of a file that may hold a table."""
    return name.lower().endswith(SUFFIXES) and not Path(name).expanduser().is_dir()


def locate(source: str, root: str | None = None, *, part: int = 0) -> Path:
    """The file that `source` means: of a preset its training rows (part 0) or test rows (1). Raises ValueError where
    there is none."""
    if source not in CODE_BOOKS:
        path = Path(source).expanduser().absolute()
        if path.suffix.lower() not in SUFFIXES:
            known = f"{', '.join(CODE_BOOKS)}, or a .csv or .parquet file"
            raise ValueError(f"a table is {known}, got {source!r}{nearest(source, CODE_BOOKS)}")
    else:
        root = root or os.environ.get("RAYDIFF_DATA")
        if not root:
            raise ValueError(f"the table {source!r} needs a folder of data sets, set RAYDIFF_DATA or data.root")
        path = Path(root).expanduser().absolute() / CODE_BOOKS[source].files[part]
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    return path


def _chosen(config: Table, frame: pd.DataFrame, path: Path) -> tuple[tuple[str, ...], str | None]:
    preset = config.known
    label = config.label or (preset.label if preset else None)
    columns = config.columns or (preset.columns if preset else tuple(c for c in frame.columns if c != label))
    wanted = (*columns, *([label] if label else []))
    _check_there(wanted, frame, path)
    columns = _without(columns, config.exclude, path)
    if not columns:
        raise ValueError(f"{path} has no column but the label {label!r}")
    if label in columns:
        raise ValueError(f"label {label!r} is also among the columns: it is a condition, apart from them")
    return columns, label


def _without(columns: Sequence[str], exclude: Sequence[str], path: Path) -> tuple[str, ...]:
    for name in exclude:
        if name not in columns:
            hint = nearest(name, columns) or f"; they are {', '.join(columns)}"
            raise ValueError(f"exclude names {name!r}, which is not among the columns of {path.name}{hint}")
    kept = tuple(c for c in columns if c not in exclude)
    if exclude and not kept:
        raise ValueError(f"exclude leaves no column of {path.name}")
    return kept


def _check_there(names: Sequence[str], frame: pd.DataFrame, path: Path) -> None:
    for name in names:
        if name not in frame.columns:
            hint = nearest(name, frame.columns) or f"; it has {', '.join(frame.columns)}"
            raise ValueError(f"{path.name} has no column {name!r}{hint}")


def _complete(
    config: Table, wanted: pd.DataFrame, label: str | None, path: Path, *, public: int | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """The rows that are kept, and notes on those left out: of a preset rows with a missing value, else rows without a
    label, which is OTHER where there are `public` rows."""
    if config.known is None and (public is not None or label is None):
        return wanted, []
    kept = wanted.dropna(subset=None if config.known else [label])
    if len(kept) < 2:
        raise ValueError(f"{path} has {len(kept)} of {len(wanted)} rows without missing values, a table needs two")
    what = "a missing value" if config.known else "no label"
    return kept, [f"rows with {what} are left out"]  # Not how many: that depends on single cells.


def _found(config: Table, columns: Sequence[str], label: str | None) -> tuple[str, ...]:
    """The columns, the label last, that the preset does not give."""
    given = {*config.known.cuts, *config.known.groups} if config.known else set()
    return tuple(name for name in (*columns, label) if name is not None and name not in given)


def _drawn(frame: pd.DataFrame, order: Ints, public: int, path: Path, found: Sequence[str]) -> Ints:
    """Positions of the public rows in `frame`, ascending: the first of the file's rows in this order that it has."""
    if public < 1:
        raise ValueError(
            f"nobody gives the categories of {', '.join(found)}, and data.public is 0: declare some rows of "
            f"{path.name} public, to fit them on, or set data.fitted_on to all (epsilon is then inf)"
        )
    if public > len(frame):
        raise ValueError(f"there are {len(frame)} rows in {path.name!r}, too few for data.public={public}: lower it")
    kept = order[np.isin(order, frame.index)][:public]
    return np.flatnonzero(np.isin(frame.index, kept))


def _typed(values: pd.Series) -> pd.Series:
    """With plain numbers, where there is nothing else. Raises ValueError on one that is not finite."""
    if numeric := are_numbers(values.dropna().unique()):
        numbers(values.dropna(), str(values.name))
    return values.map(plain, na_action="ignore") if numeric else values


def _fitted(config: Table, frame: pd.DataFrame, columns: Sequence[str], label: str | None, *, public: bool) -> Mapping:
    """`public`: these are the public rows alone."""
    preset, cuts = config.known, config.given_edges
    bins = config.bins or (preset.bins if preset else 5)
    groups = preset.groups if preset else {}
    if public and bins < 3:
        raise ValueError(f"bins must be at least 3, one of them for what no public row has, got {bins}")
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


def _label(values: pd.Series, given: Dictionary[str, Sequence[str]] | None, public: bool) -> Column:
    name, classes = str(values.name), values.nunique()
    if classes < 2:
        raise ValueError(f"label {name!r} has one value only{' in its public rows' if public else ''}")
    if classes > MOST_CLASSES:
        raise ValueError(f"label {name!r} must have at most {MOST_CLASSES} classes, got {classes}")
    return groups_of(values, name=name, bins=MOST_CLASSES + public, groups=given, public=public)


def _encoded(frame: pd.DataFrame, mapping: Mapping, says: str, notes: tuple[str, ...]) -> Encoded:
    codes, labels = mapping.encode(frame)
    rows = torch.from_numpy(frame.index.to_numpy(dtype=np.int64).copy())
    return Encoded(
        torch.from_numpy(codes), None if labels is None else torch.from_numpy(labels), rows, mapping, says, notes
    )
