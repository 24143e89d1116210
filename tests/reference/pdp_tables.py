"""Small tables for the tests of the per-instance bound."""

import numpy as np
from hypothesis import strategies as st

from raydiff.models.d3pm_kernel import CategorySchedule, Cosine, Linear, Sigmoid
from raydiff.papers.discrete.kernel import Ints, Kernel

SCHEDULES: tuple[CategorySchedule, ...] = (
    Linear(),
    Linear(rate=0.4),
    Linear(rate=0.05),
    Sigmoid(),
    Sigmoid(rate=3.0),
    Cosine(),
)
CLEAR: st.SearchStrategy[CategorySchedule] = st.floats(-5, 0).map(lambda e: Linear(rate=10.0**e))
"""Most of these stop before pure noise."""
NOISY: st.SearchStrategy[CategorySchedule] = st.one_of(
    st.just(Linear()), st.just(Cosine()), st.floats(-1, 1).map(lambda e: Sigmoid(rate=10.0**e))
)
"""These end in pure noise."""
CONDITIONS = ("theorem", "relaxed")


def kernel(schedule: CategorySchedule, steps: int, categories: int) -> Kernel:
    return Kernel(alpha=schedule.alpha(steps).tolist(), categories=categories)


def skewed(rows: int, columns: int, categories: int, *, p: float, seed: int = 0) -> Ints:
    """The paper's synthetic tables: the majority category 0 with probability p, the others alike (section 3.3)."""
    rng = np.random.default_rng(seed)
    shape = (rows, columns)
    return np.where(rng.random(shape) < p, 0, rng.integers(1, categories, shape)).astype(np.int64)


SPACES = ((2, 1), (3, 1), (4, 1), (2, 2), (3, 2), (4, 2), (2, 3), (3, 3), (2, 4), (2, 5), (2, 6))
"""(k, n)"""


@st.composite
def weighted_tables(draw: st.DrawFn, *, largest: int = 10**8) -> tuple[Ints, Ints, int]:
    """Distinct rows of a tiny space, how often each occurs and k. Row 0 is the record: each of its values occurs in
    another record too (full column support), and at least 20 records remain without it."""
    categories, columns = draw(st.sampled_from(SPACES))
    row = st.tuples(*[st.integers(0, categories - 1)] * columns)
    rows = np.array(draw(st.lists(row, min_size=2, max_size=6, unique=True)))
    count = st.one_of(st.integers(1, 30), st.integers(1, largest))
    weights = np.array(draw(st.lists(count, min_size=len(rows), max_size=len(rows))))
    if any(weights[rows[:, i] == rows[0, i]].sum() < 2 for i in range(columns)):
        weights[0] = 2  # then the second copy supports every column
    weights[-1] += max(0, 21 - weights.sum())
    return rows, weights, categories
