"""SPIRE's theory (Ozkara, Zhou & Diggavi, arXiv 2506.12303, section 4): one mean for all clients, one weight each.

Client j holds n records of w_j N(mu, I_d) + (1 - w_j) N(-mu, I_d). mu, common to all, stands for the backbone; w_j for
the client's embedding. Under the forward process x_t = e^-t x_0 + sqrt(1 - e^-2t) z such a mixture keeps its form,
with mu_t = e^-t mu: a draw of x_t is a draw of the mixture with mean mu_t. Where the paper disagrees with itself:

- Lemma 4.1 (Eq. 10) prints the score as tanh(mu_t^T x - 1/2 log(w / (1 - w))) mu_t - x. Its own proof, Eq. 11 and the
  gradient of log q_t have + 1/2 log(w / (1 - w)).
- The proof of Theorem 4.2 has w-hat = 1/2 (1 - mu_t^T Xbar / |mu_t|^2), which estimates 1 - w: E X_t = (2 w - 1) mu_t.
  The minus is Eq. 12's. At the critical point E[tanh'(u) (|mu_t|^2 tanh(u) + mu_t^T X_t)] is indeed 0, but Eq. 12 drops
  the factor tanh'(u), as if it were constant.
- For the same reason the minimum of the loss is no moment estimator: Theorem 4.2 says "a gradient method on the DDPM
  loss" and proves a bound for `weight_estimate`. What holds for the loss is `ddpm_variance`: it breaks the bound at
  small t, where only records between the two components tell w (their share is of order exp(-|mu_t|^2 / 2)).
- Theorem 4.2's d is not needed either: see `weight_variance`.

Shapes: (..., n, d) records, leading axes are clients, seeds or trials. All in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

W_MIN = 0.1
"""Estimated weights are cut to [W_MIN, 1 - W_MIN]: Theorem 4.3's proof has a w_min, without giving it."""
WEIGHTS = (0.2, 0.8)  # of the clients: drawn uniformly from here


# --- the mixture ---


def score(x: Tensor, mean: Tensor, w: Tensor) -> Tensor:
    """Gradient of log(w N(mean, I) + (1 - w) N(-mean, I)) at x (..., n, d), for mean (..., d) and w (...)."""
    gate = (x @ mean.unsqueeze(-1)).squeeze(-1) + w.logit().unsqueeze(-1) / 2
    return gate.tanh().unsqueeze(-1) * mean.unsqueeze(-2) - x


def sample(count: int, mean: Tensor, w: Tensor, *, rng: torch.Generator) -> Tensor:
    """`count` records of each mixture, (..., count, d), for w (...) and a mean that is common, (d,), or (..., d)."""
    u = torch.rand(*w.shape, count, dtype=torch.float64, generator=rng)
    sign = torch.where(u < w.unsqueeze(-1), 1.0, -1.0).to(torch.float64)
    centres = sign.unsqueeze(-1) * mean.unsqueeze(-2)
    return centres + torch.randn(centres.shape, dtype=torch.float64, generator=rng)


def even_mean(d: int, square: float) -> Tensor:
    """The mean (d,) with equal entries and |mean|^2 = `square`."""
    return torch.full((d,), math.sqrt(square / d), dtype=torch.float64)


def score_error(x: Tensor, truth: tuple[Tensor, Tensor], estimate: tuple[Tensor, Tensor]) -> Tensor:
    """Mean squared distance (...) between the scores of two (mean, w) at the records x (..., n, d)."""
    return (score(x, *estimate) - score(x, *truth)).square().sum(-1).mean(-1)


# --- learning by the DDPM loss ---


def ddpm_loss(x0: Tensor, z: Tensor, mean: Tensor, w: Tensor, *, t: float) -> Tensor:
    """Eq. 11, averaged over the records x0 (..., n, d) noised with z (..., n, d); `mean` is that at time 0."""
    std = math.sqrt(-math.expm1(-2 * t))
    x = math.exp(-t) * x0 + std * z
    return (score(x, math.exp(-t) * mean, w) + z / std).square().sum(-1).mean(-1)


