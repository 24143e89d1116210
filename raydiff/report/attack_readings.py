"""Membership attacks of a sweep's trials, beside the ceiling that the ledger's noise sets."""

import math

import pandas as pd

from raydiff.formats.metric_records import AUC_CEILING
from raydiff.privacy.ceilings import against_outsiders
from raydiff.report.load import column
from raydiff.report.sweep_view import SweepView

WITH_CEILING = ("global", "pool", "uploads")
"""Targets whose attacks cannot exceed the ledger's ceiling: else the trial would have failed."""
KEYS = ["setting", "seed", "target", "attack"]


def read_attacks(sweep: SweepView) -> pd.DataFrame:
    """A row per trial, target and attack: digest, KEYS, every number of the attack, auc_ceiling."""
    runs = sweep.runs
    server = column(runs, f"final/{AUC_CEILING}")
    published = column(runs, f"final/{against_outsiders(AUC_CEILING)}").fillna(server)
    metrics = {name: metric for name, metric in sweep.metrics.items() if metric.attack and not metric.split}
    tables = []
    for target, attack in dict.fromkeys((metric.target, metric.attack) for metric in metrics.values()):
        names = [name for name, metric in metrics.items() if (metric.target, metric.attack) == (target, attack)]
        numbers = runs[names].rename(columns=lambda name: name.rpartition("/")[2])
        about = pd.DataFrame({"digest": runs["digest"], "setting": sweep.settings, "seed": sweep.seeds})
        table = about.assign(target=target, attack=attack).join(numbers)
        ceiling = server if target == "uploads" else published
        table["auc_ceiling"] = ceiling if target in WITH_CEILING else math.nan
        tables.append(table[numbers.notna().any(axis=1)])
    return pd.concat(tables).sort_values(KEYS, ignore_index=True) if tables else pd.DataFrame()
