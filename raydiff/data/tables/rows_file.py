"""Generated rows of a table as one CSV file, joined from parts. Shapes: s rows, n columns."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raydiff.data.tables.encode import MISSING, OTHER, UNUSED, Mapping
from raydiff.formats.csv_files import write_csv

FILE = "rows.csv"


def describe(mapping: Mapping) -> dict[str, Any]:
    """Entry of a card: the meaning of values, and the categories of every column, the label last."""
    return {
        "file": FILE,
        "values": f"groups and intervals of numbers; empty: a missing value; {OTHER}: rare values; {UNUSED}: a code "
        "that the column does not use, of rows that are still noised",
        "columns": {column.name: [c for c in column.categories if c != MISSING] for column in mapping.decoded},
    }


def write_part(
    path: Path, codes: NDArray[np.int64], labels: NDArray[np.int64], mapping: Mapping, *, header: bool
) -> None:
    """Write rows from codes (s, n) and labels (s,), see `Mapping.decode`; `header` in the first part only."""
    write_csv(path, mapping.decode(codes, labels), header=header)


def join(parts: Sequence[Path], path: Path) -> None:
    with path.open("wb") as whole:
        for part in parts:
            with part.open("rb") as f:
                shutil.copyfileobj(f, whole)
