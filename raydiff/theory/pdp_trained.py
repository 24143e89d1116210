"""What one record changes in TRAINED models, and how far these are from the perfect ones, by enumeration of k^n states.

A model is here what it predicts, p_phi(v_0^i | v_t) for every state and step. With `pdp_exact`'s perfect models, all
errors but `gap` are 0, and delta and path are those of `exact`.

| paper | here |
|---|---|
| gamma_t, Assumption 1 | Trained.gamma |
| gammatilde_t, Assumption 2; TV is half of sum abs(q - p) | Trained.gap |
| O(sqrt(gamma_t) + gammatilde_t), Theorem 1 | Trained.error, from `error_factors` |

delta is that of two given models. Where training is random, what is released is a mixture over its randomness, and its
delta is at most the expectation of this one (the hockey stick is jointly convex), whichever runs are paired.

Deviations:
- f_1 is twice the printed one: the last line of Lemma K.3's proof loses a factor of 2. It is that of Appendix J.3,
  mu-_t, not Lemma A.3's, mubar-_t.
- f_1 and f_2 are infinite at t = 1, where Rbar_0 is: with the constants of its proof, Theorem 1's error term says
  something only for rows that are released at step 1 or later.

Reference: Wei et al., TMLR 2024 (arXiv 2310.15524), Eq. 4, 5 and 6, Lemmas A.3, K.2 and K.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raydiff.privacy.pdp.bound import Release
from raydiff.privacy.pdp.kernel import Floats, Ints, Kernel
from raydiff.theory.pdp_exact import clean_chances, divergence, joint, kl, neighbours, noise, states, variation
from raydiff.theory.pdp_samples import deltas

Predictions = Callable[[int], Floats]
"""t in 1..T -> p_phi(v_0^i = l | v_t), (k^n, n, k), v_t in the order of `pdp_exact.states`."""

SLACK = 1e-6  # of predictions, which must sum to 1


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Two models, with the record and without, against each other and against the perfect ones.

    The steps are `Release.steps`. The errors are those of the worse of the two models.
    """

    delta: float
    """As `Exact.delta`, of the trained models."""
    least: float
    """As `Exact.least`."""
    path: float
    """As `Exact.path`."""
    gamma: Floats
    """(steps,) max KL(q(v_0^i | v_t) || p_phi(v_0^i | v_t)) over v_t and i, nats: Assumption 1."""
    mean: Floats
    """(steps,) the same, mean over v_t ~ q and i: how far the training loss is above its minimum."""
    gap: Floats
    """(steps,) TV(q(v_t), p_phi(v_t)): Assumption 2."""
    error: float
    """Theorem 1's error term with the constants of its proof: path <= Exact.forward + error."""


def trained(
    table: Ints, record: int, release: Release, models: Sequence[Predictions], weights: Ints | None = None
) -> Trained:
    """Of models of a (rows, n) table with row number `record` and without one copy of it, in this order.

    `weights` (rows,) counts equal rows. Raises ValueError for too many states, for other than two models, for
    predictions that are no distributions, and for a kernel whose first step adds no noise, where the conditionals have
    no meaning.
    """
    kernel, n = release.kernel, table.shape[1]
    if len(models) != 2:
        raise ValueError(f"models must be two, with the record and without, got {len(models)}")
    if kernel.alpha[1] == 1:
        raise ValueError("trained models need noise in the first step, got alpha_1 = 1")
    tables = neighbours(table, record, kernel, weights)
    chains = [np.full(tables[0].size, 1 / tables[0].size) for _ in tables]
    path, gamma, mean, gap = 0.0, [], [], []
    for t in reversed(release.steps):
        guesses = [_checked(model(t), n, kernel) for model in models]
        noised = [noise(counts, kernel.matrix_since(t)).reshape(-1) for counts in tables]
        off = [kl(clean_chances(c, kernel, t), guess) for c, guess in zip(tables, guesses, strict=True)]  # (states, n)
        gamma.append(max(float(each.max()) for each in off))
        mean.append(max(float(q @ each.mean(axis=1)) for q, each in zip(noised, off, strict=True)))
        gap.append(max(variation(q, p) for q, p in zip(noised, chains, strict=True)))
        columns = [transitions(guess, kernel, t) for guess in guesses]
        path += divergence(chains, columns)
        chains = [p @ joint(chances) for p, chances in zip(chains, columns, strict=True)]
    least, delta = deltas(chains[0], chains[1], release.epsilon, release.samples)
    gammas, gaps = np.array(gamma[::-1]), np.array(gap[::-1])
    return Trained(
        delta=delta,
        least=least,
        path=release.price * path,
        gamma=gammas,
        mean=np.array(mean[::-1]),
        gap=gaps,
        error=release.price * n * _error(gammas, gaps, release),
    )


