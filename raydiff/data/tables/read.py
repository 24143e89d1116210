"""Tables: CSV or parquet files to category vectors.

Numbers are cut into bins, rare values are put together, missing ones are a category of their own or their rows are
dropped; the label is apart from the columns. A column of numbers with no more values than `bins` is taken as one of
texts, with a category for each. What is read as missing: an empty field, ?, NA, N/A, NaN, nan, null, NULL, (missing).

Without a preset, bins, categories and the label's classes are fitted on the rows themselves, before any mechanism; or
on so many public rows alone, which are drawn by their place in the file, whatever it holds. What the other rows have
beyond those is then their columns' last bin, or a category that there is in any case: numbers that are missing or none
at all go to MISSING, other values to OTHER. So a row that is not public changes its own codes, and nothing else.

Shapes: s rows, n columns, k categories at most.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydiff.data import sizes
from raydiff.data.tables.encode import MISSING, Column, Mapping, bins_of, groups_of, texts_of
from raydiff.data.tables.presets import PRESETS, Preset
from raydiff.lookup import check_one_of, nearest
from raydiff.seeding import generator

if TYPE_CHECKING:
    import pandas as pd

Ints = NDArray[np.int64]
SUFFIXES = (".csv", ".parquet")
MARKS = ["", "?", "NA", "N/A", "NaN", "nan", "null", "NULL", MISSING]
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
            check_one_of("preset", self.preset, PRESETS)
        if self.bins is not None and self.bins < 2:
            raise ValueError(f"bins must be at least 2, got {self.bins}")
        if len(set(self.columns)) < len(self.columns):
            raise ValueError(f"columns must name each column once, got {' '.join(self.columns)}")
        if self.label is not None and self.label in self.columns:
            raise ValueError(f"label {self.label!r} is also among the columns: it is a condition, apart from them")

    @property
    def known(self) -> Preset | None:
        """The preset by which it is read."""
        return PRESETS.get(self.preset or self.source)

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
    frame = _frame(path)
    columns, label = _chosen(config, frame, path)
    order = torch.randperm(len(frame), generator=generator(seed, "splits", "public rows")).numpy()
    frame, notes = _complete(config, frame, columns, label, path)
    if not (found := _found(config, columns, label)) or public is None:
        seen, rows = frame, None
    else:
        rows = _drawn(frame, order, public, path, found)
        frame = _typed(frame, rows, found, typed=path.suffix.lower() != ".csv")
        seen = frame.iloc[rows]
    mapping = _fitted(config, seen, columns, label, public=rows is not None)
    if (merged := [c.name for c in mapping.columns if _merges(c, seen)]) and config.known is None:
        notes.append(f"rare values merged in {', '.join(merged)}")
    if found:
        whose = "these rows" if rows is None else f"{len(rows)} public rows"
        notes.append(f"bins and categories were taken from {whose}")
    encoded = _encoded(frame, mapping, f"{path.name}", tuple(notes))
    return dataclasses.replace(encoded, found=found, public=None if rows is None else torch.from_numpy(rows))


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
    return name in PRESETS or is_file(name)


def is_file(name: str) -> bool:
    """Whether this is the path of a file that may hold a table."""
    return name.lower().endswith(SUFFIXES) and not Path(name).expanduser().is_dir()


def locate(source: str, root: str | None = None, *, part: int = 0) -> Path:
    """The file that `source` means: of a preset its training rows (part 0) or test rows (1). Raises ValueError where
    there is none."""
    if source not in PRESETS:
        path = Path(source).expanduser().absolute()
        if path.suffix.lower() not in SUFFIXES:
            known = f"{', '.join(PRESETS)}, or a .csv or .parquet file"
            raise ValueError(f"a table is {known}, got {source!r}{nearest(source, PRESETS)}")
    else:
        root = root or os.environ.get("RAYDIFF_DATA")
        if not root:
            raise ValueError(f"the table {source!r} needs a folder of data sets, set RAYDIFF_DATA or data.root")
        path = Path(root).expanduser().absolute() / PRESETS[source].files[part]
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    return path


def _frame(path: Path) -> pd.DataFrame:
    """The whole file, with missing values as such. Raises ValueError where it cannot be read."""
    import pandas as pd  # Half a second, which commands that read no table do without.

    sizes.check_fits(f"the table {path}", _claimed(path), "take fewer rows")
    try:
        if path.suffix.lower() == ".parquet":
            frame = pd.read_parquet(path).reset_index(drop=True).replace(dict.fromkeys(MARKS))
        else:
            frame = pd.read_csv(path, keep_default_na=False, na_values=MARKS, skipinitialspace=True, low_memory=False)
    except Exception as e:  # Each kind of damage has its own exception.
        raise ValueError(f"{path} cannot be read as a table ({type(e).__name__})") from e
    if not frame.index.equals(pd.RangeIndex(len(frame))):
        raise ValueError(f"{path} cannot be read as a table (its rows have more fields than its header)")
    frame.columns = [str(name) for name in frame.columns]
    if not frame.columns.is_unique:
        raise ValueError(f"{path} has two columns {frame.columns[frame.columns.duplicated()][0]!r}")
    if len(frame) < 2:
        raise ValueError(f"{path} has {len(frame)} row{'' if len(frame) == 1 else 's'}, a table needs two at least")
    return frame


def _claimed(path: Path) -> int:
    """Bytes that the file says it has: a parquet file may be small, and have very many rows."""
    if path.suffix.lower() != ".parquet":
        return path.stat().st_size
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        about = pq.read_metadata(path)
    except (pa.ArrowException, OSError) as e:
        raise ValueError(f"{path} cannot be read as a table ({type(e).__name__})") from e
    unpacked = sum(int(about.row_group(i).total_byte_size) for i in range(about.num_row_groups))
    return max(unpacked, 8 * int(about.num_rows) * int(about.num_columns))


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
    config: Table, frame: pd.DataFrame, columns: Sequence[str], label: str | None, path: Path
) -> tuple[pd.DataFrame, list[str]]:
    """The wanted columns of the rows that are kept, and notes on those left out: rows without a label, and of a preset
    those with any missing value."""
    drop = config.known is not None
    labels = [] if label is None else [label]
    wanted = frame[[*columns, *labels]]
    kept = wanted.dropna(subset=[*(columns if drop else ()), *labels])
    if len(kept) < 2:
        raise ValueError(f"{path} has {len(kept)} of {len(frame)} rows without missing values, a table needs two")
    left_out = len(frame) - len(kept)
    what = "a missing value" if drop else "no label"
    return kept, [f"{left_out} of {len(frame)} rows left out, with {what}"] if left_out else []


def _found(config: Table, columns: Sequence[str], label: str | None) -> tuple[str, ...]:
    """The columns, the label last, that the preset does not give."""
    preset = config.known
    given = {*preset.cuts, *preset.groups} if preset else set()
    labels = () if label is None or (preset and label == preset.label) else (label,)
    return (*(name for name in columns if name not in given), *labels)


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


def _typed(frame: pd.DataFrame, rows: Ints, found: Sequence[str], *, typed: bool) -> pd.DataFrame:
    """Numbers where all public values are such, whatever the others have made of a column that comes without a type;
    what is then no number, or not finite, is missing."""
    import pandas as pd

    frame = frame.copy()
    for name in found:
        seen = pd.to_numeric(frame[name].iloc[rows].dropna(), errors="coerce")
        if not typed and len(seen) and _numeric(seen) and not seen.isna().any():
            frame[name] = pd.to_numeric(frame[name], errors="coerce")
        if _numeric(frame[name]):
            infinite = np.isinf(frame[name].to_numpy(dtype=np.float64))
            infinite[rows] = False  # Public values that are infinite are refused later.
            frame[name] = frame[name].mask(infinite)
    return frame


def _fitted(config: Table, frame: pd.DataFrame, columns: Sequence[str], label: str | None, *, public: bool) -> Mapping:
    """`public`: these are the public rows alone."""
    preset = config.known
    bins = config.bins or (preset.bins if preset else 5)
    cuts = config.given_edges
    groups = preset.groups if preset else {}
    if public and bins < 3:
        raise ValueError(f"bins must be at least 3, one of them for what no public row has, got {bins}")
    fitted = []
    for name in columns:
        values, ours = frame[name], public and not (preset and name in {*preset.cuts, *groups})
        different = texts_of(values.dropna()).nunique() + bool(values.isna().any())
        if different < 2 and not public:
            raise ValueError(f"column {name!r} has one value only: leave it out of the columns")
        if name in cuts or (_numeric(values) and name not in groups and different > bins - ours):
            column = bins_of(values, name=name, bins=bins, edges=cuts.get(name), public=ours)
        else:
            if _numeric(values):
                bins_of(values, name=name, bins=bins, edges=None)  # This checks that numbers are finite.
            column = groups_of(values, name=name, bins=bins, groups=groups.get(name), public=ours)
        if len(column.categories) > bins:
            raise ValueError(
                f"column {name!r} has {len(column.categories)} categories, more than the {bins} that bins allow"
            )
        if not public and len(np.unique(column.codes(values))) < 2:
            raise ValueError(f"all values of column {name!r} fall into one category: give it other cuts")
        fitted.append(column)
    return Mapping(tuple(fitted), None if label is None else _label(frame[label], label, preset, public=public))


def _label(values: pd.Series, name: str, preset: Preset | None, *, public: bool) -> Column:
    whose = " in its public rows" if public else ""
    classes = texts_of(values).nunique()
    if classes < 2:
        raise ValueError(f"label {name!r} has one value only{whose}")
    if classes > MOST_CLASSES or (_numeric(values) and not np.isfinite(values.to_numpy(dtype=np.float64)).all()):
        raise ValueError(f"label {name!r} must have at most {MOST_CLASSES} classes, finite ones, got {classes}")
    if preset is not None and name == preset.label:
        given = {value: (value,) for value in preset.classes}
        return groups_of(values, name=name, bins=MOST_CLASSES, groups=given)
    return groups_of(values, name=name, bins=MOST_CLASSES + public, groups=None, public=public)


def _numeric(values: pd.Series) -> bool:
    import pandas as pd

    return pd.api.types.is_numeric_dtype(values.dtype) and not pd.api.types.is_bool_dtype(values.dtype)


def _merges(column: Column, frame: pd.DataFrame) -> bool:
    return column.edges is None and texts_of(frame[column.name].dropna()).nunique() > len(column.values)


def _encoded(frame: pd.DataFrame, mapping: Mapping, says: str, notes: tuple[str, ...]) -> Encoded:
    codes, labels = mapping.encode(frame)
    rows = torch.from_numpy(frame.index.to_numpy(dtype=np.int64).copy())
    return Encoded(
        torch.from_numpy(codes), None if labels is None else torch.from_numpy(labels), rows, mapping, says, notes
    )
