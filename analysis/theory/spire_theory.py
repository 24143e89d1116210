"""SPIRE's theory (Ozkara, Zhou & Diggavi, arXiv 2506.12303, section 4): one mean for all clients, one weight each.

Client j holds n records of w_j N(mu, I_d) + (1 - w_j) N(-mu, I_d). mu, common to all, stands for the backbone; w_j for
the client's embedding. Under the forward process x_t = e^-t x_0 + sqrt(1 - e^-2t) z such a mixture keeps its form,
with mu_t = e^-t mu: a draw of x_t is a draw of the mixture with mean mu_t. Where the paper disagrees with itself:

- Lemma 4.1 (Eq. 10) prints the score as tanh(mu_t^T x - 1/2 log(w / (1 - w))) mu_t - x; its proof, Eq. 11 and the
  gradient of log q_t have + 1/2 log(w / (1 - w)).
- The proof of Theorem 4.2 has w-hat = 1/2 (1 - mu_t^T Xbar / |mu_t|^2), which estimates 1 - w, since Eq. 12 has the
  wrong sign and drops the factor tanh'(u).
- So the minimum of the loss is no moment estimator: Theorem 4.2 names the DDPM loss, but proves a bound for
  `weight_estimate`. The loss has `ddpm_variance`, which breaks the bound at small t, where only records between the
  two components (a fraction of order exp(-|mu_t|^2 / 2)) depend on w.
- Theorem 4.2's d is not needed (`weight_variance`).

Shapes: (..., n, d) records, leading axes are clients, seeds or trials. All in float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from analysis.theory.theory_tables import Rows, over_seeds
from raydiff.formats.plots import panels, save_figure
from raydiff.formats.tables import aligned
from raydiff.seeding import generator

W_MIN = 0.1  # estimated weights are cut to [W_MIN, 1 - W_MIN]: Theorem 4.3's proof has a w_min, without its value
WEIGHTS = (0.2, 0.8)  # of the clients: drawn uniformly from here
W = 0.7  # the weight of the paper's Figure 3
MU = 4.0  # the mean of the paper's Figure 3
SQUARE = 4.0  # |mu_t|^2 where it does not vary
CLIENTS = (2, 8, 32, 128)
COUNTS = (30, 100, 300, 1000)
AXES: tuple[tuple[str, str, Sequence[Any], tuple[str, str]], ...] = (
    ("clients m", "clients", CLIENTS, ("-1", "0")),
    ("records n", "records", COUNTS, ("-1", "-1")),
    ("dimensions d", "d", (2, 4, 8, 16, 32), ("6", "0")),
    ("|mu_t|^2", "square", (1.0, 2.0, 4.0, 8.0, 16.0), ("8", "0")),
)
"""Title, field of a setting, its values, and Theorem 4.3's exponents of the mean's part and of the weights'."""


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


# --- Theorem 4.2: the weight, with the mean known ---


def weight_estimate(x: Tensor, mean: Tensor) -> Tensor:
    """1/2 (1 + mean^T Xbar / |mean|^2), (...), of x (..., n, d) with mean (..., d); unbiased, not cut to [0, 1]."""
    return (1 + (x.mean(-2) * mean).sum(-1) / mean.square().sum(-1)) / 2


def weight_variance(w: float, square: float, n: int) -> float:
    """Exact mean squared error of `weight_estimate` for |mean|^2 = `square`: w (1 - w) / n + 1 / (4 |mean|^2 n).

    With X = S mean + e, S = 1 with probability w, else -1, e ~ N(0, I), the estimator averages a Bernoulli variable
    (1 + S) / 2 plus mean^T e / (2 |mean|^2). The other d - 1 directions of e never enter.
    """
    return (w * (1 - w) + 1 / (4 * square)) / n


def weight_bound(w: float, square: float, n: int, *, d: int) -> float:
    """Theorem 4.2: w (1 - w) / n + d / (4 |mean|^2 n). By Cauchy-Schwarz, whence the d."""
    return (w * (1 - w) + d / (4 * square)) / n


