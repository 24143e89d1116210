"""Exact effect of one record on the rows of perfectly trained models, by enumeration of all k^n states.

A perfectly trained denoiser has p(v_0^i | v_t) of its table; generation draws the columns of v_{t-1} independently
given v_t, so that the uniform distribution times T matrices (k^n, k^n) is that of generated rows. With and without the
record,

    delta (exact)  <=  output (Lemma A.1)  <=  path (Lemma A.2),

from the symmetric KL divergences of the outputs and of the chains. `forward` has the steps' divergences under the
noised table q (Lemma A.3); it bounds `path` up to the error term of Assumption 2, which is not zero, since columns are
drawn independently. Theorem 1 bounds `forward`.

For m independent samples (`deltas`) a pair of distributions is a list of atoms (p_i, q_i), (2, atoms), and a product
merges atoms of the same loss ln(p / q): exact up to rounding for factors of at most ATOMS atoms. Beyond, by bins of the
loss,

- below: a bin's atoms become one, (sum p, sum q): post-processing, so no delta grows.
- above: their sum is split between the ends of the bin (Doroshenko et al., PoPETs 2022, arXiv 2207.04380):
  post-processing undoes it, so no delta shrinks.

Reference: Wei et al., TMLR 2024 (arXiv 2310.15524), Eq. 4, Appendix A.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raydiff.papers.discrete.bound import ReleasedRows
from raydiff.papers.discrete.kernel import Floats, Ints, Kernel

STATES = 4096  # k^n up to which the chain is enumerated
ATOMS = 512  # of a factor; a product has their square
TIE = 1e-12  # losses closer than this are one
TAIL = 1e-12  # mass at either end of the losses that may share a bin


@dataclass(frozen=True, kw_only=True)
class Exact:
    """What one record changes; all are deltas at the release's epsilon, for its number of samples."""

    delta: float
    """The smallest delta for which (epsilon, delta)-pDP holds; an upper bound on it where `least` is smaller."""
    least: float
    """A lower bound on it."""
    output: float
    """KL bound of the output distributions."""
    path: float
    """KL bound of the chains."""
    forward: float
    """The same as `path`, under the noised table's distribution."""
    gap: float
    """max_t TV(q(v_t), p(v_t)) of Assumption 2, over both models."""


def exact(table: Ints, record: int, release: ReleasedRows, weights: Ints | None = None) -> Exact:
    """Effect of removing one copy of row `record` of a (rows, n) table; `weights` (rows,) counts equal rows.

    Raises ValueError for too many states.
    """
    kernel = release.kernel
    tables = neighbours(table, record, kernel, weights)
    chains = [np.full(tables[0].size, 1 / tables[0].size) for _ in tables]
    path = forward = gap = 0.0
    for t in reversed(release.steps):
        columns = [column_chances(counts, kernel, t) for counts in tables]
        noised = [noise(counts, kernel.matrix_since(t)).reshape(-1) for counts in tables]
        gap = max(gap, *(variation(q, p) for q, p in zip(noised, chains, strict=True)))
        path += divergence(chains, columns)
        forward += divergence(noised, columns)
        chains = [p @ joint(chances) for p, chances in zip(chains, columns, strict=True)]
    p, q = chains
    with np.errstate(divide="ignore", invalid="ignore"):
        output = float(np.where(p == q, 0, (p - q) * np.log(p / q)).sum())
    least, delta = deltas(p, q, release.epsilon, release.samples)
    return Exact(
        delta=delta,
        least=least,
        output=release.price * output,
        path=release.price * path,
        forward=release.price * forward,
        gap=gap,
    )


def neighbours(table: Ints, record: int, kernel: Kernel, weights: Ints | None = None) -> list[Floats]:
    """The (rows, n) table with one copy of the record and without, as distributions (k, .., k).

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


def states(columns: int, categories: int) -> Ints:
    """All rows, (k^n, n), the last column's value changing first."""
    return np.stack(np.unravel_index(np.arange(categories**columns), (categories,) * columns), axis=1)


def column_chances(table: Floats, kernel: Kernel, t: int) -> Floats:
    """p(v_{t-1}^i = j | v_t) of the perfectly trained model, (states, n, k); table is a distribution (k, .., k).

    By Bayes, Q_t[j, v_t^i] times the mass of the clean rows that agree with v_t in the other columns and become j in
    column i by t - 1: no quotient of transition probabilities, so clean steps are no special case.
    """
    return _chances(table, kernel.matrix_since(t - 1), kernel.matrix(t), kernel.matrix_since(t))


