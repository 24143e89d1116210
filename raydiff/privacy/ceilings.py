"""What the ledger's noise allows to any attack on what was released: the largest AUC, the largest true positive rates
where false ones are rare, and a check of attacks.

Under mu-Gaussian DP no test of one record or client has a true positive rate above Phi(mu + Phi^-1(FPR)), nor an AUC
above Phi(mu / sqrt 2) (Dong, Roth & Su 2019, arXiv 1905.02383). Sampled Gaussians (DP-SGD) have a curve instead of a mu
(`losses`). This bounds attacks on what is computed from uploads alone. The uploads themselves (`attack/uploads/`) have
the server's ceiling; what is published (`attack/global/`, `attack/pool/`) has that of outsiders too, which is the lower
one where the server adds noise (central trust). A client's own model is never sent, and no ledger speaks of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from operator import methodcaller

from raydiff.privacy.ledger import Exposed, PrivacyOdometer

MU = "privacy/mu"
"""Metric: mu of Gaussian DP of the client that fares worst; absent where the ledger has no closed form."""
CEILING = "privacy/auc_ceiling"
"""Metric: the largest AUC of any attack on the uploads of the client that fares worst; 1 where nothing is known."""
TPRS = {0.01: "privacy/tpr_ceiling_at_1pct_fpr", 0.001: "privacy/tpr_ceiling_at_0.1pct_fpr"}
"""False positive rate -> metric: the largest true positive rate there, as `CEILING`."""
OUTSIDERS = "_outsiders"
"""Ends the name of a ceiling for what is published, where that is below the one for what the server sees."""
ATTACKS = ("attack/global/*/", "attack/pool/*/", "attack/uploads/*/")
"""Where metrics of attacks on clean records are, by what is made of uploads alone."""
BY_CHANCE = "or it is chance: in a sound trial one in forty attacks, at most, seems above its ceiling"


class AboveCeiling(RuntimeError):
    """An attack does what the ledger's noise rules out: the mechanism, the ledger or the attack's rows are wrong, or it
    is chance (`BY_CHANCE`), for the lower limit of a 95 % interval decides."""


def of_ledger(spent: PrivacyOdometer) -> dict[str, float]:
    """`CEILING`, and `MU` where there is one, against the server."""
    found = _of_views(spent, CEILING, Exposed.auc_ceiling)
    with contextlib.suppress(ValueError):  # Neither sampled noise nor kinds that do not compose have one.
        found[MU] = spent.server.mu()
    return found


def rates(spent: PrivacyOdometer) -> dict[str, float]:
    """`TPRS`, against the server."""
    views = [_of_views(spent, name, methodcaller("tpr_ceiling", fpr)) for fpr, name in TPRS.items()]
    return {name: ceiling for view in views for name, ceiling in view.items()}


def _of_views(spent: PrivacyOdometer, name: str, ceiling: Callable[[Exposed], float]) -> dict[str, float]:
    """A ceiling against the server, and where it is lower that against outsiders; 1 of kinds that do not compose."""
    found = []
    for view in (spent.server, spent.outsiders):
        try:
            found.append(ceiling(view))
        except ValueError:
            found.append(1.0)
    server, outsiders = found
    return {name: server, **({name + OUTSIDERS: outsiders} if outsiders < server else {})}


def check_attacks(metrics: Mapping[str, float], *, unlike: float = 0.0) -> None:
    """Raises AboveCeiling, in one sentence, for the attack on released values that is furthest above its ceiling: of
    AUCs, and where none is, of true positive rates. What counts is the lower limit of an attack's interval.

    `unlike` is the total variation u between the labels of the members and of the others, by which telling labels apart
    may raise an AUC; it raises a true positive rate to that at a false one of f + u, which is (f + u) / f times as high
    at most, for the curve is concave. A ceiling that is not there is not checked.
    """
    _check(metrics, "auc", CEILING, 1.0, unlike, says="an AUC")
    for fpr, name in TPRS.items():
        at = f"{100 * fpr:g}"
        says = f"a true positive rate, at {at} % false ones,"
        _check(metrics, f"tpr_at_{at}pct_fpr", name, (fpr + unlike) / fpr, 0.0, says=says)


def _check(metrics: Mapping[str, float], number: str, name: str, factor: float, more: float, *, says: str) -> None:
    """`factor` times the ceiling of this name, and `more`, is allowed."""
    ending, above = f"{number}_low", []
    for attack, low in metrics.items():
        if any(fnmatch(attack, kind + ending) for kind in ATTACKS):
            ceiling = metrics.get(name, 1.0)
            if not attack.startswith("attack/uploads/"):
                ceiling = metrics.get(name + OUTSIDERS, ceiling)
            above += [(low, attack, ceiling)] if low > factor * ceiling + more else []
    if above:
        low, attack, ceiling = max(above)
        mu = f" (mu {metrics[MU]:.4g})" if MU in metrics and ceiling == metrics.get(name) else ""
        raise AboveCeiling(
            f"{attack.removesuffix(f'/{ending}')} has {says} of at least {low:.4g}, above the ceiling "
            f"{ceiling:.4g} that the ledger's noise{mu} sets to any attack; {BY_CHANCE}"
        )
