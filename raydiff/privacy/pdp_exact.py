"""What one record really changes: what perfectly trained models generate, by enumeration of all k^n states.

A perfectly trained denoiser knows p(v_0^i | v_t) of its table exactly; generation draws the columns of v_{t-1}
independently given v_t. So the uniform distribution times T matrices (k^n, k^n) is that of the generated rows. With the
record against without it:

    delta (exact, one sample)  <=  output (Lemma A.1)  <=  path (Lemma A.2),

`output` comes from the symmetric KL divergence of the two output distributions, `path` from that of the whole
chains. `forward` has the steps' divergences under q, the noised table, instead of the chain's own distribution
(Lemma A.3): it bounds `path` only up to the error term of Assumption 2, which is not zero for a perfectly trained
model, since its columns are drawn independently. Theorem 1 bounds `forward`.

Reference: Wei et al., TMLR 2024 (arXiv 2310.15524), Eq. 4, Appendix A.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from raydiff.privacy.pdp import Release
from raydiff.privacy.pdp_kernel import Floats, Ints, Kernel

STATES = 4096  # k^n up to which the chain is enumerated


@dataclass(frozen=True, kw_only=True)
class Exact:
    """What one record changes; all are deltas at the release's epsilon, for one sample."""

    delta: float
    """The smallest delta for which (epsilon, delta)-pDP holds."""
    output: float
    """KL bound of the output distributions."""
    path: float
    """KL bound of the chains."""
    forward: float
    """The same as `path`, under the noised table's distribution."""
    gap: float
    """max_t TV(q(v_t), p(v_t)) of Assumption 2, over both models."""


def exact(table: Ints, record: int, release: Release, weights: Ints | None = None) -> Exact:
    """What row number `record` of a (rows, n) table changes; `weights` (rows,) counts equal rows.

    One copy of the record is taken away. Raises ValueError for more than one sample or too many states.
    """
    kernel, n = release.kernel, table.shape[1]
    if release.samples != 1:
        raise ValueError(f"the exact delta is that of one sample, got samples {release.samples}")
    if kernel.categories**n > STATES:
        raise ValueError(f"{kernel.categories}^{n} states are too many to enumerate, at most {STATES}")
    weights = np.ones(len(table), dtype=np.int64) if weights is None else weights
    with_it = np.zeros((kernel.categories,) * n)
    np.add.at(with_it, tuple(table.T), weights)
    without = with_it.copy()
    without[tuple(table[record])] -= 1
    tables = [with_it / with_it.sum(), without / without.sum()]
    chains = [np.full(kernel.categories**n, kernel.categories ** -float(n)) for _ in tables]
    path = forward = gap = 0.0
    for t in reversed(release.steps):
        columns = [column_chances(counts, kernel, t) for counts in tables]
        noised = [noise(counts, kernel.matrix_since(t)).reshape(-1) for counts in tables]
        gap = max(gap, *(float(np.abs(q - p).sum() / 2) for q, p in zip(noised, chains, strict=True)))
        steps = [_kl(columns[0], columns[1]), _kl(columns[1], columns[0])]
        path += sum(_mean(p, step) for p, step in zip(chains, steps, strict=True))
        forward += sum(_mean(q, step) for q, step in zip(noised, steps, strict=True))
        chains = [p @ _joint(chances) for p, chances in zip(chains, columns, strict=True)]
    p, q = chains
    with np.errstate(divide="ignore", invalid="ignore"):
        output = float(np.where(p == q, 0, (p - q) * np.log(p / q)).sum())
    return Exact(
        delta=max(hockey_stick(p, q, release.epsilon), hockey_stick(q, p, release.epsilon)),
        output=release.price * output,
        path=release.price * path,
        forward=release.price * forward,
        gap=gap,
    )


def generated(counts: Floats, kernel: Kernel, step: int = 0) -> Floats:
    """Distribution of the rows that a model trained perfectly on `counts`, (k, .., k), generates, at the given step."""
    chain = np.full(counts.size, 1 / counts.size)
    for t in range(kernel.steps, step, -1):
        chain = chain @ _joint(column_chances(counts / counts.sum(), kernel, t))
    return chain.reshape(counts.shape)


def hockey_stick(p: Floats, q: Floats, epsilon: float) -> float:
    """sum (p - e^epsilon q)_+."""
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def column_chances(table: Floats, kernel: Kernel, t: int) -> Floats:
    """p(v_{t-1}^i = j | v_t) of the perfectly trained model, (states, n, k); table is a distribution (k, .., k).

    By Bayes, Q_t[j, v_t^i] times the mass of the clean rows that agree with v_t in the other columns and become j in
    column i by t - 1: no quotient of transition probabilities, so clean steps are no special case.
    """
    n, k = table.ndim, kernel.categories
    late, early, once = kernel.matrix_since(t), kernel.matrix_since(t - 1), kernel.matrix(t)
    found = np.empty((k**n, n, k))
    states = np.stack(np.unravel_index(np.arange(k**n), table.shape), axis=1)
    for i in range(n):
        partly = table
        for axis in range(n):
            partly = _along(partly, early if axis == i else late, axis)
        others = np.moveaxis(partly, i, -1)  # (.., j)
        at = tuple(np.delete(states, i, axis=1).T)
        chances = others[at] * once[:, states[:, i]].T
        found[:, i] = chances / chances.sum(axis=1, keepdims=True)
    return found


def noise(table: Floats, matrix: Floats) -> Floats:
    """The distribution after every column went through the (k, k) transition matrix."""
    for axis in range(table.ndim):
        table = _along(table, matrix, axis)
    return table


def _along(table: Floats, matrix: Floats, axis: int) -> Floats:
    return np.moveaxis(np.tensordot(table, matrix, axes=(axis, 0)), -1, axis)


def _joint(chances: Floats) -> Floats:
    """Transition matrix (states, states) of independent columns."""
    joint = np.ones((len(chances), 1))
    for i in range(chances.shape[1]):
        joint = (joint[:, :, None] * chances[:, i][:, None]).reshape(len(chances), -1)
    return joint


def _kl(p: Floats, q: Floats) -> Floats:
    """sum p ln(p / q) over the last two axes: columns and their values."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(p > 0, p * np.log(p / q), 0).sum(axis=(-2, -1)))


def _mean(weights: Floats, values: Floats) -> float:
    """Their mean, where what never happens costs nothing even at an infinite price."""
    return float((weights * np.where(weights > 0, values, 0)).sum())
