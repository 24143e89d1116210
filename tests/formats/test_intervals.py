"""The interval of a ratio of means, against its definition."""

import math

import numpy as np
import pandas as pd
import pytest

from raydiff.formats.intervals import ratio, student


def test_a_ratio_is_in_the_interval_where_the_difference_that_it_means_may_be_0() -> None:
    rng = np.random.default_rng(3)
    under = pd.Series(rng.normal(2.0, 0.4, 6))
    over = 0.7 * under + rng.normal(0.0, 0.3, 6)
    mean, low, high = ratio(over, under)
    assert mean == pytest.approx(over.mean() / under.mean()) and low < mean < high
    for r in np.linspace(-1, 3, 401):
        _, least, most = student(over - r * under)
        assert (least <= 0 <= most) == (low <= r <= high)


def test_a_ratio_to_what_may_be_0_has_no_interval() -> None:
    assert all(map(math.isnan, ratio(pd.Series([1.0, 1.1, 0.9]), pd.Series([0.1, -0.1, 0.05]))))
