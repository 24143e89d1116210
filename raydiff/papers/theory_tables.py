"""How theory is printed."""

from __future__ import annotations

from collections.abc import Sequence

Rows = list[tuple[str, ...]]


def grid(widths: Sequence[int], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of right-aligned cells."""
    return ["".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]


def bracket(mean: float, low: float, high: float, form: str = ".3f") -> str:
    """`0.123 [0.100 0.146]`."""
    return f"{mean:{form}} [{low:{form}} {high:{form}}]"
