"""How deep must PFDM's noise be? The smallest t0 that satisfies (epsilon, delta), by each accountant.

    raydiff calibrate --clip 15 --epsilon 10
    raydiff calibrate --clip 15 --epsilon 10 --t0 740    # and the epsilon of that depth

Needs no data. sigma = sqrt((1 - abar) / abar) is the noise's standard deviation on the scale of the images.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from raydiff import lookup
from raydiff.cli.options import parse_options
from raydiff.formats import rounding
from raydiff.formats.tables import aligned
from raydiff.models.schedules import SCHEDULES, Timesteps, alphas_bar
from raydiff.papers.pfdm.depth import depth_for, release_event
from raydiff.privacy.accountants import Delta, Epsilon, epsilon_of
from raydiff.settings import Positive

ACCOUNTANTS = ("theorem", "rdp", "exact")  # from the loosest bound to the tightest


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions:
    clip: Positive
    """C: L2 norm of a clipped image (public)."""
    epsilon: Epsilon = 10.0
    """The target epsilon."""
    delta: Delta = 1e-5
    """Its delta."""
    schedule: str = "linear"
    """linear, cosine or scaled_linear."""
    steps: Timesteps = 1000
    """T."""
    t0: int | None = None
    """A depth whose epsilon is shown too."""


def main(argv: Sequence[str]) -> int:
    """Print the table."""
    options = parse_options(CalibrateOptions, argv, __doc__)
    lines = depth_lines(alphas_bar(lookup.resolve("--schedule", SCHEDULES, options.schedule)(), options.steps), options)
    print(
        f"PFDM at clip {options.clip:g}: epsilon {options.epsilon:g}, delta {options.delta:g} "
        f"(per example, replace-one, local trust); {options.schedule} schedule, T = {options.steps}"
    )
    print("\n".join(lines))
    return 0


def depth_lines(abar: Tensor, options: CalibrateOptions) -> list[str]:
    """A line per accountant with the smallest depth that satisfies the budget, and one for --t0.

    Raises ValueError where --t0 is out of range, or is missing and no depth satisfies the budget.
    """
    t0 = options.t0
    budget: dict[str, Any] = {
        "epsilon": options.epsilon,
        "delta": options.delta,
        "clip": options.clip,
    }
    if t0 is not None and not 1 <= t0 < len(abar):
        raise ValueError(f"--t0 must be in 1..{len(abar) - 1}, got {t0}")
    depths: dict[str, int | None] = {}
    for name in ACCOUNTANTS:
        try:
            depths[name] = depth_for(**budget, alphas_bar=abar, accountant=name)
        except ValueError:
            if name == ACCOUNTANTS[-1] and t0 is None:  # the tightest has no depth, so none has
                raise
            depths[name] = None
    rows = [["depth by", "t0", "sigma", *(f"epsilon ({name})" for name in ACCOUNTANTS)]]
    for name, depth in (depths if t0 is None else {**depths, "given": t0}).items():
        if depth is None:
            rows.append([name, "none", *["-"] * (1 + len(ACCOUNTANTS))])
            continue
        event = release_event(options.clip, float(abar[depth]))
        epsilons = (rounding.up(epsilon_of([event], options.delta, a)) for a in ACCOUNTANTS)
        rows.append([name, str(depth), f"{2 * options.clip * event.std_over_sensitivity:.2f}", *epsilons])
    return aligned(rows, words=1)
