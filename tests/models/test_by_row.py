"""Denoisers of models that have none of their own: the posterior over pictures that stand for each row of labels."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from raydiff.models.by_row import ByRow, Population
from raydiff.models.generator import POINTS, Generator
from raydiff.seeding import generator
from raydiff.tree import Params

Case = tuple[ByRow, Params, Tensor]


def generated() -> Case:
    """(a generator, its parameters, the pictures (R, P, d) that it draws by itself)."""
    model = Generator(shape=(1, 4, 4), labels=(3,))
    params = model.init(generator(0))
    rows = torch.arange(3).repeat_interleave(POINTS)
    return model, params, model._draw(params, rows, generator(0, "points")).view(3, POINTS, 16)


def population() -> Case:
    """(a population, its parameters, its pictures (R, P, d))."""
    pictures = torch.rand(3, 5, 1, 4, 4, generator=generator(0))
    return Population(shape=(1, 4, 4), labels=(3,)), {"pictures": pictures}, pictures.flatten(2)


@pytest.mark.parametrize("make", [generated, population])
def test_the_denoiser_is_the_posterior_of_the_pictures(make: Callable[[], Case]) -> None:
    """Picture by picture, by Bayes' rule."""
    model, params, points = make()
    x_t, t = torch.randn(4, 1, 4, 4, generator=generator(1)), torch.tensor([1, 100, 400, 1000])
    labels = torch.arange(4) % 3
    result = model.denoiser(params)(x_t, t, labels[:, None])  # type: ignore[attr-defined]
    for i in range(4):
        a, x, likely = float(model.abar[t[i]]), x_t[i].flatten().double(), points[labels[i]].double()
        mean = (-(x - math.sqrt(a) * likely).square().sum(1) / (2 * (1 - a))).softmax(0) @ likely
        z = (x - math.sqrt(a) * mean) / math.sqrt(1 - a)
        torch.testing.assert_close(result[i].flatten().double(), z, rtol=1e-2, atol=2e-2)
