"""How deep PFDM's noise must be: its upload as a Gaussian, and the smallest depth within a budget."""

import bisect
import math

from torch import Tensor

from raydiff.formats import rounding as bounds
from raydiff.privacy.accountants import epsilon_of
from raydiff.privacy.release import Gaussian


def release_event(clip: float, abar: float) -> Gaussian:
    """PFDM's upload at a depth with that abar: sqrt(abar) CLIP(x, clip) + sqrt(1 - abar) z, per record."""
    sensitivity = 2 * clip * math.sqrt(abar)
    ratio = math.sqrt(1 - abar) / sensitivity if sensitivity > 0 else math.inf
    return Gaussian(ratio, "example", "replace_one", "local")


def depth_for(
    *, epsilon: float, delta: float, clip: float, alphas_bar: Tensor, accountant: str, t0: int | None = None
) -> int:
    """`t0`, or by default the smallest one in 1..T at which PFDM's upload is (epsilon, delta)-DP by `accountant`.

    `alphas_bar` is (T + 1,) with abar_0 = 1, and falls. Raises ValueError when no depth, or not `t0`, keeps to the
    budget.
    """
    abar = alphas_bar.double().tolist()

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
