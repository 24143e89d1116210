"""CSV files that people open in spreadsheets.

A text that a spreadsheet would compute as a formula gets an apostrophe in front (OWASP, "CSV Injection"), a cell as
well as a column's name; `read_csv` and `unmarked` take it off again. Numbers stay numbers, also as text: -1.5.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

FORMULA = re.compile(
    r"(?![+-]?[\d.,]+(?:e[+-]?\d+)?%?\Z)'*(?:\s*(?:[=+@＝＋－＠]|-.)|[\t\r\n])", re.IGNORECASE | re.DOTALL
)
"""Beginning of a formula, or of one that is marked already: so marks can be taken off without a loss."""


def write_csv(path: Path, table: pd.DataFrame, *, header: bool = True, form: str | None = None) -> None:
    """Write without the index, floats as `form` (as %.6g); the same bytes on every platform."""
    marked = _change_texts(table, lambda text: f"'{text}" if FORMULA.match(text) else text)
    texts = itertools.chain(marked.columns, marked.select_dtypes(exclude="number").to_numpy().flat)
    breaks = any("\r" in str(text) for text in texts)  # csv.writer leaves it unquoted before Python 3.13
    quoting: Any = csv.QUOTE_NONNUMERIC if breaks else csv.QUOTE_MINIMAL
    marked.to_csv(path, index=False, header=header, float_format=form, lineterminator="\n", quoting=quoting)


def read_csv(path: Path, **options: Any) -> pd.DataFrame:
    """`pandas.read_csv` of a file of `write_csv`."""
    import pandas as pd  # slow to import

    return _change_texts(pd.read_csv(path, **options), unmarked)


def unmarked(text: str) -> str:
    """A text of a file of `write_csv` without the apostrophe that keeps a spreadsheet from computing it."""
    return text[1:] if text[:1] == "'" and FORMULA.match(text[1:]) else text


def _change_texts(table: pd.DataFrame, change: Callable[[str], str]) -> pd.DataFrame:
    """The table with other texts in cells and names of columns."""
    import pandas as pd  # slow to import

    def texts(values: Any) -> list[Any]:
        return [change(value) if isinstance(value, str) else value for value in values]

    columns = {i: column for i, (_, column) in enumerate(table.items())}
    held = {i: texts(c) for i, c in columns.items() if str(c.dtype) in ("object", "str", "string", "category")}
    columns |= {i: pd.Series(values, table.index, dtype=object) for i, values in held.items()}
    return pd.DataFrame(columns, index=table.index).set_axis(texts(table.columns), axis=1)