def learn(x0: Tensor, *, t: float, steps: int, rate: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Adam on Eq. 11 for each seed's records x0 (S, n, d) with fresh noise in each step, as in Figure 3.

    Returns w (steps + 1, S) and the mean (steps + 1, S, d) on the way from w = 1/2 and a mean of ones; w is optimised
    through its logit.
    """
    logit = torch.zeros(len(x0), dtype=torch.float64, requires_grad=True)
    mean = torch.ones(len(x0), x0.shape[-1], dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([logit, mean], lr=rate)
    path = [(logit.detach().sigmoid(), mean.detach().clone())]
    for _ in range(steps):
        z = torch.randn(x0.shape, dtype=torch.float64, generator=rng)
        adam.zero_grad()
        ddpm_loss(x0, z, mean, logit.sigmoid(), t=t).sum().backward()
        adam.step()
        path.append((logit.detach().sigmoid(), mean.detach().clone()))
    weights, means = zip(*path, strict=True)
    return torch.stack(weights), torch.stack(means)


# --- Theorem 4.2: the weight, with the mean known ---


def weight_estimate(x: Tensor, mean: Tensor) -> Tensor:
    """1/2 (1 + mean^T Xbar / |mean|^2), (...), of x (..., n, d) with mean (..., d); unbiased, not cut to [0, 1]."""
    return (1 + (x.mean(-2) * mean).sum(-1) / mean.square().sum(-1)) / 2


def weight_variance(w: float, square: float, n: int) -> float:
    """Exact mean squared error of `weight_estimate` for |mean|^2 = `square`: w (1 - w) / n + 1 / (4 |mean|^2 n).

    Write X = S mean + e, with S = 1 with probability w, else -1, and e ~ N(0, I). The estimator averages
    (1 + S) / 2 + mean^T e / (2 |mean|^2): a Bernoulli variable plus N(0, 1 / (4 |mean|^2)). The other d - 1
    directions of e never enter.
    """
    return (w * (1 - w) + 1 / (4 * square)) / n


def weight_bound(w: float, square: float, n: int, *, d: int) -> float:
    """Theorem 4.2: w (1 - w) / n + d / (4 |mean|^2 n). By Cauchy-Schwarz, whence the d."""
    return (w * (1 - w) + d / (4 * square)) / n


def ddpm_variance(w: float, norm: float, t: float) -> float:
    """n times the mean squared error of the w that minimises Eq. 11 over n records, |mu| = `norm` known, n large.

    At its best: the loss averaged over all noise z. Only the direction of mu matters. With b = 1/2 logit w,
    u = mu_t x_t + b and g(x_0) = E_z[tanh'(u) (mu_t tanh(u) - x_t + z / s)], the derivative by b is E g up to a
    factor; the minimum over a sample has the variance E[g^2] / (n (mu_t E[tanh'(u)^2])^2) in b, and
    dw = 2 w (1 - w) db. By quadrature, on a grid.
    """
    mean, std = math.exp(-t) * norm, math.sqrt(-math.expm1(-2 * t))
    x0 = torch.linspace(-norm - 8, norm + 8, 2001, dtype=torch.float64)
    z = torch.linspace(-8, 8, 401, dtype=torch.float64)
    log_p = torch.stack([math.log(w) - (x0 - norm).square() / 2, math.log(1 - w) - (x0 + norm).square() / 2])
    p, noise = log_p.logsumexp(0).softmax(0), (-z.square() / 2).softmax(0)
    x = math.exp(-t) * x0.unsqueeze(1) + std * z
    th = (mean * x + math.log(w / (1 - w)) / 2).tanh()
    slope = 1 - th.square()
    g = (slope * (mean * th - x + z / std)) @ noise
    curvature = mean * float(p @ slope.square() @ noise)
    return (2 * w * (1 - w) / curvature) ** 2 * float(p @ g.square())


# --- Theorem 4.3: the score, with nothing known ---


def shared_mean(x: Tensor) -> Tensor:
    """mu_t (..., d) up to its sign, from all clients' records (..., m, n, d) together.

    E x x^T = I + mu_t mu_t^T whatever the weights: the first eigenvector, of length sqrt(eigenvalue - 1). The sign does
    not matter to the score: (-mu_t, 1 - w) is the same mixture as (mu_t, w).
    """
    pooled = x.flatten(-3, -2)
    values, vectors = torch.linalg.eigh(pooled.mT @ pooled / pooled.shape[-2])
    mean: Tensor = vectors[..., -1] * (values[..., -1:] - 1).clamp_min(0).sqrt()
    return mean


@dataclass(frozen=True)
class Federation:
    """One setting of Theorem 4.3."""

    clients: int
    records: int
    """Of each client."""
    d: int
    square: float
    """|mu_t|^2, which the theorem bounds by B."""


def score_losses(setting: Federation, *, trials: int, fresh: int = 100, rng: torch.Generator) -> Tensor:
    """Expected squared error of the score, (3,): of both estimates, of the mean alone, of the weights alone.

    The mean comes from `shared_mean`, each client's weight from `weight_estimate` with its own n records (and the mean
    as estimated, if both are; the weights alone have the true mean, the mean alone the true weights). Averaged over the
    clients, `fresh` new records of each, and `trials` draws of weights and records.
    """
    mean, (low, high) = even_mean(setting.d, setting.square), WEIGHTS
    w = low + (high - low) * torch.rand(trials, setting.clients, dtype=torch.float64, generator=rng)
    x, new = (sample(count, mean, w, rng=rng) for count in (setting.records, fresh))
    found = shared_mean(x).unsqueeze(-2)
    found = found * torch.where(found @ mean < 0, -1.0, 1.0).unsqueeze(-1)  # for the mean alone: its w does not flip
    pairs = [(found, _cut(weight_estimate(x, found))), (found, w), (mean, _cut(weight_estimate(x, mean)))]
    return torch.stack([score_error(new, (mean, w), pair).mean() for pair in pairs])


def exponent(x: Sequence[float], y: Tensor) -> Tensor:
    """The slope (...) of log y (..., K) over log x (K), by least squares."""
    a = torch.tensor(x, dtype=torch.float64).log()
    a = a - a.mean()
    return y.log() @ a / (a @ a)


def exponents(x: Sequence[float], losses: Tensor) -> Tensor:
    """The exponent of the mean over seeds of `losses` (S, K): jackknife pseudo-values (S,), for an interval.

    The mean of each seed's own exponent would be biased, as the logarithm of a noisy loss is on average too low.
    """
    seeds, mean = len(losses), losses.mean(0)
    without = (seeds * mean - losses) / (seeds - 1)
    return seeds * exponent(x, mean) - (seeds - 1) * exponent(x, without)


def _cut(w: Tensor) -> Tensor:
    return w.clamp(W_MIN, 1 - W_MIN)