def ddpm_variance(w: float, norm: float, t: float) -> float:
    """n times the mean squared error of the w that minimises the DDPM loss, for large n and a known |mu| = `norm`.

    At its best: the loss averaged over all noise z. Only the direction of mu matters. With b = 1/2 logit w,
    u = mu_t x_t + b and g(x_0) = E_z[tanh'(u) (mu_t tanh(u) - x_t + z / s)], the derivative by b is E g up to a
    factor; the minimum over a sample has the variance E[g^2] / (n (mu_t E[tanh'(u)^2])^2) in b, and
    dw = 2 w (1 - w) db. By quadrature, on a grid.
    """
    mean = math.exp(-t) * norm
    std = math.sqrt(-math.expm1(-2 * t))
    x0 = torch.linspace(-norm - 8, norm + 8, 2001, dtype=torch.float64)
    z = torch.linspace(-8, 8, 401, dtype=torch.float64)
    log_p = torch.stack([math.log(w) - (x0 - norm).square() / 2, math.log(1 - w) - (x0 + norm).square() / 2])
    p = log_p.logsumexp(0).softmax(0)
    noise = (-z.square() / 2).softmax(0)
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

    clients: int = 8
    records: int = 100  # of each client
    d: int = 8
    square: float = SQUARE  # |mu_t|^2, which the theorem bounds by B


def score_losses(setting: Federation, *, trials: int, fresh: int = 100, rng: torch.Generator) -> Tensor:
    """Expected squared error of the score, (3,): of both estimates, of the mean alone, of the weights alone.

    The mean comes from `shared_mean`, each client's weight from `weight_estimate` with its n records (and the mean
    as estimated, if both are; the weights alone have the true mean, the mean alone the true weights). Averaged over the
    clients, `fresh` new records of each, and `trials` draws of weights and records.
    """
    mean, (low, high) = even_mean(setting.d, setting.square), WEIGHTS
    w = low + (high - low) * torch.rand(trials, setting.clients, dtype=torch.float64, generator=rng)
    x, new = (sample(count, mean, w, rng=rng) for count in (setting.records, fresh))
    estimate = shared_mean(x).unsqueeze(-2)
    # The mean alone is judged with the true w, which does not flip with the estimate's sign: the sign is corrected.
    estimate = estimate * torch.where(estimate @ mean < 0, -1.0, 1.0).unsqueeze(-1)
    pairs = [(estimate, _cut(weight_estimate(x, estimate))), (estimate, w), (mean, _cut(weight_estimate(x, mean)))]
    return torch.stack([score_error(new, (mean, w), pair).mean() for pair in pairs])


def exponents(x: Sequence[float], losses: Tensor) -> Tensor:
    """The slope of the log of the mean over seeds of `losses` (S, K) over log x (K), by least squares.

    Jackknife pseudo-values (S,), for an interval. Each seed's exponent would be biased: the log of a noisy loss is too
    low.
    """
    a = torch.tensor(x, dtype=torch.float64).log()
    a = a - a.mean()
    seeds = len(losses)
    mean = losses.mean(0)
    without = (seeds * mean - losses) / (seeds - 1)
    every, each = (y.log() @ a / (a @ a) for y in (mean, without))
    return seeds * every - (seeds - 1) * each


def _cut(w: Tensor) -> Tensor:
    return w.clamp(W_MIN, 1 - W_MIN)


# --- what `python -m analysis.theory spire` prints ---


def report(out: Path, *, seeds: int = 10, trials: int = 5) -> list[str]:
    """The tables of Theorems 4.2 and 4.3; a picture into the folder `out`."""
    picture = out / "spire-losses.png"
    title = f"SPIRE's theory: the clients share mu and differ in w. [95 % interval over {seeds} seeds]"
    tables = [title, "", *_moments(seeds, 10 * trials), "", *_minimum(), "", *_orders(picture, seeds, trials)]
    return [*tables, f"written: {picture}"]


def _moments(seeds: int, trials: int) -> list[str]:
    rows: Rows = [("d", "n", "measured", "exact", "bound")]
    for d, n in itertools.product((1, 4, 16), (10, 100, 1000, 10_000)):
        mean = even_mean(d, SQUARE)
        w = torch.full((trials,), W, dtype=torch.float64)
        draws = (sample(n, mean, w, rng=generator(seed, "spire", "moments", d, n)) for seed in range(seeds))
        errors = [n * float((weight_estimate(x, mean) - W).square().mean()) for x in draws]
        exact = weight_variance(W, SQUARE, 1)
        bound = weight_bound(W, SQUARE, 1, d=d)
        rows.append((str(d), str(n), over_seeds(errors), f"{exact:.3f}", f"{bound:.3f}"))
    title = f"Theorem 4.2: n times the mean squared error of w from first moments, w = {W}, |mu_t|^2 = {SQUARE:g}"
    return [title, *aligned(rows, words=0)]


