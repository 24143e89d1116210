"""Tables as markdown or aligned text, and their cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from raydiff.formats.csv_files import write_csv

if TYPE_CHECKING:
    import pandas as pd


class Table(NamedTuple):
    """A table of text."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    note: str = ""

    def __str__(self) -> str:
        """Return markdown: the title as a heading, the rows, the note below."""
        head, *below = (f"| {' | '.join(line)} |" for line in (self.header, *self.rows))
        text = "\n".join([head, "|" + "---|" * len(self.header), *below])
        return "\n\n".join(block for block in (f"## {self.title}" if self.title else "", text, self.note) if block)


def aligned(rows: Sequence[Sequence[str]], *, words: int | None = None) -> list[str]:
    """Return rows, at least one, as lines of text: the first `words` columns (None: all) aligned left, others right."""
    columns = list(zip(*rows, strict=True))
    for place, column in enumerate(columns):
        align = str.ljust if words is None or place < words else str.rjust
        width = max(map(len, column))
        columns[place] = tuple(align(cell, width) for cell in column)
    return ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]


def strong(text: str, *, when: bool = True) -> str:
    """Return a cell in bold."""
    return f"**{text}**" if when else text


def publish(out: Path, name: str, text: str, tables: Mapping[str, pd.DataFrame]) -> None:
    """Write the text as `name`.md and the tables as CSV into `out`; print the text and the folder."""
    out.mkdir(parents=True, exist_ok=True)
    for stem, table in tables.items():
        write_csv(out / f"{stem}.csv", table)
    (out / f"{name}.md").write_text(text + "\n")
    print(f"{text}\n\n{out}")


def number(value: float | None, digits: int = 4) -> str:
    """Return text with `digits` digits: 0.863, 1.863, 18.63, 186.3, 12345."""
    if value is None or math.isnan(value):
        return "-"
    before = len(str(int(abs(value)))) if math.isfinite(value) else 0
    return f"{value:.{max(0, digits - before)}f}"


def with_deviation(mean: float, deviation: float | None) -> str:
    """Return `0.863±0.012`, `0.863` for a single value, `-` for none."""
    return number(mean) if deviation is None or math.isnan(deviation) else f"{number(mean)}±{number(deviation)}"


def shorten_value(value: Any) -> str:
    """Return the value of a swept field in at most 16 characters."""
    import pandas as pd  # slow to import

    if pd.isna(value):
        return "-"
    shown = f"{value:g}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)
    return shown if len(shown) <= 16 else f"{shown[:15]}…"


def size(count: float | None) -> str:
    """Return a number of bytes as text: 999 B, 224 kB, 72.8 MB."""
    if count is None:
        return "-"
    power = min(4, int(math.log10(count) / 3)) if count >= 1 else 0
    return f"{count / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def span(values: Iterable[float], form: Callable[[float], str] = "{:g}".format) -> str:
    """Return `3`, or `2 to 3` where they differ."""
    ordered = sorted(values)
    return " to ".join(dict.fromkeys(map(form, (ordered[0], ordered[-1]))))
