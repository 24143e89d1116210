"""Tables: CSV or parquet files to category vectors.

Columns are numbers, dates, durations or text (`kinds`), declared or else as their rows are. Numbers are cut into bins,
unless there are at most `bins` different ones; rare texts are merged. Missing values are a category. Undeclared kinds,
bins, categories and classes are fitted on all rows, before any mechanism, or on public rows only, drawn by their place
in the file. Other values of private rows then go to the first or last bin, to MISSING (no finite number among bins), or
to OTHER: a private cell changes its own code only. Shapes: s rows, n columns, k categories at most.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydiff.data.tables import cells
from raydiff.data.tables.cells import Cells
from raydiff.data.tables.code_books import CODE_BOOKS, RawTable as RawTable, TableOptions as TableOptions
from raydiff.data.tables.encode import Column, Mapping, bins_of, fit_groups, numbers
from raydiff.data.tables.kinds import MEANING, Kind, canonical, format_text, infer_kind
from raydiff.lookup import nearest, refuse
from raydiff.seeding import generator

if TYPE_CHECKING:
    import pandas as pd

Kinds = dict[str, Kind]
SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
MOST_CLASSES = 100
MOST_NAMED = 6  # columns of one kind that a note names


@dataclass(frozen=True, eq=False)
class Encoded:
    """A table as category vectors.

    Its `fitted_columns` (also the label) have undeclared categories, fitted on the rows at the ascending positions
    `public` (p,) int64; None: on all rows.
    """

    codes: Tensor  # (s, n) int64, each below the number of its column's categories
    labels: Tensor | None  # (s,) int64; None: there is no label
    rows: Tensor  # (s,) int64: the row of the file, 0 for the first below the header
    mapping: Mapping  # encoding of the columns
    says: str  # short description
    notes: tuple[str, ...] = ()  # kinds of the columns; columns and rows left out
    fitted_columns: tuple[str, ...] = ()
    public: Tensor | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the n columns."""
        return tuple(column.name for column in self.mapping.columns)

    @property
    def k(self) -> int:
        """Maximum number of categories of a column."""
        return max(len(column.categories) for column in self.mapping.columns)


def read_table(config: RawTable, *, public: int | None = None, seed: int = 0) -> Encoded:
    """Return the table, its undeclared categories fitted on `public` rows, drawn by `seed` (None: on all rows).

    Raises ValueError if the file cannot be read, a column is missing or unfit for `bins`, or rows are too few.
    """
    path = locate(config.source)
    table = cells.read_cells(path, config.csv)
    columns, label = _choose_columns(config, table, path)
    names = (*columns, *filter(None, [label]))
    frame, notes = _drop_incomplete_rows(config, table, names, label, path, public=public)
    fitted = tuple(name for name in names if name not in {*config.given_edges, *config.groups})
    rows = None
    if public is not None and fitted:
        order = torch.randperm(len(table.frame), generator=generator(seed, "splits", "public rows")).numpy()
        rows = _draw_public_rows(frame, order, public, path, fitted)
    raw = frame if rows is None else frame.iloc[rows]
    kinds = {name: _kind(config, table, name, raw[name].dropna().unique()) for name in names}
    frame = _canonical(frame, kinds, config, table)
    mapping = _fit(config, frame if rows is None else frame.iloc[rows], columns, label, kinds, public=rows is not None)
    if fitted:
        notes += [
            _describe_kinds({name: kinds[name] for name in fitted}),
            f"bins and categories were taken from {'these' if rows is None else f'{len(rows)} public'} rows",
        ]
    drawn = None if rows is None else torch.from_numpy(rows)
    return _encode(frame, mapping, path.name, tuple(notes), fitted_columns=fitted, public=drawn)


def read_again(config: RawTable, path: Path, mapping: Mapping) -> Encoded:
    """Another file of the same table, by a fitted mapping. Raises ValueError as `read_table`, and on unknown values."""
    table = cells.read_cells(path, config.csv)
    kinds = {column.name: column.kind for column in mapping.decoded}
    _check_columns([*kinds], table.frame.columns, path)
    label = None if mapping.label is None else mapping.label.name
    frame, notes = _drop_incomplete_rows(config, table, [*kinds], label, path)
    return _encode(_canonical(frame, kinds, config, table), mapping, path.name, tuple(notes))


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
        raise ValueError(
            f"a table is {', '.join(CODE_BOOKS)}, or a .csv, .tsv or .parquet file, got "
            f"{source!r}{nearest(source, CODE_BOOKS)}"
        )
    if source in CODE_BOOKS and not root:
        raise ValueError(f"the table {source!r} needs a folder of data sets, set RAYDIFF_DATA or data.root")
    below = Path(root or "") / CODE_BOOKS[source].files[part] if source in CODE_BOOKS else Path(source)
    if not (path := below.expanduser().absolute()).is_file():
        raise ValueError(f"there is no file {path}")
    return path


def _choose_columns(config: RawTable, table: Cells, path: Path) -> tuple[tuple[str, ...], str | None]:
    preset = config.code_book
    names = table.frame.columns
    label = config.label or (preset.label if preset else None)
    columns = config.columns or (preset.columns if preset else tuple(c for c in names if c != label))
    labels = () if label is None else (label,)
    _check_columns((*columns, *labels, *config.declared, *config.exclude), names, path)
    if label in (*columns, *config.exclude):
        raise ValueError(f"label {label!r} is also among the columns or data.exclude: it is a condition beside them")
    columns = tuple(c for c in columns if c not in config.exclude)
    if not columns:
        raise ValueError(f"{path} has no column but the label {label!r} and those that data.exclude names")
    unread = {name: table.kinds[name] for name in (*columns, *labels) if table.kinds.get(name, "text") not in MEANING}
    if unread:
        what = ", ".join(f"column {name!r} of {path.name} is of type {kind}" for name, kind in unread.items())
        raise ValueError(f"{what}: leave it out (--data.exclude {' '.join(map(shlex.quote, unread))})")
    return columns, label


