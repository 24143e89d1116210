"""Precision, recall, density and coverage: by hand, and against loops that say what the papers say."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from raydiff.evaluation.quality.coverage import Coverage, coverage
from raydiff.seeding import generator


def by_loops(samples: Tensor, real: Tensor, k: int) -> Coverage:
    def distance(a: Tensor, b: Tensor) -> float:
        return math.dist(a.double().tolist(), b.double().tolist())

    def radii(x: Tensor) -> list[float]:
        return [sorted(distance(a, b) for j, b in enumerate(x) if i != j)[k - 1] for i, a in enumerate(x)]

    balls, sample_balls = radii(real), radii(samples)
    inside = [[distance(s, r) <= radius for r, radius in zip(real, balls, strict=True)] for s in samples]
    recalled = [any(distance(s, r) <= b for s, b in zip(samples, sample_balls, strict=True)) for r in real]
    return Coverage(
        precision=sum(any(row) for row in inside) / len(samples),
        recall=sum(recalled) / len(real),
        density=sum(map(sum, inside)) / (k * len(samples)),
        coverage=sum(any(column) for column in zip(*inside, strict=True)) / len(real),
    )


@pytest.mark.parametrize(("n", "m", "k"), [(23, 31, 3), (31, 23, 5), (6, 40, 4), (40, 40, 1)])
@pytest.mark.parametrize("block", [1, 7, 256])
def test_blocks_give_what_loops_give(n: int, m: int, k: int, block: int) -> None:
    rng = generator(0)
    samples, real = torch.randn(n, 3, generator=rng) + 1.5, torch.randn(m, 3, generator=rng)
    found = coverage(samples, real, neighbours=k, block=block)
    assert vars(found) == pytest.approx(vars(by_loops(samples, real, k)), abs=1e-12)
    assert 0 < min(vars(found).values()) < 1


def test_identical_sets_are_covered_and_disjoint_ones_not() -> None:
    x = torch.randn(60, 4, generator=generator(0))
    same = coverage(x, x.clone(), neighbours=3)
    assert (same.precision, same.recall, same.coverage) == (1.0, 1.0, 1.0) and same.density >= 1
    apart = coverage(x, x + 100, neighbours=3)
    assert apart == Coverage(precision=0.0, recall=0.0, density=0.0, coverage=0.0)


def test_what_each_of_them_sees() -> None:
    """One mode of two: all samples are real and half of the records is missed. Noise everywhere: the reverse."""
    rng = generator(1)
    left, right = (torch.randn(50, 2, generator=rng) + c for c in (-20.0, 20.0))
    real = torch.cat([left, right])
    collapsed = coverage(torch.randn(100, 2, generator=rng) - 20.0, real)
    assert collapsed.precision > 0.9 and collapsed.recall <= 0.5 and 0.4 < collapsed.coverage <= 0.5
    spread = coverage(torch.randn(100, 2, generator=rng) * 60, real)
    assert spread.precision < 0.3 and spread.recall > 0.9 and spread.coverage < 0.3


def test_features_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        coverage(torch.zeros(9, 2), torch.full((9, 2), math.nan), neighbours=3)
