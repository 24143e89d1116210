"""Generated rows of a table as one CSV file, put together from parts of which each is whole or not there.

Shapes: s rows, n columns.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raydiff.data.tables.encode import MISSING, OTHER, UNUSED, Mapping

FILE = "rows.csv"


def describe(mapping: Mapping) -> dict[str, Any]:
    """What a card says of the file: what a value is, and the categories of every column, the label last."""
    return {
        "file": FILE,
        "values": f"names of groups and of intervals of numbers; an empty field: a missing value; {OTHER}: rare "
        f"values, put together; {UNUSED}: a code that the column does not use, of rows that are still noised",
        "columns": {column.name: [c for c in column.categories if c != MISSING] for column in mapping.decoded},
    }


def most_bytes(mapping: Mapping) -> int:
    """The most that a row takes: each field in quotes, and each of its characters doubled."""
    longest = [max(len(name.encode()) for name in (*c.categories, UNUSED)) for c in mapping.decoded]
    return sum(2 * length + 3 for length in longest)


def header_bytes(mapping: Mapping) -> int:
    """The most that the line of column names takes."""
    return sum(2 * len(column.name.encode()) + 3 for column in mapping.decoded)


def write_part(
    path: Path, codes: NDArray[np.int64], labels: NDArray[np.int64], mapping: Mapping, *, header: bool
) -> None:
    """Rows from codes (s, n) and labels (s,), as `Mapping.decode` names them; `header` in the first part alone."""
    frame = mapping.decode(codes, labels)
    frame.to_csv(path, index=False, header=header, lineterminator="\n", encoding="utf-8")


def join(parts: Sequence[Path], path: Path) -> None:
    """One file of all parts, in this order."""
    with path.open("wb") as whole:
        for part in parts:
            with part.open("rb") as f:
                shutil.copyfileobj(f, whole)
