"""Bound of a one-run audit for any (epsilon, delta)-DP run (Steinke et al., NeurIPS 2023, arXiv 2305.08846)."""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.stats import binom


def p_value(canaries: int, guesses: int, right: int, *, epsilon: float, delta: float) -> float:
    """Largest probability of so many right guesses (Corollary 5.4 and appendix D).

    P(R >= v) + 2 m delta max_i P(v > R >= v - i) / i for R ~ Binomial(r, e^epsilon / (1 + e^epsilon)).
    """
    of_one = 1 / (1 + math.exp(-epsilon))
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, of_one))
    alpha = float((below / np.arange(1, right + 1)).max())
    return min(1.0, float(binom.sf(right - 1, guesses, of_one)) + 2 * canaries * delta * alpha)


def epsilon_low(canaries: int, guesses: int, right: int, *, delta: float, level: float = 0.05) -> float:
    """Largest epsilon that so many right guesses rule out."""
    excess = lambda epsilon: p_value(canaries, guesses, right, epsilon=epsilon, delta=delta) - level  # noqa: E731
    return float(brentq(excess, 0.0, 50.0)) if excess(0.0) < 0 else 0.0
