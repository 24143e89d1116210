"""Student intervals, and their text."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from raydiff.formats.tables import strong


def student(values: Sequence[float] | pd.Series) -> tuple[float, float, float]:
    """Return the mean and its 95 % Student interval: NaN bounds for a single value, NaN for none."""
    sample = pd.Series(values, dtype=float)
    mean = float(sample.mean())
    n = len(sample)
    half = half_width(float(sample.std()), n) if n > 1 else math.nan
    return mean, mean - half, mean + half


def half_width(deviation: Any, n: Any) -> Any:
    """Return half of the 95 % Student interval of a mean of n > 1 values from their standard deviation; arrays too."""
    from scipy import stats

    return stats.t.ppf(0.975, n - 1) * deviation / n**0.5


def ratio(over: pd.Series, under: pd.Series) -> tuple[float, float, float]:
    """Return mean(over) / mean(under) of pairs and its 95 % interval by Fieller (1954).

    It holds the values r for which the Student interval of mean(over - r under) holds 0. NaN where that of mean(under)
    does, for r has then no bounds.
    """
    mean, low, high = student(under)
    if not excludes_zero(low, high):
        return (math.nan,) * 3
    top = float(over.mean())
    square = half_width(1.0, len(under)) ** 2
    a = mean**2 - square * float(under.var())
    b = top * mean - square * float(over.cov(under))
    root = math.sqrt(max(0.0, b * b - a * (top**2 - square * float(over.var()))))
    return top / mean, (b - root) / a, (b + root) / a


def interval(values: pd.Series, name: str = "mean", ends: str = "") -> dict[str, float]:
    """Return `student` as columns of a table: `name`, and low and high with the prefix `ends`."""
    return dict(zip((name, f"{ends}low", f"{ends}high"), student(values), strict=True))


def format_interval(mean: float, low: float, high: float, form: str, *, bold: bool = False) -> str:
    """Return `-0.40 [-0.65, -0.15]` (`-0.40` for a single value, `-` for none); `bold` where it excludes 0."""
    if math.isnan(low):
        return "-" if math.isnan(mean) else f"{mean:{form}}"
    return strong(f"{mean:{form}} [{low:{form}}, {high:{form}}]", when=bold and excludes_zero(low, high))


def excludes_zero(low: float, high: float) -> bool:
    """Whether the interval excludes 0."""
    return low > 0 or high < 0
