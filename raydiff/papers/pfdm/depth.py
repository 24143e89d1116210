"""How deep PFDM's noise must be: its upload as a Gaussian, and the smallest depth within a budget."""

import bisect
import itertools
import math

from torch import Tensor

from raydiff.formats import rounding as bounds
from raydiff.privacy.accountants import check_budget, epsilon_of
from raydiff.privacy.release import Gaussian


def release_event(clip: float, abar: float) -> Gaussian:
    """PFDM's upload at a depth with that abar: sqrt(abar) CLIP(x, clip) + sqrt(1 - abar) z, per record."""
    if not (clip > 0 and math.isfinite(clip)):
        raise ValueError(f"clip must be finite and > 0, got {clip}")
    if not 0 <= abar <= 1:
        raise ValueError(f"abar must be in [0, 1], got {abar}")
    sensitivity = 2 * clip * math.sqrt(abar)
    ratio = math.sqrt(1 - abar) / sensitivity if sensitivity > 0 else math.inf
    return Gaussian(ratio, "example", "replace_one", "local")


def depth_for(
    *, epsilon: float, delta: float, clip: float, alphas_bar: Tensor, accountant: str, t0: int | None = None
) -> int:
    """`t0`, or by default the smallest one in 1..T at which PFDM's upload is (epsilon, delta)-DP by `accountant`.

    `alphas_bar` is (T + 1,) with abar_0 = 1. Raises ValueError when no depth, or not `t0`, keeps to the budget, and
    for an invalid budget, clip or schedule.
    """
    check_budget(epsilon, delta)
    abar = alphas_bar.double().tolist()
    falling = all(later <= earlier for earlier, later in itertools.pairwise(abar))
    if len(abar) < 2 or abar[0] != 1 or not falling or abar[-1] < 0:
        raise ValueError("alphas_bar must start at 1 and fall within [0, 1], with at least two entries")

    def epsilon_at(t: int) -> float:
        return epsilon_of([release_event(clip, abar[t])], delta, accountant)

    # Epsilon falls with abar, so bisection finds the first depth that keeps to the budget.
    least = 1 + bisect.bisect_left(range(1, len(abar)), True, key=lambda t: epsilon_at(t) <= epsilon)
    budget = f"at clip {clip:g}, delta {delta:g} ({accountant} accountant)"
    if least == len(abar):
        reached = bounds.up(epsilon_at(least - 1), 3)
        raise ValueError(
            f"no depth reaches epsilon {epsilon:g} {budget}: the smallest reachable with this schedule is {reached}"
        )
    if t0 is not None and t0 < least:
        raise ValueError(f"t0 = {t0} spends more than epsilon = {epsilon:g} {budget}: it must be at least {least}")
    return t0 or least
