"""The radius from any counts, at once against one at a time; and the words that go with a schedule."""

from __future__ import annotations

import numpy as np
import pytest
from reference import pdp_reference

from raydiff.models.d3pm_kernel import Linear
from raydiff.papers.discrete.bound import CAVEATS, CONDITIONAL, UNCONDITIONAL, ReleasedRows, caveats
from raydiff.papers.discrete.kernel import Kernel
from raydiff.papers.discrete.radius import radius


@pytest.mark.parametrize("condition", ["theorem", "relaxed"])
@pytest.mark.parametrize(("rate", "categories"), [(0.002, 2), (0.01, 5), (0.05, 5), (0.5, 3)])
def test_agrees_one_at_a_time(condition: str, rate: float, categories: int) -> None:
    """Counts of all orders, so that every radius occurs."""
    rng, t, n = np.random.default_rng(0), 2, 9
    kernel = Kernel(alpha=Linear(rate=rate).alpha(4).tolist(), categories=categories)
    near = np.floor(10 ** rng.uniform(-1, 5, (400, n + 1))).astype(np.int64)
    near[:, -1] += 1
    within = np.cumsum(near, axis=1)
    leak, change = 10 ** rng.uniform(-4, 1, 400), kernel.change(t)
    found = radius(within, leak, kernel, t, condition, change=change)
    after, before = 1 / kernel.blur[t], 1 / kernel.blur[t - 1]
    same, other = kernel.same_since[t], kernel.other_since[t]
    for counts, nats, ball in zip(within.tolist(), leak, found, strict=True):
        if condition == "theorem":
            assert ball == pdp_reference._theorem(counts, nats, change, after, same, other)
        else:
            assert ball == pdp_reference._relaxed(counts, nats, change, before, after, same, other)
    assert rate > 0.05 or len(np.unique(found)) >= 4


def test_a_schedule_that_stops_before_pure_noise_is_told() -> None:
    whole, part = (Kernel(alpha=Linear(rate=r).alpha(20).tolist(), categories=5) for r in (1.0, 0.1))
    assert caveats(ReleasedRows(kernel=whole)) == (*CAVEATS, UNCONDITIONAL)
    assert caveats(ReleasedRows(kernel=whole), conditional=True) == (*CAVEATS, CONDITIONAL)
    assert "keeps 0.34 of the signal" in caveats(ReleasedRows(kernel=part))[-1]
