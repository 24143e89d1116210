"""Tables: CSV or parquet files to category vectors.

Numbers are cut into bins, rare values are put together, missing ones are a category of their own or their rows are
dropped; the label is apart from the columns. A column of numbers with no more values than `bins` is taken as one of
texts, with a category for each. What is read as missing: an empty field, ?, NA, N/A, NaN, nan, null, NULL, (missing).

Without a preset, bins and merged values come from the rows themselves, before any mechanism: `Mapping` says so.

Shapes: s rows, n columns, k categories at most.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from raydiff import tree
from raydiff.data.categories import MISSING, Column, Mapping, bins_of, groups_of, texts_of
from raydiff.data.tablesets import PRESETS, Preset

Missing = Literal["category", "drop"]
Rare = Literal["merge", "refuse"]
SUFFIXES = (".csv", ".parquet")
MARKS = ["", "?", "NA", "N/A", "NaN", "nan", "null", "NULL", MISSING]
MOST_CLASSES = 100


@dataclass(frozen=True, kw_only=True)
class Table:
    """Which table, and how its columns become categories."""

    source: str = "adult"
    """A CSV or parquet file; or adult, german or loan, found below the root (`tablesets`)."""
    root: str | None = None
    """Folder of data sets; None: the environment variable RAYDIFF_DATA."""
    preset: str | None = None
    """adult, german or loan: read the file in `source` as that one is read. Fields that are given here win."""
    label: str | None = None
    """The label column; None: the preset's, or none."""
    columns: tuple[str, ...] = ()
    """The columns, in this order; empty: the preset's, or all but the label."""
    bins: int | None = None
    """k: the most categories of a column, missing values' included; None: the preset's, or 5."""
    cuts: tuple[str, ...] = ()
    """Given edges of columns of numbers, such as age=25,35,45; other columns are cut at quantiles."""
    rare: Rare = "merge"
    """More values than `bins` allow: merge the rarest into one category, or refuse the table."""
    missing: Missing | None = None
    """category: missing values are one; drop: leave out rows with one, in the columns or the label. None: a preset
    drops, else category; rows without a label are always left out."""

    def __post_init__(self) -> None:
        if not self.source:
            raise ValueError("source must name a table or a file, got ''")
        if self.preset is not None and self.preset not in PRESETS:
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {self.preset!r}")
        if self.bins is not None and self.bins < 2:
            raise ValueError(f"bins must be at least 2, got {self.bins}")
        if self.rare not in get_args(Rare):
            raise ValueError(f"rare must be one of {', '.join(get_args(Rare))}, got {self.rare!r}")
        if self.missing is not None and self.missing not in get_args(Missing):
            raise ValueError(f"missing must be one of {', '.join(get_args(Missing))}, got {self.missing!r}")
        if len(set(self.columns)) < len(self.columns):
            raise ValueError(f"columns must name each column once, got {' '.join(self.columns)}")
        if self.label is not None and self.label in self.columns:
            raise ValueError(f"label {self.label!r} is also among the columns: it is a condition, apart from them")
        for cut in self.cuts:
            edges_in(cut)

    @property
    def known(self) -> Preset | None:
        """The preset by which it is read."""
        return PRESETS.get(self.preset or self.source)


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

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the n columns."""
        return tuple(column.name for column in self.mapping.columns)

    @property
    def categories(self) -> tuple[tuple[str, ...], ...]:
        """For each column the names of its codes."""
        return tuple(column.categories for column in self.mapping.columns)

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of categories of each column."""
        return tuple(map(len, self.categories))

    @property
    def k(self) -> int:
        """The largest of them."""
        return max(self.counts)

    @property
    def digest(self) -> str:
        """Hex SHA-256 over codes, labels, row numbers and mapping."""
        leaves = {"codes": self.codes, "rows": self.rows}
        if self.labels is not None:
            leaves["labels"] = self.labels
        return hashlib.sha256((tree.digest(leaves) + self.mapping.to_json()).encode()).hexdigest()


