"""mu-Gaussian DP (Dong, Roth & Su 2019, arXiv 1905.02383): epsilon, and ceilings on attacks.

mu is sensitivity / standard deviation of one Gaussian release, and the root of the sum of squares of several.
"""

import math
from typing import Any


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon of mu-Gaussian DP at delta (Balle & Wang 2018, arXiv 1805.06530, Theorem 8).

    Solves delta(epsilon) = delta, where delta(epsilon) = Phi(a) - e^epsilon Phi(b) with a = mu/2 - epsilon/mu and b =
    a - mu; in a, in which it rises, and stays below Phi(a): hence the lower end of the bracket.
    """
    from scipy.optimize import brentq
    from scipy.special import ndtri

    if mu == math.inf or math.erf(mu / math.sqrt(8)) <= delta:  # erf(mu / sqrt 8) = delta(0)
        return mu if mu == math.inf else 0.0
    target = math.log(delta)
    low = float(ndtri(delta)) - 1e-6  # the margin is for rounding
    high = min(mu / 2, 40.0)  # epsilon = 0, or Phi(40) = 1 in float64
    a = brentq(lambda a: _log_delta(a, mu) - target, low, high, xtol=1e-14, maxiter=1000)
    return mu * max(0.0, mu / 2 - float(a))


def gaussian_auc_ceiling(mu: float) -> float:
    """Return the largest ROC AUC of any membership attack under mu-Gaussian DP, Phi(mu / sqrt 2)."""
    return math.erfc(-mu / 2) / 2


def gaussian_tpr_ceiling(mu: float, fpr: float) -> float:
    """Return the largest true positive rate of any such attack at this false positive rate: Phi(mu + Phi^-1(fpr))."""
    from scipy.special import ndtr, ndtri

    return 1.0 if mu == math.inf else float(ndtr(mu + ndtri(fpr)))


def fpr_floor(mu: float, tpr: float) -> float:
    """Return the smallest false positive rate of any such attack at this true positive rate."""
    from scipy.special import ndtr, ndtri

    return 0.0 if mu == math.inf else float(ndtr(ndtri(min(1.0, tpr)) - mu))


def _log_delta(a: float, mu: float) -> float:
    """ln(Phi(a) - e^epsilon Phi(b)) at b = a - mu and epsilon = mu (mu/2 - a).

    e^epsilon = phi(a) / phi(b), so it is phi(a) (M(a) - M(b)) with M = Phi/phi, where nothing overflows.
    """
    from scipy.integrate import fixed_quad
    from scipy.special import erfcx, ndtr

    def mills(x: Any) -> Any:
        return math.sqrt(math.pi / 2) * erfcx(-x / math.sqrt(2))

    log_phi = -a * a / 2 - math.log(2 * math.pi) / 2
    if mu < 1:  # M(a) and M(b) are close: integrate M'(x) = 1 + x M(x) between them instead
        mean_slope, _ = fixed_quad(lambda s: 1 + (a - mu * s) * mills(a - mu * s), 0.0, 1.0, n=16)
        gap = mu * mean_slope
    elif a <= 0:
        gap = mills(a) - mills(a - mu)
    else:  # M(a) would overflow
        return math.log(float(ndtr(a)) - math.exp(log_phi) * mills(a - mu))
    return log_phi + math.log(gap)
