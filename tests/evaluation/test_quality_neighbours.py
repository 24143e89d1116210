"""Precision, recall, density and coverage against loops over the papers' formulas; memorised pictures by hand."""

import math

import pytest
import torch
from torch import Tensor

from raydiff.evaluation.quality.neighbours import coverage, memorized_fraction
from raydiff.seeding import generator


def by_loops(samples: Tensor, real: Tensor, k: int) -> dict[str, float]:
    def distance(a: Tensor, b: Tensor) -> float:
        return math.dist(a.double().tolist(), b.double().tolist())

    def radii(x: Tensor) -> list[float]:
        return [sorted(distance(a, b) for j, b in enumerate(x) if i != j)[k - 1] for i, a in enumerate(x)]

    balls, sample_balls = radii(real), radii(samples)
    inside = [[distance(s, r) <= radius for r, radius in zip(real, balls, strict=True)] for s in samples]
    recalled = [any(distance(s, r) <= b for s, b in zip(samples, sample_balls, strict=True)) for r in real]
    return {
        "precision": sum(any(row) for row in inside) / len(samples),
        "recall": sum(recalled) / len(real),
        "density": sum(map(sum, inside)) / (k * len(samples)),
        "coverage": sum(any(column) for column in zip(*inside, strict=True)) / len(real),
    }


@pytest.mark.parametrize(("n", "m", "k"), [(23, 31, 3), (6, 40, 4), (40, 40, 1)])
@pytest.mark.parametrize("block", [1, 7, 256])
def test_blocks_give_what_loops_give(n: int, m: int, k: int, block: int) -> None:
    rng = generator(0)
    samples, real = torch.randn(n, 3, generator=rng) + 1.5, torch.randn(m, 3, generator=rng)
    result = coverage(samples, real, neighbours=k, block=block)
    assert result == pytest.approx(by_loops(samples, real, k), abs=1e-12)
    assert 0 < min(result.values()) < 1


def test_identical_sets_are_covered_and_disjoint_ones_not() -> None:
    x = torch.randn(60, 4, generator=generator(0))
    same = coverage(x, x.clone(), neighbours=3)
    assert (same["precision"], same["recall"], same["coverage"]) == (1.0, 1.0, 1.0) and same["density"] >= 1
    apart = coverage(x, x + 100, neighbours=3)
    assert apart == dict.fromkeys(("precision", "recall", "density", "coverage"), 0.0)


def test_what_each_of_them_sees() -> None:
    """One mode of two: all samples are real and half of the records is missed. Noise everywhere: the reverse."""
    rng = generator(1)
    left, right = (torch.randn(50, 2, generator=rng) + c for c in (-20.0, 20.0))
    real = torch.cat([left, right])
    collapsed = coverage(torch.randn(100, 2, generator=rng) - 20.0, real)
    assert collapsed["precision"] > 0.9 and collapsed["recall"] <= 0.5 and 0.4 < collapsed["coverage"] <= 0.5
    spread = coverage(torch.randn(100, 2, generator=rng) * 60, real)
    assert spread["precision"] < 0.3 and spread["recall"] > 0.9 and spread["coverage"] < 0.3


def test_features_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        coverage(torch.zeros(9, 2), torch.full((9, 2), math.nan), neighbours=3)


# --- memorised pictures ---


def points(*xy: tuple[float, float]) -> Tensor:
    return torch.tensor(xy, dtype=torch.float32).view(-1, 1, 1, 2)


def noise(n: int, *path: str) -> Tensor:
    return torch.rand(n, 1, 8, 8, generator=generator(0, *path)) * 2 - 1


def test_training_images_fed_back_are_all_flagged() -> None:
    training = noise(150, "training")
    assert memorized_fraction(training, training) == 1.0
    assert memorized_fraction(training + 1e-4, training) == 1.0


def test_fresh_images_are_not_flagged() -> None:
    assert memorized_fraction(noise(150, "fresh"), noise(150, "training")) == 0.0


def test_the_bound_is_a_third_of_the_second_distance() -> None:
    training = points((0, 0), (8, 0), (100, 0))
    assert memorized_fraction(points((1.9, 0)), training) == 1.0  # 1.9 / 6.1 < 1/3
    assert memorized_fraction(points((2.1, 0)), training) == 0.0  # 2.1 / 5.9 > 1/3
    assert memorized_fraction(points((1.9, 0), (2.1, 0), (8, 0), (4, 0)), training) == 0.5


def test_repeated_training_images_count_once() -> None:
    training = points((0, 0), (0, 0), (0, 0), (8, 0), (8, 0))
    assert memorized_fraction(points((0, 0), (0.5, 0), (4, 0), (3, 0)), training) == 0.5


def test_refuses_sets_without_a_second_neighbour() -> None:
    with pytest.raises(ValueError, match="at least 2 distinct images for the ratio test, got 1"):
        memorized_fraction(points((0, 0)), points((1, 1), (1, 1)))