def read(config: Table) -> Encoded:
    """The table that `config` describes.

    Raises ValueError, in one sentence, on a file that cannot be read, a column or label that it has not, fewer than two
    rows, a column with one value or more than `bins` allow, and numbers that are not finite.
    """
    path = locate(config.source, config.root)
    frame = _frame(path)
    columns, label = _chosen(config, frame, path)
    frame, notes = _complete(config, frame, columns, label, path)
    mapping = _fitted(config, frame, columns, label)
    if (merged := [c.name for c in mapping.columns if _merges(c, frame)]) and config.known is None:
        notes.append(f"rare values merged in {', '.join(merged)}")
    if config.known is None:
        notes.append("bins and categories were taken from these rows")
    return _encoded(frame, mapping, f"{path.name}", tuple(notes))


def read_again(config: Table, path: Path, mapping: Mapping) -> Encoded:
    """Another file of the same table, by a mapping that was fitted before. Raises ValueError as `read` does, and on
    values that have no category."""
    frame = _frame(path)
    label = None if mapping.label is None else mapping.label.name
    columns = tuple(column.name for column in mapping.columns)
    _check_there((*columns, *([label] if label else [])), frame, path)
    frame, notes = _complete(config, frame, columns, label, path)
    return _encoded(frame, mapping, path.name, tuple(notes))


def is_table(name: str) -> bool:
    """Whether this is the name of a table or of a file that may hold one."""
    return name in PRESETS or name.lower().endswith(SUFFIXES)


