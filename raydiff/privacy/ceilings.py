"""What the ledger's noise allows to any attack on what was released: the largest AUC, the largest true positive rates
where false ones are rare, and a check of attacks.

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
TPRS = {0.01: "privacy/tpr_ceiling_at_1pct_fpr", 0.001: "privacy/tpr_ceiling_at_0.1pct_fpr"}
"""False positive rate -> metric: the largest true positive rate there, as `CEILING`."""
ATTACKS = ("attack/global/*/", "attack/pool/*/", "attack/uploads/*/")
"""Where metrics of attacks on clean records are, by what is made of uploads alone."""


class AboveCeiling(RuntimeError):
    """An attack does what the ledger's noise rules out: the mechanism, the ledger or the attack's rows are wrong."""


def of_ledger(spent: Spent) -> dict[str, float]:
    """`CEILING`, and `MU` where there is one, against the server."""
    try:
        found = {CEILING: spent.server.auc_ceiling()}
    except ValueError:  # Of kinds that do not compose every AUC is allowed.
        return {CEILING: 1.0}
    with contextlib.suppress(accountants.Unsupported):
        found[MU] = spent.server.mu()
    return found


def rates(spent: Spent) -> dict[str, float]:
    """`TPRS`, against the server."""
    try:
        return {name: spent.server.tpr_ceiling(fpr) for fpr, name in TPRS.items()}
    except ValueError:
        return dict.fromkeys(TPRS.values(), 1.0)


def check_attacks(metrics: Mapping[str, float], *, unlike: float = 0.0) -> None:
    """Raises AboveCeiling, in one sentence, for the attack on released values that is furthest above its ceiling: of
    AUCs, and where none is, of true positive rates. What counts is the lower limit of an attack's interval.

    `unlike` is the total variation u between the labels of the members and of the others, by which telling labels apart
    may raise an AUC; it raises a true positive rate to that at a false one of f + u, which is (f + u) / f times as high
    at most, for the curve is concave. A ceiling that is not there is not checked.
    """
    _check(metrics, "auc", metrics.get(CEILING, 1.0), metrics.get(CEILING, 1.0) + unlike, says="an AUC")
    for fpr, name in TPRS.items():
        at, ceiling = f"{100 * fpr:g}", metrics.get(name, 1.0)
        says = f"a true positive rate, at {at} % false ones,"
        _check(metrics, f"tpr_at_{at}pct_fpr", ceiling, ceiling * (fpr + unlike) / fpr, says=says)


def _check(metrics: Mapping[str, float], number: str, ceiling: float, allowed: float, *, says: str) -> None:
    ending = f"{number}_low"
    lows = {name: low for name, low in metrics.items() if any(fnmatch(name, kind + ending) for kind in ATTACKS)}
    found = {name: low for name, low in lows.items() if low > allowed}
    if found:
        name = max(found, key=lambda k: found[k])
        mu = f" (mu {metrics[MU]:.4g})" if MU in metrics else ""
        raise AboveCeiling(
            f"{name.removesuffix(f'/{ending}')} has {says} of at least {found[name]:.4g}, above the ceiling "
            f"{ceiling:.4g} that the ledger's noise{mu} sets to any attack"
        )
