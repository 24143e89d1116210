"""The data-independent bound of Theorem E.1 (Wei et al., TMLR 2024, arXiv 2310.15524, Appendix E).

Theorem E.1 as it is read here: n / s^Psi_t is the leak in the worst table in which every value of the record occurs
once more (Eq. 49); its balls hold 1 record, n at radius n - 1 and all s at n, which is what h of Eq. 50 amounts to
with "eta < n - 1" in its first indicator. rho_t is replaced by 1 - 1 / Rbar_{t-1}, which is larger, as in Theorem 1.

The theorem does not hold as it is read: another table can have a larger product of ball and leak, since the leakiest
record has the emptiest balls (tests/papers/discrete/test_limits.py has one). `ceiling` drops the balls, and holds.
"""

import math
from dataclasses import dataclass

import numpy as np

from raydiff.papers.discrete.bound import ReleasedRows
from raydiff.papers.discrete.kernel import Floats, Kernel
from raydiff.papers.discrete.radius import radius


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Theorem E.1 for records whose values all occur in another record of the table too."""

    delta: float  # Theorem E.1
    ceiling: float  # the same with 1 for min(4 N / s, 1)
    leak: Floats  # (steps,) n / s^Psi_t


def limit(others: int, columns: int, release: ReleasedRows) -> Limit:
    """Theorem E.1 for s = `others` further records."""
    s, n, kernel = others, columns, release.kernel
    within = np.array([[min(s, count) for count in [1] * (n - 1) + [n, s]][-n - 1 :]])
    leaks, fractions, rest = [], [], 0.0
    for t in release.steps:
        change = kernel.change(t)
        leak, ball = 0.0, 0
        if change:
            leak = change * n * _worst_log(s, n, kernel, t)
            ball = int(radius(within, np.array([leak]), kernel, t, release.condition, change=change)[0])
            rest += n * (1 - kernel.blur[t - 1]) / s**2
        leaks.append(leak)
        fractions.append(min(4 * within[0, ball] / s, 1))
    return Limit(
        delta=release.price * (float(np.dot(fractions, leaks)) + rest),
        ceiling=release.price * (sum(leaks) + rest),
        leak=np.array(leaks),
    )


def _worst_log(s: int, n: int, kernel: Kernel, t: int) -> float:
    """Eq. 49 without A_t."""
    blur, before = float(kernel.blur[t]), float(kernel.blur[t - 1])
    like = blur ** (n - 1)
    near = blur**n * max(s - n, 0) + like
    return math.log1p(float(kernel.clear[t - 1]) / (like + before**2 * (near + 1))) / (1 + near)
