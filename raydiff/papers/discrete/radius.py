"""The radius (1 + c_t) eta_t of the ball around a record, for all records together.

Conditions (names of `Condition`):

- theorem: Eq. 9 as printed, with mubar- in the second fraction.
- relaxed: Eq. 27 for eta and Algorithm 2 for c. Eq. 27 is read with A_t (1 - 1 / Rbar_{t-1}^2) for its phi_t (as in
  the proof, Eq. 168), with Rbar_t for R_t, and "-2" outside the bracket. Where no c of Algorithm 2's first branch
  holds, c = 1 does, by the branch's own condition.

Where the paper is silent: no empty ball; eta = n where n (1 - mubar+_t) >= 1 (theorem) or Rbar_t = 1, and
c = (n - eta) / eta where ln(1 / mubar-_t) <= 1.

Reference: Wei et al., TMLR 2024 (arXiv 2310.15524), Theorem 1, Algorithm 2, Appendix B.
"""

import math

import numpy as np
from numpy.typing import NDArray

from raydiff.evaluation.evaluation_settings import Condition
from raydiff.papers.discrete.kernel import Floats, Ints, Kernel


def radius(within: Ints, leak: Floats, kernel: Kernel, t: int, condition: Condition, *, change: float) -> Ints:
    """The radius of each record at step t, (u,).

    within: N_eta, the other records at distance <= eta, (u, n + 1). leak: n / s^psi_t, (u,). change: A_t.
    """
    u = within.shape[0]
    n = within.shape[1] - 1
    radii = np.full(u, n)
    if kernel.abar[t] == 0 or (condition == "theorem" and n * (1 - kernel.same_since[t]) >= 1):
        return radii
    with np.errstate(divide="ignore"):  # ln theta(eta) = ln((s - N_eta) / N_eta): inf for an empty ball
        odds = np.log(within[:, -1:] - within) - np.log(within)
    from scipy.stats import binom  # a second of every start that has no table to audit

    tail = np.append(binom.sf(np.arange(-1, n), n, 1 - kernel.same_since[t]), 0.0)  # kappa or more columns differ
    open_ = np.arange(u)
    for eta in range(1, n):
        with np.errstate(divide="ignore"):
            spread = np.log(change * n) - np.log(leak[open_])  # ln(A_t s^psi_t)
        if condition == "theorem":
            reach = eta + _margin(odds[open_], eta, kernel, t)
            fits = _theorem_fits(odds[open_], spread, eta, kernel, t)
        else:
            reach = eta + _algorithm_2(odds[open_], eta, kernel, t)
            fits = _relaxed_fits(within[open_], spread, tail, eta, reach, kernel, t)
        radii[open_[fits]] = reach[fits]
        open_ = open_[~fits]
        if not len(open_):
            break
    return radii


def _theorem_fits(odds: Floats, spread: Floats, eta: int, kernel: Kernel, t: int) -> NDArray[np.bool_]:
    n = odds.shape[1] - 1
    first = odds[:, eta] / -math.log(n * (1 - kernel.same_since[t]))
    with np.errstate(invalid="ignore"):  # An empty ball beside an infinite leak does not fit.
        second = (odds[:, eta] + spread) / (2 * kernel.log_ratio[t]) - 2
    return np.asarray(eta >= first + np.maximum(second, 0))


def _margin(odds: Floats, eta: int, kernel: Kernel, t: int) -> Ints:
    """c eta of Eq. 9: the smallest j with j ln(1 / (e mubar-)) >= ln theta(eta + j) + 3/2 eta."""
    n = odds.shape[1] - 1
    scale = -math.log(kernel.other_since[t]) - 1
    if scale <= 0:
        return np.full(len(odds), n - eta)
    j = np.arange(n - eta + 1)
    return np.asarray(np.argmax(j * scale >= odds[:, eta:] + 1.5 * eta, axis=1))


def _relaxed_fits(
    within: Ints, spread: Floats, tail: Floats, eta: int, reach: Ints, kernel: Kernel, t: int
) -> NDArray[np.bool_]:
    inside = np.take_along_axis(within, reach[:, None], axis=1)[:, 0]
    outside = within[:, -1] - within[:, eta]
    kappa = np.argmax(tail * outside[:, None] <= inside[:, None], axis=1)
    with np.errstate(divide="ignore"):
        odds = np.log(outside) - np.log(inside)
    growth = math.log(kernel.clear[t - 1])
    second = np.maximum((odds + spread + growth) / (2 * kernel.log_ratio[t]), 0)
    return np.asarray((inside > 0) & ((outside == 0) | (eta >= kappa + second - 2)))


def _algorithm_2(odds: Floats, eta: int, kernel: Kernel, t: int) -> Ints:
    """c eta of Algorithm 2."""
    n = odds.shape[1] - 1
    rare = -math.log(kernel.other_since[t])
    twice = odds[:, min(2 * eta, n)]
    near = np.arange(min(eta, n - eta + 1))
    holds = near * rare >= odds[:, eta + near] + eta * (1 + math.log(2))
    first = np.where(holds.any(axis=1), np.argmax(holds, axis=1), min(eta, n - eta))
    if 2 * eta >= n:
        return np.asarray(first)
    if rare <= 1:
        second = np.full(len(odds), n - eta)
    else:
        far = np.arange(eta, n - eta + 1)
        second = eta + np.argmax(far * (rare - 1) >= odds[:, eta + far], axis=1)
    return np.asarray(np.where(-twice > eta * (1 + math.log(2) - rare), first, second))