def clean_chances(table: Floats, kernel: Kernel, t: int) -> Floats:
    """q(v_0^i = j | v_t): what the perfectly trained model predicts, (states, n, k)."""
    return _chances(table, kernel.matrix_since(0), kernel.matrix_since(t), kernel.matrix_since(t))


def _chances(table: Floats, early: Floats, once: Floats, late: Floats) -> Floats:
    n, k = table.ndim, len(late)
    found = np.empty((k**n, n, k))
    rows = states(n, k)
    for i in range(n):
        partly = table
        for axis in range(n):
            partly = _along(partly, early if axis == i else late, axis)
        others = np.moveaxis(partly, i, -1)  # (.., j)
        at = tuple(np.delete(rows, i, axis=1).T)
        chances = others[at] * once[:, rows[:, i]].T
        found[:, i] = chances / chances.sum(axis=1, keepdims=True)
    return found


def noise(table: Floats, matrix: Floats) -> Floats:
    """The distribution after every column went through the (k, k) transition matrix."""
    for axis in range(table.ndim):
        table = _along(table, matrix, axis)
    return table


def variation(p: Floats, q: Floats) -> float:
    """Total variation distance: half of sum |p - q|."""
    return float(np.abs(p - q).sum() / 2)


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


# --- delta of m independent samples ---


def hockey_stick(p: Floats, q: Floats, epsilon: float) -> float:
    """sum (p - e^epsilon q)_+."""
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def deltas(p: Floats, q: Floats, epsilon: float, samples: int) -> tuple[float, float]:
    """What the larger of both directions' deltas at epsilon is at least and at most, for m = `samples`.

    p and q are (states,) probabilities. The two numbers are equal where the products could be enumerated.
    """
    below, above = (_power(np.stack([p, q]), samples, apart) for apart in (False, True))
    least, most = (max(hockey_stick(a, b, epsilon), hockey_stick(b, a, epsilon)) for a, b in (below, above))
    return least, most


def _power(pair: Floats, samples: int, apart: bool) -> Floats:
    """By repeated squaring."""
    power = None
    while True:
        if samples & 1:
            power = pair if power is None else _product(power, pair, apart)
        samples >>= 1
        if not samples:
            assert power is not None
            return power
        pair = _product(pair, pair, apart)


def _product(one: Floats, other: Floats, apart: bool) -> Floats:
    one, other = _fewer(one, apart), _fewer(other, apart)
    return (one[:, :, None] * other[:, None, :]).reshape(2, -1)


def _fewer(pair: Floats, apart: bool) -> Floats:
    """The atoms in the order of their loss: one for each loss, or else bins that are as wide as each other."""
    pair = pair[:, pair.any(axis=0)]
    with np.errstate(divide="ignore"):
        loss = np.log(pair[0]) - np.log(pair[1])
    order = np.argsort(loss)
    pair, loss = pair[:, order], loss[order]
    with np.errstate(invalid="ignore"):  # inf - inf is a tie
        first = np.flatnonzero(np.concatenate([[True], np.diff(loss) > TIE]))
    pair, loss = np.add.reduceat(pair, first, axis=1), loss[first]
    if len(loss) <= ATOMS:
        return pair
    edges = _edges(pair, loss)
    bins = np.searchsorted(edges, loss, side="right")
    sums = np.zeros((2, len(edges) + 1))
    for row, mass in zip(sums, pair, strict=True):
        np.add.at(row, bins, mass)
    return _split(sums, edges) if apart else sums


def _edges(pair: Floats, loss: Floats) -> Floats:
    """Of bins for -inf, the lower tail, everything between, the upper tail and inf."""
    finite = np.isfinite(loss)
    mass, loss = pair.sum(axis=0)[finite], loss[finite]
    low = loss[np.searchsorted(np.cumsum(mass), TAIL)]
    high = loss[::-1][np.searchsorted(np.cumsum(mass[::-1]), TAIL)]
    return np.concatenate([[-np.finfo(np.float64).max], np.linspace(low, high, ATOMS - 3), [np.inf]])


def _split(sums: Floats, edges: Floats) -> Floats:
    """Atoms at the edges: those of 0, e^edge and infinity for p / q, with the same total of p and q in each bin."""
    p, q = sums[:, 1:-1]
    low, high = np.exp(edges[:-1]), np.exp(edges[1:])
    with np.errstate(invalid="ignore"):
        q_low = np.clip(np.where(np.isinf(high), q, (high * q - p) / (high - low)), 0, q)
    p_low = np.minimum(low * q_low, p)
    atoms = np.zeros((2, len(edges)))
    atoms[:, :-1] = p_low, q_low
    atoms[:, 1:] += p - p_low, q - q_low
    atoms[:, 0] += sums[:, 0]
    atoms[:, -1] += sums[:, -1]
    return atoms
