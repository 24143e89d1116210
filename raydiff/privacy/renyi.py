"""Renyi DP: conversion to epsilon at the best order, and ceilings on attacks.

Conversion: Canonne, Kamath & Steinke 2020 (arXiv 2004.00010). The divergence of order a of Gaussians is a tau, with
tau = mu^2 / 2 and mu as in `gaussian`.
"""

import functools
import math
from collections.abc import Sequence

from raydiff.privacy.pld import Steps

ORDERS = [1 + n / 10 for n in range(1, 100)] + [float(n) for n in (*range(11, 64), 96, 128, 192, 256, 512)]
"""Renyi orders for Poisson-sampled steps, whose divergence has no closed form in the order."""


def renyi_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon over gamma > 1 that divergences gamma tau, tau = mu^2 / 2, convert to.

    With u = gamma - 1 the derivative has one zero, where tau u^2 + ln(1 + u) = ln(1/delta).
    """
    from scipy.optimize import brentq

    tau = mu * mu / 2
    if tau == 0 or tau == math.inf:
        return tau
    L = -math.log(delta)
    # Solved in s = ln u: at the lower end both terms are below L / 2, at the upper end one is above L.
    low = min(math.log(L / 2 / tau) / 2, math.log(math.expm1(L / 2))) - 1
    high = min(math.log(L / tau) / 2, L) + 1
    u = math.exp(brentq(lambda s: tau * math.exp(2 * s) + math.log1p(math.exp(s)) - L, low, high, xtol=1e-12))
    return max(0.0, convert_to_epsilon((1 + u) * tau, u, delta))


def epsilon_of_sampled(steps: Sequence[Steps], delta: float) -> float:
    """Return epsilon of Poisson-sampled Gaussians under add_remove (Mironov, Talwar & Zhang 2019, arXiv 1908.10530).

    The same holds under zero_out: a sum in which a record counts for nothing is the sum without it, each record is
    drawn independently, and the rate is fixed by the public n.
    """
    totals = [sum(k.times * sampled_divergences(k.rate, k.noise)[i] for k in steps) for i in range(len(ORDERS))]
    best = min(convert_to_epsilon(total, order - 1, delta) for order, total in zip(ORDERS, totals, strict=True))
    unsampled = renyi_epsilon(math.hypot(*(math.sqrt(k.times) / k.noise for k in steps)), delta)
    return max(0.0, min(best, unsampled))  # sampling never hurts


def renyi_tpr_ceiling(mu: float, fpr: float) -> float:
    """Return a bound of any attack's true positive rate at this false positive rate.

    Where Renyi divergences D <= a tau hold in both directions, P(A) <= (Q(A) e^D)^((a - 1) / a) by Hoelder's
    inequality; at the best order that is exp(-(sqrt(ln 1 / Q(A)) - sqrt(tau))^2). It holds for the set that the attack
    takes for P, and for its complement with P and Q exchanged.
    """
    if mu == math.inf or fpr >= 1:
        return 1.0
    root = mu / math.sqrt(2)
    unlikely = math.sqrt(-math.log(fpr)) if fpr > 0 else math.inf
    caught = math.exp(-((unlikely - root) ** 2)) if unlikely > root else 1.0
    missed = math.exp(-((root + math.sqrt(-math.log1p(-fpr))) ** 2))
    return min(caught, 1 - missed)


@functools.lru_cache(maxsize=2**12)
def sampled_divergences(rate: float, noise: float) -> tuple[float, ...]:
    """Return the Renyi divergence of one sampled step at each of ORDERS."""
    from opacus.accountants.analysis.rdp import compute_rdp

    return tuple(compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=ORDERS).tolist())


def convert_to_epsilon(divergence: float, u: float, delta: float) -> float:
    """Return epsilon from a Renyi divergence of order gamma = 1 + u: D + ln(u/gamma) - ln(delta gamma) / u."""
    return divergence + math.log(u / (1 + u)) - (math.log(delta) + math.log1p(u)) / u
