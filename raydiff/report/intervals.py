"""The interval of every paired difference."""

from __future__ import annotations

import math

import pandas as pd


def student(values: pd.Series) -> tuple[float, float, float]:
    """Mean and 95 % Student interval; NaN bounds for a single value."""
    from scipy import stats

    mean, n = float(values.mean()), len(values)
    half = stats.t.ppf(0.975, n - 1) * float(values.std()) / math.sqrt(n) if n > 1 else math.nan
    return mean, mean - half, mean + half
