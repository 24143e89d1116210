"""Section of the report: membership attacks, beside the ceiling that the ledger's noise sets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd

from raydiff.report import html
from raydiff.report.frontier.table import column, records
from raydiff.report.frontier.text import number
from raydiff.report.sweep import Section, Sweep

NAME = re.compile(r"final/attack/(?P<target>[^/]+)/(?P<attack>[^/]+)/(?P<stat>[^/]+)")
TARGETS = {
    "global": "the global model, asked about the clients' clean records. It has seen them only through the uploads, "
    "so their noise sets a ceiling to every attack on it.",
    "global_uploaded": "the global model, asked about the records as they were uploaded: its own training set. An AUC "
    "near 1 leaks nothing new, for the uploads are what was released, at their epsilon.",
    "pool": "the server's pool of prompts, asked about clean records, each by the prompt of its label that knows it "
    "best. It is made of the noised uploads, so their ceiling holds for it too.",
    "uploads": "the uploads themselves, by the distance of a clean record to the nearest of its class: the strongest "
    "position of a server that is honest but curious. The ceiling holds for it too.",
    "client": "the client's own model, asked about its clean records. It is never sent to the server, and no epsilon "
    "covers it.",
}
"""Target of an attack -> what was attacked, and what it means."""
SMALL = "n too small"
CEILED = ("global", "pool", "uploads")
"""Targets that the ceiling is about."""
NAMED = "global, pool and uploads"
STATS = ("auc", "tpr_at_1pct_fpr", "tpr_at_0.1pct_fpr", "balanced_accuracy")
WORDS = {"auc": "AUC", "tpr_at_1pct_fpr": "TPR at 1 % FPR", "tpr_at_0.1pct_fpr": "TPR at 0.1 % FPR"}
OPEN = 40
"""Rows that are shown unfolded."""


def attacks(sweep: Sweep, out: Path) -> Section:
    """A row per trial, target and attack; marked where what was sent leaks more than its ceiling allows."""
    found = readings(sweep)
    title = "Attacks against their ceilings"
    if found.empty:
        return Section(title, [html.paragraph(_none(sweep))])
    stats = [s for s in dict.fromkeys([*STATS, *_plain(found)]) if s in found]
    rows = records(found)
    names = ["setting", "seed", "target", "attack"]
    cells = [
        [*(_text(r[n]) for n in names), *(_cell(r, s) for s in stats), number(r["auc_ceiling"]), _verdict(r)]
        for r in rows
    ]
    header = [*names, *(WORDS.get(s, s.replace("_", " ")) for s in stats), "AUC's ceiling", ""]
    marked = [i for i, r in enumerate(rows) if r["above_ceiling"]]
    known = [f"{t}: {_meaning(t)}" for t in found["target"].unique()]
    says = "In square brackets the 95 % interval. The ceiling is the membership AUC that no attack on the uploads can "
    says += f"exceed, of whatever kind; it speaks of {NAMED}. {SMALL}: too few records for that number."
    grid = html.table(header, cells, name="attacks", marked=marked)
    above = f"Above their ceiling with their whole interval: {len(marked)}. The accounting or the attack is "
    above += "wrong, or members and others have other labels, for which a trial's own check allows"
    blocks = [html.bullets(known), html.paragraph(says, note=True)]
    below = f"No interval of the targets {NAMED} lies above its ceiling."
    blocks.append(html.paragraph(f"{above}." if marked else below))
    blocks.append(grid if len(cells) <= OPEN else html.folded(f"{len(cells)} rows", [grid]))
    return Section(title, blocks, {"attacks": found})


def _none(sweep: Sweep) -> str:
    if "final/eval/blackbox/accuracy" in sweep.runs:
        says = (
            "The black-box attack on synthetic rows is under Quality: blackbox/accuracy, beside blackbox/random, which "
        )
        return f"{says}guessing reaches. The ledger's ceiling is not about it."
    return "No attack was run, or none of its numbers were recorded."


def readings(sweep: Sweep) -> pd.DataFrame:
    """digest, setting, seed, target, attack, every number of the attack, auc_ceiling, above_ceiling."""
    parts = {c: m for c in map(str, sweep.runs) if (m := NAME.fullmatch(c))}
    pairs = dict.fromkeys((m["target"], m["attack"]) for m in parts.values())
    rows: list[dict[str, Any]] = []
    ceiling = column(sweep.runs, "final/privacy/auc_ceiling")
    for i, run in zip(sweep.runs.index, records(sweep.runs), strict=True):
        of = {"digest": run["digest"], "setting": sweep.settings[i], "seed": sweep.seeds[i]}
        for target, attack in pairs:
            mine = {m["stat"]: run[c] for c, m in parts.items() if (m["target"], m["attack"]) == (target, attack)}
            if any(v is not None for v in mine.values()):
                low = mine.get("auc_low")
                above = target in CEILED and low is not None and low > ceiling[i]
                about = {**of, "target": target, "attack": attack, **mine}
                rows.append({**about, "auc_ceiling": ceiling[i], "above_ceiling": bool(above)})
    order = ["setting", "seed", "target", "attack"]
    return pd.DataFrame(rows).sort_values(order, ignore_index=True) if rows else pd.DataFrame(rows)


def _meaning(target: str) -> str:
    return TARGETS.get(target, "what this target is, is not known here.")


def _plain(found: pd.DataFrame) -> list[str]:
    """The numbers of an attack that are no interval's bound and not about something else."""
    about = {"digest", "setting", "seed", "target", "attack", "auc_ceiling", "above_ceiling"}
    own = [c for c in map(str, found) if c not in about and not c.endswith(("_low", "_high"))]
    return [c for c in own if c not in ("threshold", "timestep_index") and not c.startswith("fpr_reached")]


def _cell(row: dict[str, Any], stat: str) -> str:
    """`0.512 [0.470 0.554]`, or that there were too few records."""
    if row[stat] is None:
        return SMALL
    low, high = row.get(f"{stat}_low"), row.get(f"{stat}_high")
    interval = "" if low is None or high is None else f" [{number(low)} {number(high)}]"
    return _text(row[stat]) + interval if stat.startswith("n_") else number(row[stat]) + interval


def _text(value: Any) -> str:
    """A count without decimals."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _verdict(row: dict[str, Any]) -> str:
    return "above the ceiling" if row["above_ceiling"] else ""
