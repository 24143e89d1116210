"""Generated rows of a table as one CSV file, joined from parts. Shapes: s rows, n columns."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from raydiff.data.tables.encode import MISSING, OTHER, UNUSED, Column, Mapping
from raydiff.data.tables.kinds import format_text, number_text, value

if TYPE_CHECKING:
    import pandas as pd

FILE = "rows.csv"
Numbers = Literal["drawn", "bins"]
CODED = (
    f"groups of texts; {OTHER}: rare values; {UNUSED}: an unused code, of noised rows; an apostrophe before a formula"
)


def describe_values(mapping: Mapping, numbers: Numbers = "drawn") -> dict[str, Any]:
    """Entry of a card: the meaning of values, and the categories of every column, the label last."""
    drawn = f"drawn uniformly in their bins, in `ranges`; empty: missing, or no number ({OTHER}, {UNUSED})"
    values = f"numbers {drawn}" if numbers == "drawn" else "intervals of numbers; empty: missing"
    bins = [column for column in mapping.columns if column.edges is not None and numbers == "drawn"]
    return {
        "file": FILE,
        "values": f"{values}; {CODED}",
        "columns": {column.name: [c for c in column.categories if c != MISSING] for column in mapping.decoded},
        "numbers": numbers,
        "ranges": {c.name: [format_text(number_text(x), c.kind) for x in (_ends(c)[0], _ends(c)[-1])] for c in bins},
    }


def rows(
    mapping: Mapping, codes: NDArray[np.int64], labels: NDArray[np.int64], rng: torch.Generator | None
) -> pd.DataFrame:
    """Rows as `Mapping.decode` has them.

    With `rng`, in columns of numbers each bin becomes a number drawn uniformly within it, and what is no number is
    missing; dates are texts.
    """
    import pandas as pd  # slow to import

    table = mapping.decode(codes, labels)
    for i, column in enumerate(mapping.columns if rng else ()):
        cells = table[column.name]
        names = {*column.categories} - {MISSING, OTHER}
        if column.edges is not None:
            cells = pd.Series(_within_bins(column, codes[:, i], rng), dtype=object)
        elif column.kind == "date" or (column.kind != "text" and all(map(math.isfinite, map(value, names)))):
            cells = cells.where(cells.isin(names), None)
        else:
            continue
        table[column.name] = cells if column.kind == "date" else pd.to_numeric(cells).convert_dtypes()
    return table


def _within_bins(column: Column, codes: NDArray[np.int64], rng: torch.Generator | None) -> list[str | None]:
    ends = np.array(_ends(column))
    uniform = torch.rand(len(codes), dtype=torch.float64, generator=rng).numpy()
    bins = np.minimum(codes, last := len(ends) - 2)
    low = ends[bins]
    high = ends[bins + 1]
    is_whole = column.limits is None and (ends == np.rint(ends)).all()  # between declared whole numbers
    if (step := 1.0 if is_whole else column.step) is None:
        x = np.minimum(low + uniform * (high - low), np.nextafter(high, low))
    else:
        multiples = np.maximum(np.rint((high - low) / step) + (bins == last), 1)
        x = (np.rint(low / step) + np.floor(uniform * multiples)) * step
    texts = [format_text(number_text(round(n, 6) if step else n), column.kind) for n in x.tolist()]
    return [text if code <= last else None for text, code in zip(texts, codes.tolist(), strict=True)]


def _ends(column: Column) -> list[float]:
    """Ends of the bins.

    The outer ones are the column's limits; where there are none, outer bins are as wide as their neighbours, but do not
    cross 0.
    """
    edges = list(column.edges or ())
    if column.limits is not None:
        return [column.limits[0], *edges, column.limits[1]]
    widths = np.diff(edges).tolist() or [max(abs(edges[0]), 1.0)]
    low = max(edges[0] - widths[0], 0.0 if edges[0] > 0 else -math.inf)
    return [low, *edges, edges[-1] + widths[-1]]


def join(parts: Sequence[Path], path: Path) -> None:
    with path.open("wb") as whole:
        for part in parts:
            with part.open("rb") as f:
                shutil.copyfileobj(f, whole)
