"""Theorem 5.2's setting: closed forms against Monte-Carlo, and the direction of every effect."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from analysis.theory.theorems import break_even, eq9, first_order_gain, trials
from raydiff.models.chains import MEASURED, Sampler
from raydiff.seeding import generator

pytestmark = pytest.mark.slow


def gains(
    d: int, n: int, pooled: int, abar: float, *, clip: float | None = None, first: float = 0.0, count: int = 300
) -> dict[Sampler, Tensor]:
    mean = torch.zeros(d, dtype=torch.float64)
    mean[0] = first
    rng = generator(0, "theorem", n, pooled)
    local, pfdm = trials(d, n, pooled, abar=abar, mean=mean, clip=clip, count=count, rng=rng)
    return {sampler: local - w2 for sampler, w2 in pfdm.items()}


def bounds(x: Tensor) -> tuple[float, float]:
    """Mean minus and plus 4 standard errors."""
    half = 4 * float(x.std()) / math.sqrt(len(x))
    return float(x.mean()) - half, float(x.mean()) + half


@pytest.mark.parametrize("sampler", MEASURED)
def test_the_first_order_is_that_of_monte_carlo(sampler: Sampler) -> None:
    d, n, pooled, abar = 3, 200, 1000, 0.3
    low, high = bounds(gains(d, n, pooled, abar)[sampler])
    assert low < first_order_gain(d, n, pooled, abar=abar, sampler=sampler) < high
    other = next(s for s in MEASURED if s != sampler)
    assert not low < first_order_gain(d, n, pooled, abar=abar, sampler=other) < high


def test_break_even_by_hand() -> None:
    # abar = 1/4, means: w = A = 1/2, noise 4, (w^2 4 + 2 w (1 - w)) / (w (2 - w)) = 1.5 / 0.75
    assert break_even(0.25, "ddim") == pytest.approx((2.0, 1.375 / 0.4375))
    # ancestral: w = 1/4 and 1/16, (3 - 2 w) / (2 - w)
    assert break_even(0.25, "ancestral") == pytest.approx((2.5 / 1.75, 2.875 / 1.9375))


@pytest.mark.parametrize("sampler", MEASURED)
def test_the_gain_changes_sign_between_the_two_break_evens(sampler: Sampler) -> None:
    means, covs = break_even(0.05, sampler)
    assert means < covs
    assert first_order_gain(2, 1000, round(1000 * means * 0.99), abar=0.05, sampler=sampler) < 0
    assert first_order_gain(2, 1000, round(1000 * covs * 1.01), abar=0.05, sampler=sampler) > 0


@pytest.mark.parametrize("sampler", MEASURED)
@pytest.mark.parametrize("n", [3, 50])
def test_ones_own_records_noised_cannot_help(sampler: Sampler, n: int) -> None:
    assert bounds(gains(4, n, n, 0.3)[sampler])[1] < 0


def test_the_gain_of_eq9_is_reached_where_its_conditions_hold() -> None:
    d, n, abar = 1, 40, 0.8
    promised, pooled, least = eq9(d, n, (1 - abar) / abar)
    assert n >= least
    for gain in gains(d, n, math.ceil(pooled), abar, count=200).values():
        assert bounds(gain)[0] > promised
