"""What the papers' theory prints and writes: aligned cells, means over seeds with intervals, CSV files."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from raydiff.formats.intervals import student

Rows = list[tuple[str, ...]]


def bracket(mean: float, low: float, high: float, form: str = ".3f") -> str:
    """`0.123 [0.100 0.146]`."""
    return f"{mean:{form}} [{low:{form}} {high:{form}}]"


def over_seeds(values: Sequence[float] | Tensor, form: str = ".3f") -> str:
    """Mean of independent draws (n,) and its 95 % Student interval, as `bracket`."""
    return bracket(*student(values.tolist() if isinstance(values, Tensor) else values), form)
