"""Bounds that need no table, against tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.pdp_limits import limit, lower
from reference.pdp_tables import CONDITIONS, SCHEDULES, kernel, skewed, weighted_tables

from raydiff.models.d3pm_kernel import Linear, Schedule, Sigmoid
from raydiff.papers.discrete.bound import ReleasedRows, audit, bounds
from raydiff.papers.discrete.histograms import Distinct, histograms
from raydiff.papers.discrete.kernel import Ints, Kernel
from raydiff.papers.discrete.theory.exact import exact


@settings(max_examples=80, deadline=None)
@given(weighted_tables(), st.sampled_from(SCHEDULES), st.integers(1, 10), st.booleans(), st.sampled_from(CONDITIONS))
def test_no_record_is_above_the_ceiling(
    table: tuple[Ints, Ints, int], schedule: Schedule, steps: int, proved: bool, condition: str
) -> None:
    rows, weights, categories = table
    release = ReleasedRows(kernel=kernel(schedule, steps, categories), proved=proved, condition=condition)
    data = Distinct(rows=rows, weights=weights, index=np.arange(len(rows)))
    found = bounds(histograms(data, np.array([0])), release)
    top = limit(int(weights.sum()) - 1, rows.shape[1], release)
    assert found.delta[0] <= top.ceiling * (1 + 1e-12)
    assert (found.leak[0] <= top.leak * (1 + 1e-12)).all()
    assert top.delta <= top.ceiling


@pytest.mark.parametrize("condition", CONDITIONS)
def test_counterexample_to_theorem_e1(condition: str) -> None:
    """Records above it: the table whose record leaks most has the emptiest balls, and another's product is larger."""
    release = ReleasedRows(kernel=kernel(Linear(rate=0.4), 11, 4), condition=condition)
    worst = 0.0
    for seed in range(12):
        found = audit(skewed(45, 6, 4, p=0.6, seed=seed), release)
        worst = max(worst, found.delta[found.alone < 0].max(initial=0))
    assert worst > 1.05 * limit(44, 6, release).delta
    assert worst < limit(44, 6, release).ceiling


def test_e1_by_hand() -> None:
    """One column, one step to pure noise: Sim = s - 1 + 1, Sim of the column 1, everything in the ball."""
    found = limit(30, 1, ReleasedRows(kernel=kernel(Linear(), 1, 2), epsilon=1.0))
    leak = 2 / (1 + 30) * math.log(2)
    np.testing.assert_allclose(found.leak, leak)
    np.testing.assert_array_equal(found.radius, 1)
    assert found.delta == found.ceiling == pytest.approx((leak + 1 / 900) / (1 - math.exp(-1)))


def test_e1_falls_with_s_in_the_order_of_the_paper() -> None:
    sizes = [10**4, 10**5, 10**6]
    until_50 = Kernel(alpha=Linear().alpha(100)[:51].tolist(), categories=5)
    leaks = [limit(s, 10, ReleasedRows(kernel=until_50)).leak for s in sizes]
    np.testing.assert_allclose(np.diff(np.log([x[49] for x in leaks])) / math.log(10), -2, atol=0.02)
    np.testing.assert_allclose(np.diff(np.log([x[0] for x in leaks])) / math.log(10), 0, atol=0.02)


@pytest.mark.parametrize("schedule", [Sigmoid(), Sigmoid(rate=3.0), Linear(), Linear(rate=0.5)], ids=str)
def test_theorem_d1_holds_for_large_s(schedule: Schedule) -> None:
    """The paper says "sufficiently large"; 1e4 rows are, 100 are not, where it would ask for more than there is."""
    noise = kernel(schedule, 10, 2)
    table = np.array([[0, 0], [1, 1]])
    for s in (10**4, 10**6):
        epsilon, delta = lower(s, noise)
        assert 0 < delta < exact(table, 1, ReleasedRows(kernel=noise, epsilon=epsilon), np.array([s - 1, 2])).delta
    epsilon, delta = lower(20, noise)
    assert delta > exact(table, 1, ReleasedRows(kernel=noise, epsilon=epsilon), np.array([19, 2])).delta


def test_theorem_d1_written_out() -> None:
    """T = 3: G_1 + F_1 G_2, term by term."""
    noise, s = kernel(Linear(rate=0.5), 3, 2), 1000
    a = [1, 5 / 6, 2 / 3, 1 / 2]
    abar = np.cumprod(a)
    plus, minus = lambda x: (1 + x) / 2, lambda x: (1 - x) / 2
    ratio = [math.inf, *(plus(x) / minus(x) for x in abar[1:])]

    def c(t: int) -> tuple[float, float, float, float]:
        p, m, before, after = plus(a[t]), minus(a[t]), abar[t - 1], abar[t]
        return (p * plus(before) / plus(after), m * minus(before) / plus(after),
                p * minus(before) / minus(after), m * plus(before) / minus(after))  # fmt: skip

    first = c(1)[0] * (c(1)[0] - c(1)[2])
    total = ratio[1] ** 2 / s + first * 2 * (c(2)[3] - c(2)[1]) / ratio[2] ** 2
    smallest = min((c2 + d1 + 2 * d1 * c2) / 4 for _, c2, d1, _ in map(c, (1, 2, 3)))
    epsilon, delta = lower(s, noise)
    assert delta == pytest.approx(total / s)
    assert epsilon == pytest.approx(math.log(1 + total / (2 * (1 + ratio[1] ** 2 * smallest))))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: limit(0, 3, ReleasedRows(kernel=kernel(Linear(), 2, 2))), "got 0 and 3"),
        (lambda: limit(5, 0, ReleasedRows(kernel=kernel(Linear(), 2, 2))), "got 5 and 0"),
        (lambda: lower(10, kernel(Linear(), 2, 3)), "2 categories, got 3"),
        (lambda: lower(10, Kernel(alpha=[1, 1, 0.5], categories=2)), "alpha_1 = 1"),
    ],
)
def test_bad_values(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
