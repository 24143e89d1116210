"""PFDM's Theorem 5.2 and Eq. 9 (Patel et al., CVPR 2026, arXiv 2504.00952): when does collaboration help?

Their setting: a class is N(mu, I_d); a client has n of its records, all clients together N; sigma^2 = (1 - abar) / abar
at the depth t0; nothing is clipped; denoisers are perfect. Where the paper disagrees with itself:

- The proof has the weights 3 / (2 sigma^2 + 3) and 2 sigma^2 / (2 sigma^2 + 3) on d^2 / N and d^2 / n; the statement
  has 2 / (2 + 3 sigma^2) and 3 sigma^2 / (2 + 3 sigma^2). O() hides it.
- The proof's last step puts 1 - 3 / (2 sigma^2 + 3) where it has just derived 1 - 1 / (2 sigma^2 + 1), which is larger.
- Eq. 15 has the global mean in both terms; Eq. 16 has the client's in the second, which is right.
- The proof of Eq. 9 prints the difference of two equal distances; the second must be PFDM's.
- Eq. 18 keeps only the diagonal of the global covariance in the client's eigenbasis; the exact chain has A S_global A.
- The global mean contains the client's own records; the proof's triangle inequality does without that correlation.

With w the weight (of means A or A^2, of covariances its square) collaboration helps, to first order in 1 / n, from
N / n = `break_even`: for large sigma sqrt(1 + sigma^2) / 2 for means and (1 + sigma^2) / 2 for covariances under DDIM,
never more than 3/2 for the ancestral chain. It removes at most the fraction 1 - (1 - w)^2 of the squared error, which
is small at a deep t0. All in float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from analysis.theory import closed_forms as forms
from analysis.theory.closed_forms import ABAR, Gauss
from analysis.theory.theory_tables import Rows, over_seeds
from raydiff.formats.tables import aligned
from raydiff.models.samplers import MEASURED
from raydiff.seeding import generator

DIMENSIONS = 8  # of the table


def eq9(d: int, n: int, sigma2: float) -> tuple[float, float, float]:
    """Eq. 9 with the proof's constants: (gain promised, smallest N, smallest n); the last up to an unknown constant.

    The gain (Eq. 27) is of order d^2 / n, needs N >= max(36 (1 + 16 sigma^2), 12 (11 + 4 sigma^2)) n and
    n >= (1 + sigma^2)^2 d ln(20)^(3/2), where it fails with probability 0.05.
    """
    promised = (sigma2 + 1 / 8) / (2 * (2 * sigma2 + 1) ** 2) * d * d / n
    pooled = max(36 * (1 + 16 * sigma2), 12 * (11 + 4 * sigma2)) * n
    return promised, pooled, (1 + sigma2) ** 2 * d * math.log(20) ** 1.5


def first_order_gain(d: int, n: int, pooled: int, *, abar: float, sampler: str) -> float:
    """Local W2^2 minus PFDM's for N(mu, I_d), to first order in 1 / n: positive where collaboration helps.

    The errors of the client's and the global estimate are correlated: the pool contains the client's n records. An
    entry of the mean has the error 1 / n locally, of the covariance too (up to a constant); of the global
    estimate 1 / (abar N) and 1 / (abar^2 N).
    """
    w = float(forms.weight(torch.ones(1, dtype=torch.float64), abar, sampler))
    means = _gain(w, 1 / abar, n, pooled)
    covs = _gain(w * w, abar**-2, n, pooled)
    return d * means + d * (d + 1) / 4 * covs


def break_even(abar: float, sampler: str) -> tuple[float, float]:
    """The N / n from which collaboration improves (the mean, the covariance), to first order in 1 / n."""
    w = float(forms.weight(torch.ones(1, dtype=torch.float64), abar, sampler))
    return _ratio(w, 1 / abar), _ratio(w * w, abar**-2)


def trials(
    d: int, n: int, pooled: int, *, abar: float, mean: Tensor, clip: float | None, count: int, rng: torch.Generator
) -> tuple[Tensor, dict[str, Tensor]]:
    """Monte-Carlo: W2^2 (count,) of local training, and of PFDM with each sampler, over draws of the records.

    The class is N(mean, I_d); the client has the first n of the `pooled` records, and fits its covariance.
    """
    truth = Gauss(mean.expand(count, d), torch.eye(d, dtype=torch.float64))
    x = truth.sample(pooled, rng)
    noise = torch.randn(x.shape, dtype=torch.float64, generator=rng)
    client = forms.fitted(x[:, :n])
    start = forms.fitted(forms.uploads(x, noise, abar=abar, clip=clip))
    pfdm = {s: forms.w2_squared(forms.refine(start, client, abar=abar, sampler=s), truth) for s in MEASURED}
    return forms.w2_squared(client, truth), pfdm


def _gain(w: float, noise: float, n: int, pooled: int) -> float:
    """1/n minus the variance of w global + (1 - w) local, where the global estimate has the variance noise / pooled."""
    return 1 / n - (w * w * noise / pooled + (1 - w) ** 2 / n + 2 * w * (1 - w) / pooled)


def _ratio(w: float, noise: float) -> float:
    return (w * w * noise + 2 * w * (1 - w)) / (w * (2 - w))


# --- what `python -m analysis.theory theorems` prints ---


def report(trials: int = 200) -> list[str]:
    """The client's weight, then the gain of collaboration by epsilon, n and N."""
    return [*_weights(), "", *_gains(trials)]


