"""The hierarchical mixture: exact scores, when modes merge, and who decides what."""

import math

import pytest
import torch

from analysis.theory.closed_forms import ABAR
from analysis.theory.mixture import Mixture, merge_time, tree
from raydiff.seeding import generator

pytestmark = pytest.mark.slow


def modes(mixture: Mixture) -> int:
    """Local maxima of a density in one dimension, on a fine grid."""
    grid = torch.linspace(-4, 4, 4001, dtype=torch.float64)
    density = (-(grid - mixture.means).square() / (2 * mixture.variance)).exp().sum(0)
    return int(((density[1:-1] > density[:-2]) & (density[1:-1] >= density[2:])).sum())


@pytest.mark.parametrize(("half_distance", "variance"), [(1.0, 0.1), (0.3, 0.01), (3.0, 0.5)])
def test_modes_merge_when_it_says(half_distance: float, variance: float) -> None:
    two = Mixture(torch.tensor([[-half_distance], [half_distance]], dtype=torch.float64), variance)
    t = merge_time(half_distance, variance)
    assert modes(two.noised(float(ABAR[t - 5]))) == 2
    assert modes(two.noised(float(ABAR[t]))) == 1


def test_the_denoiser_is_the_score() -> None:
    x = torch.randn(5, 2, dtype=torch.float64, generator=generator(0, "x")).requires_grad_()
    a = float(ABAR[200])
    q = tree().noised(a)
    log_density = torch.logsumexp(-(x.unsqueeze(1) - q.means).square().sum(-1) / (2 * q.variance), dim=1)
    (score,) = torch.autograd.grad(log_density.sum(), x)
    got = tree().predict(x.detach(), torch.full((5,), 200), torch.zeros(5, 0))
    torch.testing.assert_close(got, -math.sqrt(1 - a) * score)
