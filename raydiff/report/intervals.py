"""The interval of every paired difference, and how it is shown."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd


def student(values: Sequence[float] | pd.Series) -> tuple[float, float, float]:
    """Mean and 95 % Student interval; NaN bounds for a single value."""
    from scipy import stats

    known = pd.Series(values, dtype=float)
    mean, n = float(known.mean()), len(known)
    half = stats.t.ppf(0.975, n - 1) * float(known.std()) / math.sqrt(n) if n > 1 else math.nan
    return mean, mean - half, mean + half


def shown(mean: float, low: float, high: float, form: str) -> str:
    """`-0.40 [-0.65, -0.15]`, each number in a format such as `+.2f`."""
    return f"{mean:{form}} [{low:{form}}, {high:{form}}]"


def decided(low: float, high: float) -> bool:
    """Whether the interval excludes 0."""
    return low > 0 or high < 0
