"""Section of the report: membership attacks, beside the ceiling that the ledger's noise sets."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from raydiff.formats.tables import Table, number
from raydiff.report.frontier.text import with_interval
from raydiff.report.html import html, sheet
from raydiff.report.load import Row, column, records
from raydiff.report.sweep_view import Section, SweepView

TARGETS = {
    "global": "the global model, asked about clean records. It has seen only noised uploads.",
    "global_uploaded": "the global model, asked about the uploads, its training set; an AUC near 1 leaks nothing new",
    "pool": "the server's prompt pool, made of the uploads, asked about clean records; the ceiling holds for it too",
    "uploads": "the uploads, by a clean record's distance to the nearest of its class, as an honest but curious server",
    "client": "the client's own model, asked about its clean records. It is never sent, and no epsilon covers it.",
}
"""Target of an attack -> what was attacked, and what it means."""
WITH_CEILING = ("global", "pool", "uploads")
RATES = ("tpr_at_1pct_fpr", "tpr_at_0.1pct_fpr")
TITLES = {"auc": "AUC", "tpr_at_1pct_fpr": "TPR at 1 % FPR", "tpr_at_0.1pct_fpr": "TPR at 0.1 % FPR"}
KEYS = ["setting", "seed", "target", "attack"]
OPEN = 40  # rows that are shown unfolded
NOTE = (
    "In square brackets the 95 % interval. The ceiling is the membership AUC that no attack on the uploads can exceed; "
    "under central trust, on what is published. True positive rates have ceilings too, and mark rows as well."
)


def attacks(sweep: SweepView, out: Path) -> Section:
    """A row per trial, target and attack; marked where it is above the ceiling of what was sent."""
    table = readings(sweep)
    if table.empty:
        return Section([])
    measured = [str(c) for c in table if c not in (*KEYS, "digest", "auc_ceiling", "above_ceiling")]
    plain = [m.name for m in sweep.metrics.values() if m.attack and m.role in ("value", "count")]
    stats = [s for s in dict.fromkeys([*TITLES, "balanced_accuracy", *plain]) if s in measured]
    header = [*KEYS, *(TITLES.get(s, s.replace("_", " ")) for s in stats), "AUC's ceiling", ""]
    marked, cells = [i for i, above in enumerate(table["above_ceiling"]) if above], []
    for row in records(table):
        keys = [f"{row[k]:g}" if isinstance(row[k], float) else str(row[k]) for k in KEYS]
        verdict = "above the ceiling" * row["above_ceiling"]
        cells.append([*keys, *(_cell(row, stat) for stat in stats), number(row["auc_ceiling"]), verdict])
    above = f"Above their ceiling with their whole interval: {len(marked)}; by chance one of forty sound attacks is."
    described = [f"{target}: {TARGETS.get(target, 'not described here.')}" for target in table["target"].unique()]
    grid = sheet(Table(header, cells, note=NOTE), "attacks", most=OPEN, marked=marked)
    return Section([html.bullets(described), html.paragraph(above), *grid], {"attacks": table})


def readings(sweep: SweepView) -> pd.DataFrame:
    """digest, setting, seed, target, attack, every number of the attack, auc_ceiling, above_ceiling."""
    metrics = [(c, m) for c, m in sweep.metrics.items() if m.attack and not m.split]
    pairs = dict.fromkeys((m.target, m.attack) for _, m in metrics)
    ceilings = {target: _ceilings(sweep, target) for target, _ in pairs}
    rows: list[Row] = []
    for i, run in zip(sweep.runs.index, records(sweep.runs), strict=True):
        for target, attack in pairs:
            numbers = {c.rpartition("/")[2]: run[c] for c, m in metrics if (m.target, m.attack) == (target, attack)}
            if {*numbers.values()} == {None}:
                continue
            lows = [(numbers.get(f"{stat}_low"), ceiling[i]) for stat, ceiling in ceilings[target].items()]
            above = target in WITH_CEILING and any(low is not None and low > most for low, most in lows)
            row = {"digest": run["digest"], "setting": sweep.settings[i], "seed": sweep.seeds[i], "target": target}
            ceiling = ceilings[target]["auc"][i] if target in WITH_CEILING else math.nan
            row |= {"attack": attack, **numbers, "auc_ceiling": ceiling}
            rows.append({**row, "above_ceiling": bool(above)})
    return pd.DataFrame(rows).sort_values(KEYS, ignore_index=True) if rows else pd.DataFrame(rows)


def _ceilings(sweep: SweepView, target: str) -> dict[str, pd.Series]:
    """Statistic -> ceiling of attacks on this target in each run; of what is published, the outsiders' if lower."""
    names = {"auc": "auc_ceiling", **{stat: f"tpr_ceiling_{stat.removeprefix('tpr_')}" for stat in RATES}}
    server = {stat: column(sweep.runs, f"final/privacy/{name}") for stat, name in names.items()}
    if target == "uploads":
        return server
    return {stat: column(sweep.runs, f"final/privacy/{names[stat]}_outsiders").fillna(s) for stat, s in server.items()}


def _cell(row: Row, stat: str) -> str:
    """`0.512 [0.470 0.554]`, or that there were too few records."""
    if row[stat] is None:
        return "n too small"
    return f"{row[stat]:g}" if stat.startswith("n_") else with_interval(row, stat)