def error_factors(kernel: Kernel, t: int) -> tuple[float, float]:
    """a and b such that a sqrt(gamma_t) + b gammatilde_t is f_1 + f_2 of Lemma A.3, per column; infinite at t = 1.

    With c_1 and c_2 the smallest and largest q(v_{t-1}^i | v_t, v_0) (Lemma K.2), a = 2 sqrt(2) k c_2^2 / c_1 and
    b = 2 ln(c_2 / c_1).
    """
    smallest = kernel.other[t] * kernel.other_since[t - 1] / kernel.same_since[t]
    largest = kernel.same[t] * kernel.same_since[t - 1] / kernel.same_since[t]
    if smallest == 0:
        return math.inf, math.inf
    first = 2 * math.sqrt(2) * kernel.categories * largest**2 / smallest
    return float(first), 2 * math.log(largest / smallest)


def transitions(guess: Floats, kernel: Kernel, t: int) -> Floats:
    """p_phi(v_{t-1}^i = j | v_t) of predictions p_phi(v_0^i = l | v_t), (states, n, k) both: Eq. 4."""
    once, early, late = kernel.matrix(t), kernel.matrix_since(t - 1), kernel.matrix_since(t)
    given = once.T[:, None, :] * early / late.T[:, :, None]  # (v_t, v_0, v_{t-1})
    n = guess.shape[1]
    return np.asarray(np.einsum("sil,silj->sij", guess, given[states(n, kernel.categories)]))


def predictions(predict: Callable[[Tensor, Tensor, Tensor], Tensor], columns: int, categories: int) -> Predictions:
    """What a denoiser without conditions predicts in all states.

    `predict` maps codes (N, n), steps (N,) and labels (N, 0) to probabilities (N, n, k), as the denoisers of
    `diffusion.discrete` do.
    """
    rows = torch.from_numpy(states(columns, categories))

    def at(t: int) -> Floats:
        none = torch.zeros(len(rows), 0, dtype=torch.long)
        return np.asarray(predict(rows, torch.full((len(rows),), t), none).numpy(), dtype=np.float64)

    return at


def _checked(guess: Floats, columns: int, kernel: Kernel) -> Floats:
    shape = (kernel.categories**columns, columns, kernel.categories)
    if guess.shape != shape:
        raise ValueError(f"predictions must be {shape} (states, columns, categories), got {guess.shape}")
    if not (guess >= 0).all() or not np.allclose(guess.sum(axis=-1), 1, rtol=0, atol=SLACK):
        raise ValueError("predictions must be probabilities that sum to 1 over the last axis")
    return guess


def _error(gamma: Floats, gap: Floats, release: Release) -> float:
    """sum f_1 + f_2; an error of 0 costs nothing at an infinite price."""
    total = 0.0
    for t, one, other in zip(release.steps, gamma, gap, strict=True):
        first, second = error_factors(release.kernel, t)
        total += (first * math.sqrt(one) if one > 0 else 0.0) + (second * float(other) if other > 0 else 0.0)
    return total
