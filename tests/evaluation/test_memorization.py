from __future__ import annotations

import pytest
import torch
from torch import Tensor

from raydiff.evaluation.quality.memorization import memorized_fraction
from raydiff.seeding import generator


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
