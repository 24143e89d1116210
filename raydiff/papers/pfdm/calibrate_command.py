"""How deep must PFDM's noise be? The smallest t0 that keeps to (epsilon, delta), by each accountant.

    raydiff calibrate --clip 15 --epsilon 10
    raydiff calibrate --clip 15 --epsilon 10 --t0 740    # and what that depth spends

Needs no data. sigma = sqrt((1 - abar) / abar) is the noise's standard deviation on the scale of the images.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from raydiff.cli.parser import Parser
from raydiff.formats import rounding as bounds
from raydiff.models.ddpm import alphas_bar
from raydiff.papers.pfdm.depth import depth_for, release_event
from raydiff.privacy.accountants import check_budget, epsilon_of

NAMES = ("theorem", "rdp", "exact")  # from the loosest bound to the tightest


def main(argv: Sequence[str]) -> int:
    """Print the table. Raises ValueError for bad input."""
    given = _parser().parse_args(argv)
    check_budget(given.epsilon, given.delta)
    abar = alphas_bar(given.schedule, given.steps)
    lines = table(abar, clip=given.clip, epsilon=given.epsilon, delta=given.delta, t0=given.t0)
    print(
        f"PFDM at clip {given.clip:g}: epsilon {given.epsilon:g}, delta {given.delta:g} "
        f"(per example, replace-one, local trust); {given.schedule} schedule, T = {given.steps}"
    )
    print("\n".join(lines))
    return 0


def table(abar: Tensor, *, clip: float, epsilon: float, delta: float, t0: int | None) -> list[str]:
    """A heading, a line per accountant with the depth that it asks for, and one for a given depth.

    Raises ValueError where t0 is out of range, or is not given and no accountant finds a depth.
    """
    steps = len(abar) - 1
    if t0 is not None and not 1 <= t0 <= steps:
        raise ValueError(f"t0 must be in 1..{steps}, got {t0}")
    lines = [_line("depth by", "t0", "sigma", *(f"epsilon ({name})" for name in NAMES))]
    failures = []
    for name in NAMES:
        try:
            found = depth_for(epsilon=epsilon, delta=delta, clip=clip, alphas_bar=abar, accountant=name)
            lines.append(_row(name, found, float(abar[found]), clip=clip, delta=delta))
        except ValueError as e:
            failures.append(str(e))
            lines.append(_line(name, "none", *["-"] * (1 + len(NAMES))))
    if t0 is None and len(failures) == len(NAMES):
        raise ValueError(failures[-1])
    return lines if t0 is None else [*lines, _row("given", t0, float(abar[t0]), clip=clip, delta=delta)]


def _row(label: str, t0: int, abar: float, *, clip: float, delta: float) -> str:
    event = release_event(clip, abar)
    sigma = 2 * clip * event.std_over_sensitivity
    spent = (bounds.up(epsilon_of([event], delta, name)) for name in NAMES)
    return _line(label, str(t0), f"{sigma:.2f}", *spent)


def _line(label: str, t0: str, *cells: str) -> str:
    return f"{label:<10}{t0:>6}" + "".join(f"{cell:>19}" for cell in cells)


def _parser() -> Parser:
    parser = Parser("calibrate", __doc__)
    parser.add_argument("--clip", type=float, required=True, help="C: L2 norm of a clipped image (public)")
    parser.add_argument("--epsilon", type=float, default=10.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--schedule", default="linear", help="linear, cosine, sigmoid or scaled_linear")
    parser.add_argument("--steps", type=int, default=1000, help="T")
    parser.add_argument("--t0", type=int, help="also show what this depth spends")
    return parser
