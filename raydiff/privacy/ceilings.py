"""Ceilings that the ledger's noise sets to any attack on what was released (`tradeoff`), and the check of attacks.

They bound attacks on what is computed from uploads alone. The uploads themselves have the server's ceiling; published
results (targets global and pool) that of outsiders too, which is lower where the server adds noise (central trust). A
client's model is never sent, so no ceiling applies.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from operator import methodcaller

from raydiff.formats.metric_records import AUC_CEILING, FRACTION, Metric, columns
from raydiff.privacy.ledger import Exposure, PrivacyOdometer

MU = Metric(name="privacy/mu")
"""mu of Gaussian DP of the worst client; absent where the ledger has no closed form."""
TPRS = {
    0.01: Metric(name="privacy/tpr_ceiling_at_1pct_fpr", bounds=FRACTION),
    0.001: Metric(name="privacy/tpr_ceiling_at_0.1pct_fpr", bounds=FRACTION),
}
"""False positive rate -> the largest true positive rate there, as AUC_CEILING is the largest AUC: of any attack on the
uploads of the worst client; 1 without a bound."""
UPLOADS = "uploads"
BOUNDED = ("global", "pool", UPLOADS)
"""Targets of attacks on clean records by what is computed from uploads alone."""
BY_CHANCE = "or it is chance: in a sound trial one in forty attacks, at most, seems above its ceiling"


class AboveCeiling(RuntimeError):
    """The lower limit of an attack's 95 % interval exceeds what the ledger's noise allows; see `BY_CHANCE`."""


def ledger_ceilings(odometer: PrivacyOdometer) -> list[Metric]:
    """Return AUC_CEILING, and MU where there is one, against the server."""
    metrics = _of_views(odometer, AUC_CEILING, Exposure.auc_ceiling)
    with contextlib.suppress(ValueError):  # sampled noise, or events that do not compose
        metrics.append(MU.with_value(odometer.server.mu()))
    return metrics


def rate_ceilings(odometer: PrivacyOdometer) -> list[Metric]:
    """Return TPRS, against the server."""
    views = [_of_views(odometer, metric, methodcaller("tpr_ceiling", fpr)) for fpr, metric in TPRS.items()]
    return list(itertools.chain.from_iterable(views))


def against_outsiders(ceiling: Metric) -> Metric:
    """Return the ceiling for published results, where it is below the server's."""
    return replace(ceiling, name=f"{ceiling.name}_outsiders", shown="")


def _of_views(odometer: PrivacyOdometer, metric: Metric, ceiling: Callable[[Exposure], float]) -> list[Metric]:
    """A ceiling against the server, and against outsiders where lower; 1 for events that do not compose."""
    values = []
    for view in (odometer.server, odometer.outsiders):
        try:
            values.append(ceiling(view))
        except ValueError:
            values.append(1.0)
    server, outsiders = values
    of_server = metric.with_value(server)
    return [of_server, against_outsiders(metric).with_value(outsiders)] if outsiders < server else [of_server]


def check_attacks(metrics: Iterable[Metric], *, unlike: float = 0.0) -> None:
    """Raise AboveCeiling for the attack furthest above its ceiling by the lower limit of its interval, AUCs first.

    `unlike` is the total variation u between the labels of members and non-members. Telling labels apart may raise an
    AUC by u, and a true positive rate to that at a false one of f + u: (f + u) / f times as high at most, for the curve
    is concave.
    """
    every = list(metrics)
    lows = [m for m in every if m.role == "low" and m.target in BOUNDED]
    values = columns(every)
    aucs = [m for m in lows if m.name == "auc"]
    _check(aucs, values, ceiling=AUC_CEILING, factor=1.0, more=unlike, says="an AUC")
    for fpr, metric in TPRS.items():
        at = f"{100 * fpr:g}"
        says = f"a true positive rate, at {at} % false ones,"
        of_rate = [m for m in lows if m.name == f"tpr_at_{at}pct_fpr"]
        _check(of_rate, values, ceiling=metric, factor=(fpr + unlike) / fpr, more=0.0, says=says)


def _check(
    lows: Iterable[Metric],
    values: Mapping[str, float],
    *,
    ceiling: Metric,
    factor: float,
    more: float,
    says: str,
) -> None:
    """Raise AboveCeiling for the largest of these lower limits that is above `factor` times its ceiling plus `more`."""
    server = values.get(str(ceiling), 1.0)
    outsiders = values.get(str(against_outsiders(ceiling)), server)
    ceilings = {low: server if low.target == UPLOADS else outsiders for low in lows}
    above = [low for low, highest in ceilings.items() if low.value > factor * highest + more]
    if above:
        most = max(above, key=lambda low: (low.value, str(low)))
        mu = f" (mu {values[str(MU)]:.4g})" if str(MU) in values and ceilings[most] == server else ""
        raise AboveCeiling(
            f"attack {most.attack} on target {most.target} has {says} of at least {most.value:.4g}, above the ceiling "
            f"{ceilings[most]:.4g} that the ledger's noise{mu} sets to any attack; {BY_CHANCE}"
        )
