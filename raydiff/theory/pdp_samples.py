"""delta of m independent samples of a distribution p against m of q, on a finite space.

A pair of distributions is a list of atoms (p_i, q_i), one for each outcome, (2, atoms). The pair of m samples has an
atom for each product of m atoms; what has the same loss ln(p / q) is one atom. That is exact, up to float rounding,
as long as a factor of a product has at most ATOMS atoms. Beyond, both of these take its place, bin by bin of the loss:

- below: the bin's atoms become one, (sum p, sum q). This is post-processing, so no delta grows.
- above: their sum is split between the two ends of the bin, and p and q keep their sums (Doroshenko et al., PoPETs
  2022, arXiv 2207.04380). Post-processing undoes it, so no delta shrinks.

Either holds for both directions and for products of such pairs.
"""

from __future__ import annotations

import math

import numpy as np

from raydiff.privacy.pdp.kernel import Floats

ATOMS = 512  # of a factor; a product has their square
TIE = 1e-12  # losses closer than this are one
TAIL = 1e-12  # mass at either end of the losses that may share a bin


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
