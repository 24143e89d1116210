"""Exact effect of one record on the rows of perfectly trained models, by enumeration of all k^n states.

A perfectly trained denoiser has p(v_0^i | v_t) of its table; generation draws the columns of v_{t-1} independently
given v_t, so that the uniform distribution times T matrices (k^n, k^n) is that of generated rows. With and without the
record,

    delta (exact)  <=  output (Lemma A.1)  <=  path (Lemma A.2),

from the symmetric KL divergences of the outputs and of the chains. `forward` has the steps' divergences under the
noised table q (Lemma A.3); it bounds `path` up to the error term of Assumption 2, which is not zero, since columns are
drawn independently. Theorem 1 bounds `forward`.

The exact delta is that of one released row (m = 1); the bounds are those of m rows.

Reference: Wei et al., TMLR 2024 (arXiv 2310.15524), Eq. 4, Appendix A.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from raydiff.papers.discrete.bound import ReleasedRows
from raydiff.papers.discrete.kernel import Floats, Ints, Kernel

STATES = 4096  # k^n up to which the chain is enumerated


@dataclass(frozen=True, kw_only=True)
class Exact:
    """What one record changes, as deltas at the release's epsilon."""

    delta: float
    """The smallest delta for which one released row is (epsilon, delta)-pDP."""
    output: float
    """KL bound of the output distributions."""
    path: float
    """KL bound of the chains."""
    forward: float
    """The same as `path`, under the noised table's distribution."""
    gaps: Floats
    """(steps,) TV(q(v_t), p(v_t)) of Assumption 2, the larger of both models'."""


def exact(table: Ints, record: int, release: ReleasedRows, weights: Ints | None = None) -> Exact:
    """Effect of removing one copy of row `record` of a (rows, n) table; `weights` (rows,) counts equal rows.

    Raises ValueError for too many states.
    """
    tables = neighbours(table, record, release.kernel, weights)
    return compare(tables, release, lambda t: [column_chances(counts, release.kernel, t) for counts in tables])


def compare(tables: Sequence[Floats], release: ReleasedRows, steps: Callable[[int], Sequence[Floats]]) -> Exact:
    """Compare two models whose reverse steps are `steps`: t -> p(v_{t-1}^i = j | v_t) of each, (states, n, k).

    tables: With the record and without, as `neighbours` gives them.
    """
    chains = [np.full(tables[0].size, 1 / tables[0].size) for _ in tables]
    path = 0.0
    forward = 0.0
    gaps = []
    for t in reversed(release.steps):
        columns = steps(t)
        noised = [noise(counts, matrix_since(release.kernel, t)).reshape(-1) for counts in tables]
        gaps.append(max(float(np.abs(p - q).sum() / 2) for q, p in zip(noised, chains, strict=True)))
        path += divergence(chains, columns)
        forward += divergence(noised, columns)
        chains = [p @ joint(chances) for p, chances in zip(chains, columns, strict=True)]
    p, q = chains
    with np.errstate(divide="ignore", invalid="ignore"):
        output = float(np.where(p == q, 0, (p - q) * np.log(p / q)).sum())
    return Exact(
        delta=max(hockey_stick(p, q, release.epsilon), hockey_stick(q, p, release.epsilon)),
        output=release.price * output,
        path=release.price * path,
        forward=release.price * forward,
        gaps=np.array(gaps[::-1]),
    )


def neighbours(table: Ints, record: int, kernel: Kernel, weights: Ints | None = None) -> list[Floats]:
    """The (rows, n) table with one copy of the record and without it, as distributions (k, .., k).

    `weights` (rows,) counts equal rows. Raises ValueError for more than STATES states.
    """
    n = table.shape[1]
    if kernel.categories**n > STATES:
        raise ValueError(f"{kernel.categories}^{n} states are too many to enumerate, at most {STATES}")
    with_it = np.zeros((kernel.categories,) * n)
    np.add.at(with_it, tuple(table.T), np.ones(len(table), dtype=np.int64) if weights is None else weights)
    without = with_it.copy()
    without[tuple(table[record])] -= 1
    return [with_it / with_it.sum(), without / without.sum()]


