"""Bounds that need no table, against tables."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from reference.pdp_limits import limit
from reference.pdp_tables import CONDITIONS, SCHEDULES, kernel, skewed, weighted_tables

from raydiff.models.d3pm_kernel import CategorySchedule, Linear
from raydiff.papers.discrete.bound import ReleasedRows, audit_rows, bounds
from raydiff.papers.discrete.histograms import Distinct, histograms
from raydiff.papers.discrete.kernel import Ints


@settings(max_examples=40, deadline=None)
@given(weighted_tables(), st.sampled_from(SCHEDULES), st.integers(1, 10), st.sampled_from(CONDITIONS))
def test_no_record_is_above_the_ceiling(
    table: tuple[Ints, Ints, int], schedule: CategorySchedule, steps: int, condition: str
) -> None:
    rows, weights, categories = table
    release = ReleasedRows(kernel=kernel(schedule, steps, categories), condition=condition)
    data = Distinct(rows=rows, weights=weights, index=np.arange(len(rows)))
    result = bounds(histograms(data, np.array([0])), release)
    top = limit(int(weights.sum()) - 1, rows.shape[1], release)
    assert result.delta[0] <= top.ceiling * (1 + 1e-12)
    assert (result.leak[0] <= top.leak * (1 + 1e-12)).all()
    assert top.delta <= top.ceiling


@pytest.mark.parametrize("condition", CONDITIONS)
def test_counterexample_to_theorem_e1(condition: str) -> None:
    """Records above it: the table whose record leaks most has the emptiest balls, and another's product is larger."""
    release = ReleasedRows(kernel=kernel(Linear(rate=0.4), 11, 4), condition=condition)
    worst = 0.0
    for seed in range(12):
        result = audit_rows(skewed(45, 6, 4, p=0.6, seed=seed), release)
        worst = max(worst, result.delta[result.alone < 0].max(initial=0))
    assert worst > 1.05 * limit(44, 6, release).delta
    assert worst < limit(44, 6, release).ceiling
