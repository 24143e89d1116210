"""Ceilings that the ledger's noise sets to any attack on what was released (`tradeoff`), and the check of attacks.

They bound attacks on what is computed from uploads alone. The uploads themselves (`attack/uploads/`) have the server's
ceiling; published results (`attack/global/`, `attack/pool/`) that of outsiders too, which is lower where the server
adds noise (central trust). A client's model is never sent, so no ceiling applies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from operator import methodcaller

from raydiff.privacy.ledger import Exposure, PrivacyOdometer

MU = "privacy/mu"
"""Metric: mu of Gaussian DP of the worst client; absent where the ledger has no closed form."""
CEILING = "privacy/auc_ceiling"
"""Metric: the largest AUC of any attack on the uploads of the worst client; 1 without a bound."""
TPRS = {0.01: "privacy/tpr_ceiling_at_1pct_fpr", 0.001: "privacy/tpr_ceiling_at_0.1pct_fpr"}
"""False positive rate -> metric: the largest true positive rate there, as `CEILING`."""
OUTSIDERS = "_outsiders"
"""Suffix of a ceiling for published results, where it is below the server's."""
ATTACKS = ("attack/global/*/", "attack/pool/*/", "attack/uploads/*/")
"""Prefixes of metrics of attacks on clean records by what is computed from uploads alone."""
BY_CHANCE = "or it is chance: in a sound trial one in forty attacks, at most, seems above its ceiling"


class AboveCeiling(RuntimeError):
    """The lower limit of an attack's 95 % interval exceeds what the ledger's noise allows; see `BY_CHANCE`."""


def of_ledger(odometer: PrivacyOdometer) -> dict[str, float]:
    """Return `CEILING`, and `MU` where there is one, against the server."""
    metrics = _of_views(odometer, CEILING, Exposure.auc_ceiling)
    with contextlib.suppress(ValueError):  # sampled noise, or events that do not compose
        metrics[MU] = odometer.server.mu()
    return metrics


def rates(odometer: PrivacyOdometer) -> dict[str, float]:
    """Return `TPRS`, against the server."""
    views = [_of_views(odometer, name, methodcaller("tpr_ceiling", fpr)) for fpr, name in TPRS.items()]
    return {name: ceiling for view in views for name, ceiling in view.items()}


def _of_views(odometer: PrivacyOdometer, name: str, ceiling: Callable[[Exposure], float]) -> dict[str, float]:
    """A ceiling against the server, and against outsiders where lower; 1 for events that do not compose."""
    values = []
    for view in (odometer.server, odometer.outsiders):
        try:
            values.append(ceiling(view))
        except ValueError:
            values.append(1.0)
    server, outsiders = values
    return {name: server, **({name + OUTSIDERS: outsiders} if outsiders < server else {})}


def check_attacks(metrics: Mapping[str, float], *, unlike: float = 0.0) -> None:
    """Raise AboveCeiling for the attack furthest above its ceiling by the lower limit of its interval, AUCs first.

    `unlike` is the total variation u between the labels of members and non-members. Telling labels apart may raise an
    AUC by u, and a true positive rate to that at a false one of f + u: (f + u) / f times as high at most, for the curve
    is concave.
    """
    _check(metrics, "auc", CEILING, 1.0, unlike, says="an AUC")
    for fpr, name in TPRS.items():
        at = f"{100 * fpr:g}"
        says = f"a true positive rate, at {at} % false ones,"
        _check(metrics, f"tpr_at_{at}pct_fpr", name, (fpr + unlike) / fpr, 0.0, says=says)


def _check(metrics: Mapping[str, float], number: str, name: str, factor: float, more: float, *, says: str) -> None:
    """Allow `factor` times the ceiling of this name, plus `more`."""
    ending, above = f"{number}_low", []
    for attack, low in metrics.items():
        if any(fnmatch(attack, prefix + ending) for prefix in ATTACKS):
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
