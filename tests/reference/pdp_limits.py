"""Bounds that need no table: the data-independent Theorem E.1, and the lower bound of Theorems 2 and D.1.

Theorem E.1 as it is read here: n / s^Psi_t is the leak in the worst table in which every value of the record occurs
once more (Eq. 49); its balls hold 1 record, n at radius n - 1 and all s at n, which is what h of Eq. 50 amounts to
with "eta < n - 1" in its first indicator. rho_t is replaced by 1 - 1 / Rbar_{t-1}, which is larger, as in Theorem 1.

The theorem does not hold as it is read: another table can have a larger product of ball and leak, since the leakiest
record has the emptiest balls (tests/papers/discrete/test_limits.py has one). `ceiling` drops the balls, and holds.

Theorem D.1 is about two columns of two values: s - 1 rows (0, 0), two rows (1, 1), one of which is the record.

Reference: Wei et al., TMLR 2024 (arXiv 2310.15524), Appendices D and E.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from raydiff.papers.discrete.bound import ReleasedRows
from raydiff.papers.discrete.kernel import Floats, Ints, Kernel
from raydiff.papers.discrete.radius import radius


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Theorem E.1 for records whose values all occur in another record of the table too."""

    delta: float
    """Theorem E.1."""
    ceiling: float
    """The same with 1 for min(4 N / s, 1)."""
    leak: Floats
    """(steps,) n / s^Psi_t."""
    radius: Ints
    """(steps,)."""


def limit(others: int, columns: int, release: ReleasedRows) -> Limit:
    """Theorem E.1 for s = `others` further records. Raises ValueError for fewer than one, or no column."""
    if others < 1 or columns < 1:
        raise ValueError(f"others and columns must be at least 1, got {others} and {columns}")
    s, n, kernel = others, columns, release.kernel
    within = np.array([[min(s, count) for count in [1] * (n - 1) + [n, s]][-n - 1 :]])
    leaks, balls, shares, rest = [], [], [], 0.0
    for t in release.steps:
        change = kernel.change(t, proved=release.proved)
        leak, ball = 0.0, 0
        if change:
            leak = change * n * _worst_log(s, n, kernel, t)
            ball = int(radius(within, np.array([leak]), kernel, t, release.condition, change=change)[0])
            rest += n * (1 - kernel.blur[t - 1]) / s**2
        leaks.append(leak)
        balls.append(ball)
        shares.append(min(4 * within[0, ball] / s, 1))
    return Limit(
        delta=release.price * (float(np.dot(shares, leaks)) + rest),
        ceiling=release.price * (sum(leaks) + rest),
        leak=np.array(leaks),
        radius=np.array(balls),
    )


def lower(others: int, kernel: Kernel) -> tuple[float, float]:
    """Theorem D.1: (epsilon, delta) such that no smaller delta holds for its table at T_rl = 0, m = 1, as printed.

    Read with Rbar_1 and G_1 = Rbar_1^2 / s. Raises ValueError unless k = 2 and every step but the last keeps some noise
    and some signal.
    """
    if kernel.categories != 2:
        raise ValueError(f"the lower bound is for 2 categories, got {kernel.categories}")
    if kernel.alpha[1] == 1:
        raise ValueError("the lower bound needs noise in the first step, got alpha_1 = 1")
    same, other, total, factor = kernel.same_since, kernel.other_since, 0.0, 1.0
    deltas = []
    for t in range(1, kernel.steps + 1):
        stays = kernel.same[t] * same[t - 1] / same[t]  # C_1
        strays = kernel.other[t] * other[t - 1] / same[t]  # C_2
        kept = kernel.same[t] * other[t - 1] / other[t]  # tilde C_1
        turned = kernel.other[t] * same[t - 1] / other[t]  # tilde C_2
        deltas.append((strays + kept + 2 * kept * strays) / 4)
        if t < kernel.steps:
            gain = kernel.blur[1] ** -2 / others if t == 1 else 2 * (turned - strays) * kernel.blur[t] ** 2
            total += factor * gain
            factor *= stays * (stays - kept)
    epsilon = math.log1p(total / (2 * (1 + min(deltas) / kernel.blur[1] ** 2)))
    return float(epsilon), float(total / others)


def _worst_log(s: int, n: int, kernel: Kernel, t: int) -> float:
    """Eq. 49 without A_t."""
    blur, before = float(kernel.blur[t]), float(kernel.blur[t - 1])
    like = blur ** (n - 1)
    near = blur**n * max(s - n, 0) + like
    return math.log1p(float(kernel.clear[t - 1]) / (like + before**2 * (near + 1))) / (1 + near)