def locate(source: str, root: str | None, *, part: int = 0) -> Path:
    """The file that `source` means: of a preset its training rows (part 0) or test rows (1). Raises ValueError where
    there is none."""
    if source not in PRESETS:
        path = Path(source).expanduser().absolute()
        if path.suffix.lower() not in SUFFIXES:
            near = difflib.get_close_matches(source, PRESETS, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(f"a table is {', '.join(PRESETS)}, or a .csv or .parquet file, got {source!r}{hint}")
    else:
        root = root or os.environ.get("RAYDIFF_DATA")
        if not root:
            raise ValueError(f"the table {source!r} needs a folder of data sets, set RAYDIFF_DATA or data.root")
        path = Path(root).expanduser().absolute() / PRESETS[source].files[part]
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    return path


def edges_in(cut: str) -> tuple[str, tuple[float, ...]]:
    """(column, edges) of a text such as age=25,35,45. Raises ValueError unless edges are finite and ascend."""
    column, _, text = cut.rpartition("=")
    try:
        edges = tuple(float(e) for e in text.split(","))
    except ValueError:
        edges = ()
    ascending = all(a < b for a, b in itertools.pairwise(edges))
    if not column or not edges or not ascending or not all(map(math.isfinite, edges)):
        raise ValueError(f"cuts must be like age=25,35,45 with edges that ascend, got {cut!r}")
    return column, edges


def _frame(path: Path) -> pd.DataFrame:
    """The whole file, with missing values as such. Raises ValueError where it cannot be read."""
    try:
        if path.suffix.lower() == ".parquet":
            frame = pd.read_parquet(path).reset_index(drop=True).replace(dict.fromkeys(MARKS))
        else:
            frame = pd.read_csv(path, keep_default_na=False, na_values=MARKS, skipinitialspace=True, low_memory=False)
    except Exception as e:  # by kind of damage: OSError, UnicodeDecodeError, ParserError, ArrowInvalid, ...
        raise ValueError(f"{path} cannot be read as a table ({type(e).__name__})") from e
    if not frame.index.equals(pd.RangeIndex(len(frame))):
        raise ValueError(f"{path} cannot be read as a table (its rows have more fields than its header)")
    frame.columns = [str(name) for name in frame.columns]
    if not frame.columns.is_unique:
        raise ValueError(f"{path} has two columns {frame.columns[frame.columns.duplicated()][0]!r}")
    if len(frame) < 2:
        raise ValueError(f"{path} has {len(frame)} row{'' if len(frame) == 1 else 's'}, a table needs two at least")
    return frame


def _chosen(config: Table, frame: pd.DataFrame, path: Path) -> tuple[tuple[str, ...], str | None]:
    preset = config.known
    label = config.label or (preset.label if preset else None)
    columns = config.columns or (preset.columns if preset else tuple(c for c in frame.columns if c != label))
    wanted = (*columns, *([label] if label else []), *(edges_in(cut)[0] for cut in config.cuts))
    _check_there(wanted, frame, path)
    if not columns:
        raise ValueError(f"{path} has no column but the label {label!r}")
    if label in columns:
        raise ValueError(f"label {label!r} is also among the columns: it is a condition, apart from them")
    for cut in config.cuts:
        if edges_in(cut)[0] not in columns:
            raise ValueError(f"cuts name {edges_in(cut)[0]!r}, which is not among the columns")
    return columns, label


def _check_there(names: Sequence[str], frame: pd.DataFrame, path: Path) -> None:
    for name in names:
        if name not in frame.columns:
            near = difflib.get_close_matches(name, frame.columns, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(frame.columns)}"
            raise ValueError(f"{path.name} has no column {name!r}: {hint}")


def _complete(
    config: Table, frame: pd.DataFrame, columns: Sequence[str], label: str | None, path: Path
) -> tuple[pd.DataFrame, list[str]]:
    """The wanted columns of the rows that are kept, and notes on those left out."""
    drop = (config.missing or ("drop" if config.known else "category")) == "drop"
    labels = [] if label is None else [label]
    wanted = frame[[*columns, *labels]]
    kept = wanted.dropna(subset=[*(columns if drop else ()), *labels])
    if len(kept) < 2:
        raise ValueError(f"{path} has {len(kept)} of {len(frame)} rows without missing values, a table needs two")
    left_out = len(frame) - len(kept)
    what = "a missing value" if drop else "no label"
    return kept, [f"{left_out} of {len(frame)} rows left out, with {what}"] if left_out else []


def _fitted(config: Table, frame: pd.DataFrame, columns: Sequence[str], label: str | None) -> Mapping:
    preset = config.known
    bins = config.bins or (preset.bins if preset else 5)
    cuts = {**(preset.cuts if preset else {}), **dict(map(edges_in, config.cuts))}
    groups = preset.groups if preset else {}
    found = []
    for name in columns:
        values = frame[name]
        different = texts_of(values.dropna()).nunique() + bool(values.isna().any())
        if different < 2:
            raise ValueError(f"column {name!r} has one value only: leave it out of the columns")
        if name in cuts or (_numeric(values) and name not in groups and different > bins):
            column = bins_of(values, name=name, bins=bins, edges=cuts.get(name))
        else:
            if _numeric(values):
                bins_of(values, name=name, bins=bins, edges=None)  # for its check of finite numbers
            column = groups_of(values, name=name, bins=bins, groups=groups.get(name), merge=config.rare == "merge")
        if len(column.categories) > bins:
            raise ValueError(
                f"column {name!r} has {len(column.categories)} categories, more than the {bins} that bins allow"
            )
        if len(np.unique(column.codes(values))) < 2:
            raise ValueError(f"all values of column {name!r} fall into one category: give it other cuts")
        found.append(column)
    return Mapping(tuple(found), None if label is None else _label(frame[label], label))


def _label(values: pd.Series, name: str) -> Column:
    classes = texts_of(values).nunique()
    if classes < 2:
        raise ValueError(f"label {name!r} has one value only")
    if classes > MOST_CLASSES or (_numeric(values) and not np.isfinite(values.to_numpy(dtype=np.float64)).all()):
        raise ValueError(f"label {name!r} must have at most {MOST_CLASSES} classes, finite ones, got {classes}")
    return groups_of(values, name=name, bins=MOST_CLASSES, groups=None, merge=False)


def _numeric(values: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(values.dtype) and not pd.api.types.is_bool_dtype(values.dtype)


def _merges(column: Column, frame: pd.DataFrame) -> bool:
    return column.edges is None and texts_of(frame[column.name].dropna()).nunique() > len(column.values)


def _encoded(frame: pd.DataFrame, mapping: Mapping, says: str, notes: tuple[str, ...]) -> Encoded:
    codes, labels = mapping.encode(frame)
    rows = torch.from_numpy(frame.index.to_numpy(dtype=np.int64).copy())
    return Encoded(
        torch.from_numpy(codes), None if labels is None else torch.from_numpy(labels), rows, mapping, says, notes
    )
