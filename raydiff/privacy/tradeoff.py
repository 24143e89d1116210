"""What the ledger's noise allows to any attack on what was released: a trade-off curve, and a check of attacks.

Under mu-Gaussian DP no test of one record or client has a true positive rate above Phi(mu + Phi^-1(FPR)), nor an AUC
above Phi(mu / sqrt 2) (Dong, Roth & Su 2019, arXiv 1905.02383). This bounds attacks on what is computed from uploads
alone: the server's model (`attack/global/`) and the uploads themselves (`attack/uploads/`). A client's own model never
leaves it, and no ledger speaks of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch

from raydiff.privacy import accountants
from raydiff.privacy.ledger import Ledger

MU = "privacy/mu"
"""Metric: mu of Gaussian DP of the client that fares worst; absent where the ledger has no closed form."""
ATTACKS = ("attack/global/*/auc_low", "attack/pool/*/auc_low", "attack/uploads/*/auc_low")
"""Metrics: lower limits of the AUCs of attacks on clean records, by what is made of uploads alone."""


class AboveCeiling(RuntimeError):
    """An attack does what the ledger's noise rules out: the mechanism, the ledger or the attack's rows are wrong."""


def curve(ledger: Ledger, client: int, fprs: Sequence[float]) -> list[float]:
    """The largest true positive rate of any attack on a client's records at each of these false positive rates.

    Of a view (`ledger.server`, `ledger.outsiders`) against that adversary, of the whole ledger against the stronger.
    Raises ValueError where the client's events do not compose, Unsupported for sampled ones.
    """
    mu = ledger.mu(client)
    return [accountants.tpr_ceiling(mu, fpr) for fpr in fprs]


def above_ceiling(auc_low: float, mu: float) -> bool:
    """Whether an attack with this lower limit of its AUC is ruled out by mu-Gaussian DP."""
    return auc_low > accountants.auc_ceiling(mu)


def check_attacks(metrics: Mapping[str, float], *, unlike: float = 0.0) -> None:
    """Raises AboveCeiling, in one sentence, for the attack on released values that is furthest above its ceiling.

    `unlike` is the total variation between the labels of the members and of the others, by which telling labels apart
    may raise an AUC. Nothing is checked without `privacy/mu`: every AUC is allowed then.
    """
    if (mu := metrics.get(MU)) is None:
        return
    lows = {name: low for name, low in metrics.items() if any(fnmatch(name, kind) for kind in ATTACKS)}
    found = {name: low for name, low in lows.items() if above_ceiling(low - unlike, mu)}
    if found:
        name = max(found, key=lambda k: found[k])
        raise AboveCeiling(
            f"{name.removesuffix('/auc_low')} has an AUC of at least {found[name]:.4g}, above the ceiling "
            f"{accountants.auc_ceiling(mu):.4g} that the ledger's noise (mu {mu:.4g}) sets to any attack"
        )
