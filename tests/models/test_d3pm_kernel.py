"""Schedules of uniform noise on categories, against the paper's formulas written out."""

import math

import pytest
import torch

from raydiff.models.d3pm_kernel import Cosine, Linear, Sigmoid, abar, schedule_named


def sig(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_linear() -> None:
    torch.testing.assert_close(Linear(rate=0.5).alpha(4), torch.tensor([1, 0.875, 0.75, 0.625, 0.5]).double())
    assert Linear().alpha(20)[20] == 0


def test_sigmoid() -> None:
    result = Sigmoid(rate=2.0).alpha(10)
    for t in range(11):
        assert result[t] == pytest.approx((sig(6) - sig(6 * t / 10)) / (sig(6) - 0.5), abs=1e-15)
    assert result[10] == 0
    assert all(float(Sigmoid(rate=10**0.25).alpha(steps)[-1]) == 0.0 for steps in (3, 6, 12))  # floats fall beside it


def test_cosine() -> None:
    kept = abar(Cosine(), 5)
    for t in range(5):
        expected = math.cos((t / 5 + 0.008) / 1.008 * math.pi / 2) ** 2 / math.cos(0.008 / 1.008 * math.pi / 2) ** 2
        assert kept[t] == pytest.approx(expected, rel=1e-12)
    assert kept[5] == 0


def test_by_name() -> None:
    assert schedule_named("linear", 0.5) == Linear(rate=0.5)
    assert schedule_named("sigmoid", 2.5) == Sigmoid(rate=2.5)
    assert schedule_named("cosine") == Cosine()
    with pytest.raises(ValueError, match=r"one of linear, sigmoid, cosine, or module:name of another, got 'cubic'"):
        schedule_named("cubic")
    with pytest.raises(ValueError, match="rate"):
        schedule_named("cosine", 0.5)
