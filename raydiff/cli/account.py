"""Epsilon of a Gaussian mechanism that ran elsewhere (Opacus, Flower): all its steps and rounds together.

    raydiff account --noise 1.1 --q 0.01 --steps 1000                          # DP-SGD of Opacus
    raydiff account --noise 0.48 --rounds 50 --unit client --trust local       # LocalDpMod of Flower

Flower's LocalDpMod adds noise of multiplier sensitivity * sqrt(2 ln(1.25 / delta)) / (epsilon * clipping_norm) in every
round. Sampling is Poisson sampling; it does not count for clients under local trust, since the server sees who sends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt, Le

from raydiff.cli.options import check_option, parse_options
from raydiff.formats.rounding import up
from raydiff.privacy import accountants
from raydiff.privacy.ledger import Entry, Exposure, Ledger
from raydiff.privacy.release import Gaussian, Relation, Unit
from raydiff.settings import Count, NonNegative

FPR = 0.01
SAMPLED = """holds for Poisson batches whose noised sum is divided by a fixed number; averaging over the batch drawn \
is another mechanism (arXiv 2605.15648), of which nothing is stated"""
SEEN = """sampling is not counted, since the server sees which clients send: for a client that sent in k of the steps, \
use --q 1 --steps k"""


@dataclass(frozen=True, kw_only=True)
class AccountOptions:
    noise: NonNegative
    """Noise multiplier: standard deviation of the noise over the norm to which one unit's part is clipped."""
    q: Annotated[float, Gt(0), Le(1)] = 1.0
    """Probability at which a step draws a unit (Poisson sampling)."""
    steps: Count = 1
    """Noised sums in a round."""
    rounds: Count = 1
    """Rounds of so many steps."""
    unit: Unit = "example"
    """Whose part is clipped."""
    trust: Literal["local", "central"] = "central"
    """Trust model: local also covers the server."""
    relation: Relation | None = None
    """What neighbours differ in (default: add_remove, and zero_out for clients under local trust)."""
    delta: accountants.Delta = 1e-5
    """The delta at which epsilon is stated."""

    def __post_init__(self) -> None:
        adds_or_removes = self.relation == "add_remove" and self.sees_senders
        check_option(
            self, "relation", not adds_or_removes, "zero_out or replace_one where the server sees which clients send"
        )

    @property
    def sees_senders(self) -> bool:
        """Whether the adversary sees which units take part."""
        return (self.unit, self.trust) == ("client", "local")

    @property
    def exposure(self) -> Exposure:
        """The ledger of the whole mechanism, as its adversary sees it."""
        relation = self.relation or ("zero_out" if self.sees_senders else "add_remove")
        std = self.noise / (2 if relation == "replace_one" else 1)  # Replaced, a clipped part moves by twice its norm.
        event = Gaussian(std, self.unit, relation, self.trust, self.q, self.steps * self.rounds)
        return Exposure(Ledger((Entry(0, 0, event, 0),)))


def main(argv: Sequence[str]) -> int:
    """Print epsilon with its definition, and the bounds on attacks."""
    options = parse_options(AccountOptions, argv, __doc__)
    exposure = options.exposure
    print(accountants.tightest(lambda name: exposure.guarantee(options.delta, name)))
    auc = up(exposure.auc_ceiling(), 4)
    tpr = up(exposure.tpr_ceiling(FPR), 4)
    print(f"no attack exceeds AUC {auc}, nor TPR {tpr} at FPR {FPR}")
    if options.q < 1:
        print(SEEN if options.sees_senders else SAMPLED)
    return 0
