"""What the ledger's noise allows to any attack on what was released: the largest AUC, and a check of attacks.

Under mu-Gaussian DP no test of one record or client has a true positive rate above Phi(mu + Phi^-1(FPR)), nor an AUC
above Phi(mu / sqrt 2) (Dong, Roth & Su 2019, arXiv 1905.02383). Sampled Gaussians (DP-SGD) have a curve instead of a mu
(`losses`). This bounds attacks on what is computed from uploads alone: the server's model (`attack/global/`) and the
uploads themselves (`attack/uploads/`). A client's own model is never sent to the server, and no ledger speaks of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from fnmatch import fnmatch

from raydiff.privacy import accountants
from raydiff.privacy.ledger import Spent

MU = "privacy/mu"
"""Metric: mu of Gaussian DP of the client that fares worst; absent where the ledger has no closed form."""
CEILING = "privacy/auc_ceiling"
"""Metric: the largest AUC of any attack on the uploads of the client that fares worst; 1 where nothing is known."""
ATTACKS = ("attack/global/*/auc_low", "attack/pool/*/auc_low", "attack/uploads/*/auc_low")
"""Metrics: lower limits of the AUCs of attacks on clean records, by what is made of uploads alone."""


class AboveCeiling(RuntimeError):
    """An attack does what the ledger's noise rules out: the mechanism, the ledger or the attack's rows are wrong."""


def of_ledger(spent: Spent) -> dict[str, float]:
    """`CEILING`, and `MU` where there is one, against the server."""
    try:
        found = {CEILING: spent.server.auc_ceiling()}
    except ValueError:  # Without a theorem every AUC is allowed.
        return {CEILING: 1.0}
    with contextlib.suppress(accountants.Unsupported):
        found[MU] = spent.server.mu()
    return found


def check_attacks(metrics: Mapping[str, float], *, unlike: float = 0.0) -> None:
    """Raises AboveCeiling, in one sentence, for the attack on released values that is furthest above its ceiling.

    `unlike` is the total variation between the labels of the members and of the others, by which telling labels apart
    may raise an AUC. Nothing is checked without `CEILING`.
    """
    ceiling = metrics.get(CEILING, 1.0)
    lows = {name: low for name, low in metrics.items() if any(fnmatch(name, kind) for kind in ATTACKS)}
    found = {name: low for name, low in lows.items() if low - unlike > ceiling}
    if found:
        name = max(found, key=lambda k: found[k])
        mu = f" (mu {metrics[MU]:.4g})" if MU in metrics else ""
        raise AboveCeiling(
            f"{name.removesuffix('/auc_low')} has an AUC of at least {found[name]:.4g}, above the ceiling "
            f"{ceiling:.4g} that the ledger's noise{mu} sets to any attack"
        )