def _weights() -> list[str]:
    rows: Rows = [("t0", "lambda", "sampler", "limit", "all steps", "50 steps")]
    for (t0, value), sampler in itertools.product(((740, 1.0), (690, 5.0)), MEASURED):
        limit = float(forms.weight(torch.tensor(value, dtype=torch.float64), float(ABAR[t0]), sampler))
        chains = (forms.measured_weight(value, t0, sampler=sampler, steps=steps) for steps in (1000, 50))
        rows.append((str(t0), f"{value:g}", sampler, *(f"{number:.4f}" for number in (limit, *chains))))
    title = "Weight of the global mean after the client's chain: the limit, and raydiff's chain"
    return [title, *aligned(rows, words=0)]


def _gains(count: int) -> list[str]:
    d = DIMENSIONS
    clip = math.sqrt(2 * DIMENSIONS)  # about the median norm of N(mean, I)
    gains = (cell for s in MEASURED for cell in (f"gain, {s}", "order 1/n", "clipped"))
    rows: Rows = [("epsilon", "t0", "n", "N", "local", *gains)]
    regimes = []
    for epsilon in (10.0, 50.0, 200.0):
        t0 = forms.depth(epsilon, clip)
        for n in (3, 20, 100):
            for pooled in dict.fromkeys((n, 10 * n, 1000)):
                cells = _gain_cells(n, pooled, float(ABAR[t0]), clip, count)
                rows.append((f"{epsilon:g}", str(t0), str(n), str(pooled), *cells))
        regimes += _regime(epsilon, float(ABAR[t0]))
    return [
        f"A class N(mu, I) in {d} dimensions, |mu|^2 = {d}: W2^2 of local training, and what PFDM takes off it (gain).",
        f"[95 % interval of {count} draws]; order 1/n: the formula, for n well above {d} only; clipped: the gain with",
        f"images clipped to C = {clip:.2f}, for which t0 is chosen (exact accountant, delta 1e-5) in either case",
        *aligned(rows, words=0),
        *regimes,
    ]


def _gain_cells(n: int, pooled: int, abar: float, clip: float, count: int) -> Iterator[str]:
    """W2^2 of local training; for each sampler the gain, its formula, and the gain with clipped images."""
    d = DIMENSIONS
    mean = torch.ones(DIMENSIONS, dtype=torch.float64)
    plain, clipped = (
        trials(d, n, pooled, abar=abar, mean=mean, clip=c, count=count, rng=generator(0, "theory", n, pooled))
        for c in (None, clip)
    )
    yield f"{float(plain[0].mean()):.3f}"
    for sampler in MEASURED:
        gain, clipped_gain = (over_seeds(local - pfdm[sampler], "+.3f") for local, pfdm in (plain, clipped))
        yield from (gain, f"{first_order_gain(d, n, pooled, abar=abar, sampler=sampler):+.3f}", clipped_gain)


def _regime(epsilon: float, abar: float) -> list[str]:
    sigma2 = (1 - abar) / abar
    ratios = {s: break_even(abar, s) for s in MEASURED}
    promised, pooled, least = eq9(DIMENSIONS, 1, sigma2)
    from_ratio = ", ".join(f"{s} N > {m:.2f} n (means), {c:.2f} n (covariances)" for s, (m, c) in ratios.items())
    return [
        f"epsilon {epsilon:g}: sigma^2 = {sigma2:.3g}; helps from {from_ratio}",
        f"    Eq. 9 needs N >= {pooled:,.0f} n and n >= {least:,.0f}, and promises {promised:.2g} / n",
    ]