def _check_columns(names: Sequence[str], columns: Iterable[str], path: Path) -> None:
    every = f"; it has {', '.join(columns)}"
    unknown = [name for name in names if name not in columns]
    refuse({name: [f"{path.name} has no column {name!r}{nearest(name, columns) or every}"] for name in unknown})


def _drop_incomplete_rows(
    config: RawTable, table: Cells, names: Sequence[str], label: str | None, path: Path, *, public: int | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """The kept rows, and notes: a preset leaves out rows with a missing value, else those without a label may go."""
    wanted = table.frame[list(names)]
    what = "a missing value" if config.code_book else "no label"
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
        raise ValueError(f"{path} keeps {len(kept)} of {len(wanted)} rows, a table needs two: no row may have {what}")
    return kept, [f"rows with {what} are left out"]  # the number depends on single cells


def _draw_public_rows(
    frame: pd.DataFrame, order: NDArray[np.int64], public: int, path: Path, fitted: Sequence[str]
) -> NDArray[np.int64]:
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
    if name in config.groups:
        texts = [text for group in config.groups[name].values() for text in group]
    declared: dict[str, Any] = {**config.declared, **dict.fromkeys(config.given_edges, "number")}
    of_file: Any = table.kinds.get(name) if len(texts) else None  # A private cell may decide the type of no value.
    kind: Kind = declared.get(name) or of_file or infer_kind(texts, config.csv.decimal)
    return kind


def _canonical(frame: pd.DataFrame, kinds: Kinds, config: RawTable, table: Cells) -> pd.DataFrame:
    """Each cell by itself in the one spelling of its value."""

    def respell(values: pd.Series) -> pd.Series:
        name = str(values.name)
        texts = values.dropna().unique()
        of_file: Any = table.kinds.get(name)
        if of_file in ("date", "duration"):  # Such cells of a parquet file have been read as seconds.
            return values.map({text: format_text(text, of_file) for text in texts}) if kinds[name] == "text" else values
        return values.map({text: canonical(text, kinds[name], config.csv.decimal) for text in texts})

    return frame.apply(respell)


def _describe_kinds(kinds: Kinds) -> str:
    """Return a note on what each column was taken for."""
    groups = []
    for kind in MEANING:
        names = [name for name in kinds if kinds[name] == kind]
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        if names:
            groups.append(f"{kind}: {', '.join(names[:MOST_NAMED])}{more}")
    return f"columns taken for {'; '.join(groups)}"


def _fit(
    config: RawTable, frame: pd.DataFrame, columns: Sequence[str], label: str | None, kinds: Kinds, *, public: bool
) -> Mapping:
    """`frame`: canonical texts; of public rows only if `public`."""
    bins = config.bins or (config.code_book.bins if config.code_book else 5 + public)
    if public and bins < 3:
        raise ValueError(f"data.bins must be at least 3, one of them for values of no public row, got {bins}")
    fitted = list[Column]()
    problems = dict[str, list[str]]()
    for name in columns:
        try:
            fitted.append(_column(config, frame[name], kinds[name], bins, public=public))
        except ValueError as error:
            problems[name] = [str(error)]
    refuse(problems)
    if max(len(column.categories) for column in fitted) < 2:
        raise ValueError(f"all columns ({', '.join(columns)}) have one value only: there is nothing to learn")
    return Mapping(tuple(fitted), None if label is None else _label(config, frame[label], kinds[label], public=public))


def _column(config: RawTable, values: pd.Series, kind: Kind, bins: int, *, public: bool) -> Column:
    name = str(values.name)
    edges = config.given_edges.get(name)
    groups = config.groups
    ours = public and edges is None and name not in groups
    is_number = kind != "text" and name not in groups
    if is_number:
        numbers(values.dropna(), kind)
    if is_number and (edges is not None or values.nunique(dropna=False) > bins - ours):
        column = bins_of(values, kind=kind, bins=bins, edges=edges, public=ours)
    else:
        column = fit_groups(values, kind=kind, bins=bins, groups=groups.get(name), public=ours)
    if (size := len(column.categories)) > bins:
        raise ValueError(f"column {name!r} has {size} categories, more than the {bins} that bins allow")
    return column


def _label(config: RawTable, values: pd.Series, kind: Kind, *, public: bool) -> Column:
    declared = config.groups.get(str(values.name))
    classes = values.nunique()
    if declared is None and not 2 <= classes <= MOST_CLASSES:
        remedy = ": name all its classes (--data.classes A B ...), or raise data.public" if public else ""
        raise ValueError(
            f"label {values.name!r} must have 2 to {MOST_CLASSES} classes, got {classes}"
            f"{' in its public rows' * public}{remedy}"
        )
    return fit_groups(values.dropna(), kind=kind, bins=MOST_CLASSES + public, groups=declared, public=public)


def _encode(frame: pd.DataFrame, mapping: Mapping, says: str, notes: tuple[str, ...], **more: Any) -> Encoded:
    codes, labels = mapping.encode(frame)
    return Encoded(
        codes=torch.from_numpy(codes),
        labels=None if labels is None else torch.from_numpy(labels),
        rows=torch.from_numpy(frame.index.to_numpy(dtype=np.int64).copy()),
        mapping=mapping,
        says=says,
        notes=notes,
        **more,
    )
