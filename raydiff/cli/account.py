"""Epsilon of a Gaussian mechanism that ran elsewhere (Opacus, Flower): all its steps and rounds together.

    raydiff account --noise 1.1 --q 0.01 --steps 1000                          # DP-SGD of Opacus
    raydiff account --noise 0.48 --rounds 50 --unit client --trust local       # LocalDpMod of Flower

Flower's LocalDpMod adds noise of multiplier sensitivity * sqrt(2 ln(1.25 / delta)) / (epsilon * clipping_norm) in every
round. Sampling is Poisson sampling; it does not count for clients under local trust, since the server sees who sends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from raydiff.cli.options import parse
from raydiff.formats.rounding import up
from raydiff.privacy import accountants
from raydiff.privacy.ledger import Entry, Exposed, Ledger
from raydiff.privacy.release import Gaussian, Relation, Unit

FPR = 0.01
SAMPLED = """holds for Poisson batches whose noised sum is divided by a fixed number; averaging over the batch drawn \
is another mechanism (arXiv 2605.15648), of which nothing is stated"""
SEEN = """sampling is not counted, since the server sees which clients send: for a client that sent in k of the steps, \
use --q 1 --steps k"""


@dataclass(frozen=True, kw_only=True)
class Options:
    noise: float
    """Noise multiplier: standard deviation of the noise over the norm to which one unit's part is clipped."""
    q: float = 1.0
    """Probability at which a step draws a unit (Poisson sampling)."""
    steps: int = 1
    """Noised sums in a round."""
    rounds: int = 1
    """How often all of it happened."""
    unit: Unit = "example"
    """Whose part is clipped."""
    trust: Literal["local", "central"] = "central"
    """Whom the noise holds against: local also covers the server."""
    relation: Relation | None = None
    """What neighbours differ in (default: add_remove, and zero_out for clients under local trust)."""
    delta: float = 1e-5
    """The delta at which epsilon is stated."""

    def __post_init__(self) -> None:
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"--noise must be a number >= 0, got {self.noise}")
        if not 0 < self.q <= 1:
            raise ValueError(f"--q must be in (0, 1], got {self.q}")
        for name in ("steps", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.delta < 1:
            raise ValueError(f"--delta must be in (0, 1), got {self.delta}")
        if self.relation == "add_remove" and self.seen:
            raise ValueError("--relation add_remove has no meaning here: the server sees which clients send")

    @property
    def seen(self) -> bool:
        """Whether the adversary sees who takes part."""
        return (self.unit, self.trust) == ("client", "local")

    @property
    def event(self) -> Gaussian:
        """The whole mechanism. A clipped part moves the sum by its norm, and by twice that where it is replaced."""
        relation = self.relation or ("zero_out" if self.seen else "add_remove")
        std = self.noise / (2 if relation == "replace_one" else 1)
        return Gaussian(std, self.unit, relation, self.trust, self.q, self.steps * self.rounds)


def exposed(event: Gaussian) -> Exposed:
    """The ledger of the mechanism, as its adversary sees it."""
    return Exposed(Ledger((Entry(0, 0, event, 0),)))


def main(argv: Sequence[str]) -> int:
    """Print epsilon with its definition, and the bounds on attacks."""
    options = parse(Options, argv, __doc__)
    seen = exposed(options.event)
    print(accountants.tightest(lambda name: seen.guarantee(options.delta, name)))
    print(f"no attack exceeds AUC {up(seen.auc_ceiling(), 4)}, nor TPR {up(seen.tpr_ceiling(FPR), 4)} at FPR {FPR}")
    if options.q < 1:
        print(SEEN if options.seen else SAMPLED)
    return 0
