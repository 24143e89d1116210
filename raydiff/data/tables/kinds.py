"""What the cells of a column are, and one spelling for each of their values. Each cell is respelled by itself.

Undeclared kinds follow from a parquet file's types, or from texts: where all are numbers, dates or durations the column
is that, else text. So are codes: numbers with leading zeros, of more than 15 digits before the point, or in mixed
spellings (1e5 beside 100000, 1.10 beside 1.1; 1.0 beside 1 is a number, since pandas writes whole numbers so).
"""

import math
import re
from collections.abc import Collection
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["text", "number", "date", "duration"]
MEANING: dict[Kind, str] = {
    "text": "texts",
    "number": "finite numbers",
    "date": "dates such as 2020-01-31 or 2020-01-31 14:30:00",
    "duration": "durations such as 14:30:00 or 2 days 14:30:00",
}
PATTERNS: dict[Kind, re.Pattern[str]] = {
    "number": re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?)", re.ASCII | re.IGNORECASE),
    "date": re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)? ?(Z|[+-]\d\d:?\d\d)?)?", re.ASCII),
    "duration": re.compile(r"(?=.)(-?\d{1,9} days?(, | |$))?([+-]?\d{1,9}:\d\d:\d\d(\.\d+)?)?", re.ASCII),
}
CODE = re.compile(r"[+-]?(0\d|\d{16})", re.ASCII)
SPELLING = re.compile(r"^-(?=[0.]+$)|\.0*$")  # In which two spellings may differ: -0 and 0, 1.0 and 1.
THOUSANDS = re.compile(r"\.(?=\d{3}(\D|$))", re.ASCII)
STEPS = {"number": (1, 0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6), "date": (86_400, 60, 1), "duration": (86_400, 60, 1)}


def value(text: str, kind: Kind = "number", decimal: str = ".") -> float:
    """The number of a text, of dates and durations in seconds (see `encode.Column.kind`); nan where it has none."""
    import pandas as pd  # slow to import

    text = _pointed(text, decimal) if kind == "number" else text
    if kind == "text" or not PATTERNS[kind].fullmatch(text):
        return math.nan
    try:
        if kind == "number":
            return float(text)
        return float(pd.Timestamp(text).timestamp() if kind == "date" else pd.Timedelta(text).total_seconds())
    except (ValueError, OverflowError):  # There is no such day or time.
        return math.nan


def infer_kind(texts: Collection[str], decimal: str) -> Kind:
    """The kind of a column of these different texts."""
    fitting = (kind for kind in PATTERNS if not any(math.isnan(value(text, kind, decimal)) for text in texts))
    kind: Kind = next(fitting, "text") if len(texts) else "text"
    pointed = [_pointed(text, decimal) for text in texts] if kind == "number" else []
    spellings = {SPELLING.sub("", text) for text in pointed}
    are_codes = any(map(CODE.match, pointed)) or len({*map(value, pointed)}) < len(spellings)
    return "text" if are_codes else kind


def canonical(text: str, kind: Kind, decimal: str = ".") -> str:
    """Return the one spelling of a value.

    Plain digits, exact without an exponent, of dates and durations their seconds; another text as it is, in quotation
    marks where it could be taken for seconds.
    """
    x = value(text, kind, decimal)
    pointed = _pointed(text, decimal)
    if not math.isfinite(x):
        return text if kind == "text" or math.isnan(value(text)) or kind == "number" else f"'{text}'"
    if kind != "number" or "e" in text.lower():
        return number_text(x)
    whole, _, part = pointed.lstrip("+-").partition(".")
    return "-" * (x < 0) + ((whole.lstrip("0") or "0") + "." + part.rstrip("0")).removesuffix(".")


def format_text(text: str, kind: Kind) -> str:
    """A canonical text as people read it: dates in ISO 8601."""
    if kind != "date" or not abs(x := value(text)) < 9e12:  # s, the end of NumPy's microseconds
        return text
    iso = str(np.datetime64(round(x * 10**6), "us")).replace("T", " ")
    return iso.rstrip("0").rstrip(".").removesuffix(" 00:00:00")


def step(x: NDArray[np.float64], kind: Kind) -> float | None:
    """The largest of STEPS of which all are multiples."""
    return next((s for s in STEPS[kind] if np.allclose(x / s, (x / s).round(), rtol=1e-12, atol=1e-6)), None)


def number_text(x: float) -> str:
    """Shortest text of a number: 40, 0.5."""
    return str(int(x)) if float(x).is_integer() else repr(float(x))


def _pointed(text: str, decimal: str) -> str:
    """With a decimal comma, a point before three digits separates thousands."""
    return text if decimal == "." else THOUSANDS.sub("", text).replace(",", ".", 1)
