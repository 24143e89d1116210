"""What Renyi divergences come to: an epsilon at the best order, and what no attack surpasses.

Conversion: Canonne, Kamath & Steinke 2020 (arXiv 2004.00010). The divergence of order a of Gaussians is a tau, with
tau = mu^2 / 2 and mu as in `gaussian`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from raydiff.privacy import pld as pairs
from raydiff.privacy.gaussian import check_mu

ORDERS = [1 + n / 10 for n in range(1, 100)] + [float(n) for n in (*range(11, 64), 96, 128, 192, 256, 512)]
"""Renyi orders for Poisson-sampled steps, whose divergence has no closed form in the order."""
ROUNDING = 1e-6
"""More than an epsilon is off by the rounding of its divergence."""


def epsilon_for(mu: float, delta: float) -> float:
    """The epsilon of divergences gamma * tau, tau = mu^2 / 2: the least over gamma > 1 of the converted ones.

    With u = gamma - 1 the derivative is tau - (ln(1/delta) - ln(1 + u)) / u^2, which has one zero: where
    tau u^2 + ln(1 + u) = ln(1/delta).
    """
    from scipy.optimize import brentq

    tau = mu * mu / 2
    if tau == 0 or tau == math.inf:
        return tau
    L = -math.log(delta)
    # It is solved in s = ln u: at the lower end both terms are below L / 2, at the upper end one is above L.
    low = min(math.log(L / 2 / tau) / 2, math.log(math.expm1(L / 2))) - 1
    high = min(math.log(L / tau) / 2, L) + 1
    u = math.exp(brentq(lambda s: tau * math.exp(2 * s) + math.log1p(math.exp(s)) - L, low, high, xtol=1e-12))
    return max(0.0, converted((1 + u) * tau, u, delta))


def epsilon_of_sampled(kinds: Sequence[pairs.Kind], delta: float) -> float:
    """Poisson-sampled Gaussians under add_remove (Mironov, Talwar & Zhang 2019, arXiv 1908.10530).

    So too under zero_out: a sum in which a record counts for nothing is the sum without it, and each record is drawn by
    itself, so that the two distributions are the same ones; the rate, which n decides, stays.
    """

    def divergence(order: float) -> float:
        return sum(k.times * sampled_divergence(k.rate, k.noise, order) for k in kinds)

    unsampled = epsilon_for(math.hypot(*(math.sqrt(k.times) / k.noise for k in kinds)), delta)
    return max(0.0, min(_best_order(divergence, delta), unsampled))  # sampling never hurts


def tpr_ceiling(mu: float, fpr: float) -> float:
    """The largest true positive rate of any membership attack at this false positive rate where only Renyi divergences
    are known (`accountants.renyi_mu`), those of both neighbours from each other.

    By Hoelder's inequality P(A) <= (Q(A) e^D)^((a - 1) / a) of a divergence D <= a tau of order a; at the best order
    that is exp(-(sqrt(ln 1 / Q(A)) - sqrt(tau))^2). It holds of what the attack takes for P, and of all else with P and
    Q exchanged.
    """
    check_mu(mu)
    if mu == math.inf or fpr >= 1:
        return 1.0
    root, unlikely = mu / math.sqrt(2), math.sqrt(-math.log(fpr)) if fpr > 0 else math.inf
    caught = math.exp(-((unlikely - root) ** 2)) if unlikely > root else 1.0
    missed = math.exp(-((root + math.sqrt(-math.log1p(-fpr))) ** 2))
    return min(caught, 1 - missed)


def _best_order(divergence: Callable[[float], float], delta: float) -> float:
    """The least epsilon over ORDERS of divergences that rise with the order, most of which are not asked for.

    Each takes milliseconds. Between two orders none is below that of the lower one: where with that an order's epsilon
    would not be the least, the order is passed over.
    """
    best, waiting = math.inf, [(0, len(ORDERS), 0.0)]
    while waiting:
        first, end, least = waiting.pop()
        orders = ORDERS[first:end]
        if not orders or min(converted(least, order - 1, delta) for order in orders) > best + ROUNDING:
            continue
        middle = (first + end) // 2
        here = divergence(ORDERS[middle])
        best = min(best, converted(here, ORDERS[middle] - 1, delta))
        waiting += [(middle + 1, end, here), (first, middle, least)]
    return best


@functools.lru_cache(maxsize=2**15)
def sampled_divergence(rate: float, noise: float, order: float) -> float:
    """Renyi divergence of one sampled step."""
    from opacus.accountants.analysis.rdp import compute_rdp

    return float(compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=order))


def converted(divergence: float, u: float, delta: float) -> float:
    """Epsilon from a Renyi divergence D of order gamma = 1 + u.

    D + ln(1 - 1/gamma) - (ln delta + ln gamma) / (gamma - 1).
    """
    return divergence + math.log(u / (1 + u)) - (math.log(delta) + math.log1p(u)) / u
