"""SPIRE's two-component mixture: signs against autograd, closed forms against Monte-Carlo and brute force, orders."""

import math

import pytest
import torch
from torch import Tensor

from analysis.theory.spire_theory import (
    ddpm_variance,
    even_mean,
    sample,
    score,
    score_error,
    weight_bound,
    weight_estimate,
    weight_variance,
)
from raydiff.seeding import generator

pytestmark = pytest.mark.slow


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def bounds(x: Tensor) -> tuple[float, float]:
    """Mean minus and plus 4 standard errors."""
    half = 4 * float(x.std()) / math.sqrt(len(x))
    return float(x.mean()) - half, float(x.mean()) + half


# --- the mixture ---


def test_the_score_is_the_gradient_of_log_q_and_eq_10_as_printed_is_not() -> None:
    mean, w = f64(1.0, -0.5, 0.3), f64(0.8)
    x = torch.randn(20, 3, dtype=torch.float64, generator=generator(0, "x")).requires_grad_()
    log_p = [-(x - sign * mean).square().sum(1) / 2 for sign in (1, -1)]
    log_q = torch.logaddexp(w.log() + log_p[0], (1 - w).log() + log_p[1])
    (truth,) = torch.autograd.grad(log_q.sum(), x)
    torch.testing.assert_close(score(x, mean, w[0]), truth, rtol=1e-12, atol=1e-12)
    printed = torch.tanh(x @ mean - torch.log(w / (1 - w)) / 2).unsqueeze(1) * mean - x
    assert float((printed - truth).detach().norm(dim=1).min()) > 0.01


# --- the DDPM loss ---


def ddpm_loss(x0: Tensor, z: Tensor, mean: Tensor, w: Tensor, *, t: float) -> Tensor:
    """Eq. 11, averaged over the records x0 (..., n, d) noised with z (..., n, d); `mean` is that at time 0."""
    std = math.sqrt(-math.expm1(-2 * t))
    x = math.exp(-t) * x0 + std * z
    return (score(x, math.exp(-t) * mean, w) + z / std).square().sum(-1).mean(-1)


def test_the_ddpm_loss_is_the_error_of_the_score_plus_a_constant() -> None:
    mean, w, t = f64(1.5, 0.5), f64(0.7)[0], 0.4
    other = (f64(1.0, 0.8), f64(0.4)[0])
    rng = generator(0, "ddpm")
    x0 = sample(2000, mean, w.expand(60), rng=rng)
    z = torch.randn(x0.shape, dtype=torch.float64, generator=rng)
    difference = ddpm_loss(x0, z, *other, t=t) - ddpm_loss(x0, z, mean, w, t=t)
    now = sample(200_000, math.exp(-t) * mean, w, rng=rng)  # x_t without x_0
    wanted = float(score_error(now, (math.exp(-t) * mean, w), (math.exp(-t) * other[0], other[1])))
    low, high = bounds(difference)
    assert low < wanted < high and high - low < wanted / 2


# --- Theorem 4.2 ---


@pytest.mark.parametrize("d", [1, 16])
def test_the_exact_variance_is_that_of_monte_carlo_and_has_no_d(d: int) -> None:
    mean = even_mean(d, 2.0)
    x = sample(50, mean, f64(0.7).expand(2000), rng=generator(0, "moments", d))
    estimates = weight_estimate(x, mean)
    low, high = bounds(estimates)
    assert low < 0.7 < high
    low, high = bounds((estimates - 0.7).square())
    assert low < weight_variance(0.7, 2.0, 50) < high
    assert (high < weight_bound(0.7, 2.0, 50, d=d)) == (d == 16)


def test_the_minimum_of_the_ddpm_loss_by_brute_force() -> None:
    mu, t, n = 4.0, 0.2, 500
    x0 = sample(n, f64(mu), f64(0.7).expand(40), rng=generator(0, "brute"))
    z = torch.linspace(-5, 5, 31, dtype=torch.float64)
    share, logits = (-z.square() / 2).softmax(0), torch.linspace(-1.6, 3.2, 33, dtype=torch.float64)
    losses = torch.zeros(len(logits), len(x0), dtype=torch.float64)
    for value, p in zip(z, share, strict=True):
        for row, logit in zip(losses, logits, strict=True):
            row += p * ddpm_loss(x0, value.expand(x0.shape), f64(mu), logit.sigmoid(), t=t)
    errors = (logits[losses.argmin(0)].sigmoid() - 0.7).square()
    low, high = bounds(n * errors)
    assert low < ddpm_variance(0.7, mu, t) < high
    assert low > 5 * weight_bound(0.7, (math.exp(-t) * mu) ** 2, 1, d=1)  # Theorem 4.2 does not hold for it


# --- Theorem 4.3 ---
