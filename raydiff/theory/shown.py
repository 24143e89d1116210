"""How theory is shown: grids of text, and pictures. Figures are made without pyplot, which keeps global state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Rows = list[tuple[str, ...]]


def grid(widths: Sequence[int], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of right-aligned cells."""
    return ["".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]


def bracket(mean: float, low: float, high: float, form: str = ".3f") -> str:
    """`0.123 [0.100 0.146]`."""
    return f"{mean:{form}} [{low:{form}} {high:{form}}]"


def panels(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    """A figure of so many inches, and its axes (rows, columns)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)
