"""Membership attacks of a sweep's trials, beside the ceiling that the ledger's noise sets."""

from __future__ import annotations

import math

import pandas as pd

from raydiff.report.load import Row, column, records
from raydiff.report.sweep_view import SweepView

TARGETS = {
    "global": "the global model, asked about clean records. It has seen only noised uploads.",
    "global_uploaded": "the global model, asked about the uploads, its training set; an AUC near 1 leaks nothing new",
    "pool": "the server's prompt pool, made of the uploads, asked about clean records; the ceiling holds for it too",
    "uploads": "the uploads, by a clean record's distance to the nearest of its class, as an honest but curious server",
    "client": "the client's own model, asked about its clean records. It is never sent, and no epsilon covers it.",
}
"""Target of an attack -> what was attacked, and what it means."""
WITH_CEILING = ("global", "pool", "uploads")
CEILINGS = {
    "auc": "auc_ceiling",
    "tpr_at_1pct_fpr": "tpr_ceiling_at_1pct_fpr",
    "tpr_at_0.1pct_fpr": "tpr_ceiling_at_0.1pct_fpr",
}
"""Statistic of an attack -> the number of the ledger that no attack on what was sent can exceed."""
KEYS = ["setting", "seed", "target", "attack"]


def read_attacks(sweep: SweepView) -> pd.DataFrame:
    """A row per trial, target and attack: digest, KEYS, every number of the attack, auc_ceiling, above_ceiling.

    The last is whether the whole interval of a statistic that has a ceiling is above it.
    """
    metrics = [(name, metric) for name, metric in sweep.metrics.items() if metric.attack and not metric.split]
    rows: list[Row] = []
    for target, attack in dict.fromkeys((metric.target, metric.attack) for _, metric in metrics):
        names = [name for name, metric in metrics if (metric.target, metric.attack) == (target, attack)]
        ceilings = _ceilings(sweep, target)
        lows = {sweep.metrics[name].name: name for name in names if sweep.metrics[name].role == "low"}
        for i, run in zip(sweep.runs.index, records(sweep.runs), strict=True):
            numbers = {name.rpartition("/")[2]: run[name] for name in names if run[name] is not None}
            if numbers:
                row = {"digest": run["digest"], "setting": sweep.settings[i], "seed": sweep.seeds[i]}
                above = [_is_above(run.get(lows.get(stat, "")), most[i]) for stat, most in ceilings.items()]
                ceiling = ceilings["auc"][i] if ceilings else math.nan
                row |= {"target": target, "attack": attack, **numbers, "auc_ceiling": ceiling}
                rows.append({**row, "above_ceiling": any(above)})
    return pd.DataFrame(rows).sort_values(KEYS, ignore_index=True) if rows else pd.DataFrame()


def _is_above(low: float | None, ceiling: float) -> bool:
    return low is not None and low > ceiling


def _ceilings(sweep: SweepView, target: str | None) -> dict[str, pd.Series]:
    """Statistic -> ceiling of attacks on this target in each run; of what is published, the outsiders' if lower."""
    if target not in WITH_CEILING:
        return {}
    server = {stat: column(sweep.runs, f"final/privacy/{name}") for stat, name in CEILINGS.items()}
    if target == "uploads":
        return server
    outsiders = {stat: column(sweep.runs, f"final/privacy/{name}_outsiders") for stat, name in CEILINGS.items()}
    return {stat: outsiders[stat].fillna(server[stat]) for stat in CEILINGS}