def _minimum() -> list[str]:
    rows: Rows = [("mu", "t", "minimum", "moments", "bound")]
    for mu, t in itertools.product((2.0, MU), (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)):
        square = (math.exp(-t) * mu) ** 2
        values = ddpm_variance(W, mu, t), weight_variance(W, square, 1), weight_bound(W, square, 1, d=1)
        rows.append((f"{mu:g}", f"{t:g}", *(f"{value:.3f}" for value in values)))
    return [
        "But the theorem speaks of the DDPM loss. n times the mean squared error of w, d = 1: at the exact minimum of",
        "that loss (n large, all noise averaged out), and from the first moments of one x_t per record",
        *aligned(rows, words=0),
    ]


def _orders(path: Path, seeds: int, trials: int) -> list[str]:
    base = Federation()
    losses = cache(lambda setting: _losses(setting, seeds, trials))
    parts = {m: [losses(replace(base, records=n, clients=m)).mean(0).tolist() for n in COUNTS] for m in CLIENTS}
    rows: Rows = [("n", *(f"m = {m}" for m in CLIENTS))]  # all (the mean's | the weights')
    for n, row in zip(COUNTS, zip(*parts.values(), strict=True), strict=True):
        rows.append((str(n), *("{:.5f} ({:.5f} | {:.5f})".format(*values) for values in row)))
    fitted: Rows = [("in", "all", "only the mean", "only the weights")]
    for title, field, values, orders in AXES:
        start = replace(base, records=300) if field in ("d", "square") else base
        along = torch.stack([losses(replace(start, **{field: value})) for value in values], dim=-1)
        every, *others = (over_seeds(exponents(values, part)) for part in along.unbind(1))  # (seeds, settings) each
        fitted.append((title, every, *(f"{part} ({order})" for part, order in zip(others, orders, strict=True))))
    _draw(path, parts)
    _, mean, weights = losses(base).mean(0).tolist()
    even = base.clients * mean / weights  # the mean's part falls like 1 / m, the weights' does not
    return [
        f"Theorem 4.3: squared error of the score, m clients with n records each, d = {base.d}, |mu_t|^2 = {SQUARE:g}:",
        "all estimated (only the shared mean, with the true w | only the clients' weights, with the true mu)",
        *aligned(rows, words=0),
        f"At n = {base.records} the mean's part is the larger one up to about m = {even:.0f}; Remark 2 has it so up to",
        f"the order of d^6 B^8 = {base.d**6 * SQUARE**8:.1e}. Exponents: fitted, and (in round brackets) the bound's:",
        *aligned(fitted, words=0),
    ]


def _losses(setting: Federation, seeds: int, trials: int) -> Tensor:
    """(seeds, 3); more trials for few clients, whose weights alone differ much."""
    trials = max(trials, 32 * trials // setting.clients)
    rngs = [generator(seed, "spire", "losses", repr(setting)) for seed in range(seeds)]
    return torch.stack([score_losses(setting, trials=trials, rng=rng) for rng in rngs])


def _draw(path: Path, curves: Mapping[int, Sequence[Sequence[float]]]) -> None:
    """Clients -> for each of COUNTS the loss in all, the mean's part and the weights'."""
    figure, ((ax,),) = panels(1, 1, size=(6.5, 4.8), dpi=110)
    for colour, (m, losses) in enumerate(curves.items()):
        ax.loglog(COUNTS, [every for every, _, _ in losses], "o-", color=f"C{colour}", label=f"m = {m}")
        constant = losses[-1][1] * m * COUNTS[-1]  # of the mean's part, from its last point
        ax.loglog(COUNTS, [constant / (m * n) for n in COUNTS], "--", color=f"C{colour}", linewidth=1)
    constant = losses[-1][2] * COUNTS[-1]
    ax.loglog(COUNTS, [constant / n for n in COUNTS], "k--", linewidth=1, label="the weights' part: 1 / n")
    ax.set(xlabel="records of each client, n", ylabel="squared error of the score")
    ax.set(title="Theorem 4.3: measured, and the mean's part, 1 / (m n), dashed")
    ax.legend()
    save_figure(figure, path)