def matrix(kernel: Kernel, t: int) -> Floats:
    """Q_t, (k, k): rows are values before step t."""
    return _matrix(float(kernel.alpha[t]), kernel.categories)


def matrix_since(kernel: Kernel, t: int) -> Floats:
    """Qbar_t, (k, k): rows are clean values."""
    return _matrix(float(kernel.abar[t]), kernel.categories)


def _matrix(kept: float, k: int) -> Floats:
    return kept * np.eye(k) + (1 - kept) / k


def states(columns: int, categories: int) -> Ints:
    """All rows, (k^n, n), the last column's value changing first."""
    return np.stack(np.unravel_index(np.arange(categories**columns), (categories,) * columns), axis=1)


def column_chances(table: Floats, kernel: Kernel, t: int) -> Floats:
    """p(v_{t-1}^i = j | v_t) of the perfectly trained model, (states, n, k); table is a distribution (k, .., k).

    By Bayes, Q_t[j, v_t^i] times the mass of the clean rows that agree with v_t in the other columns and become j in
    column i by t - 1: no quotient of transition probabilities, so clean steps are no special case.
    """
    return _chances(table, matrix_since(kernel, t - 1), matrix(kernel, t), matrix_since(kernel, t))


def clean_chances(table: Floats, kernel: Kernel, t: int) -> Floats:
    """q(v_0^i = j | v_t): what the perfectly trained model predicts, (states, n, k)."""
    return _chances(table, matrix_since(kernel, 0), matrix_since(kernel, t), matrix_since(kernel, t))


def _chances(table: Floats, early: Floats, once: Floats, late: Floats) -> Floats:
    n = table.ndim
    k = len(late)
    result = np.empty((k**n, n, k))
    rows = states(n, k)
    for i in range(n):
        partly = table
        for axis in range(n):
            partly = _along(partly, early if axis == i else late, axis)
        others = np.moveaxis(partly, i, -1)  # (.., j)
        at = tuple(np.delete(rows, i, axis=1).T)
        chances = others[at] * once[:, rows[:, i]].T
        result[:, i] = chances / chances.sum(axis=1, keepdims=True)
    return result


def noise(table: Floats, matrix: Floats) -> Floats:
    """The distribution after every column went through the (k, k) transition matrix."""
    for axis in range(table.ndim):
        table = _along(table, matrix, axis)
    return table


def divergence(where: Sequence[Floats], columns: Sequence[Floats]) -> float:
    """Symmetric KL divergence of one step of two models, whose columns are (states, n, k): sum over both of

    E_{v_t ~ where[l]} KL(columns[l] || columns[1 - l]). What never happens costs nothing even at an infinite price.
    """
    steps = (kl(columns[0], columns[1]).sum(axis=-1), kl(columns[1], columns[0]).sum(axis=-1))
    return sum(float((p * np.where(p > 0, step, 0)).sum()) for p, step in zip(where, steps, strict=True))


def kl(p: Floats, q: Floats) -> Floats:
    """sum p ln(p / q) over the last axis."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(p > 0, p * np.log(p / q), 0).sum(axis=-1))


def _along(table: Floats, matrix: Floats, axis: int) -> Floats:
    return np.moveaxis(np.tensordot(table, matrix, axes=(axis, 0)), -1, axis)


def joint(chances: Floats) -> Floats:
    """Transition matrix (states, states) of independent columns."""
    joint = np.ones((len(chances), 1))
    for i in range(chances.shape[1]):
        joint = (joint[:, :, None] * chances[:, i][:, None]).reshape(len(chances), -1)
    return joint


def hockey_stick(p: Floats, q: Floats, epsilon: float) -> float:
    """sum (p - e^epsilon q)_+."""
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())
