"""Section of the report: membership attacks, beside the ceiling that the ledger's noise sets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from raydiff.formats.plots import COLOURS, MARKERS, legend, panels, save
from raydiff.formats.tables import number
from raydiff.report.html import html
from raydiff.report.load import Row, column, records
from raydiff.report.sweep_view import Section, SweepView

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
RATES = ("tpr_at_1pct_fpr", "tpr_at_0.1pct_fpr")
WORDS = {"auc": "AUC", "tpr_at_1pct_fpr": "TPR at 1 % FPR", "tpr_at_0.1pct_fpr": "TPR at 0.1 % FPR"}
FIRST = (*WORDS, "balanced_accuracy")
WHO = ["setting", "seed", "target", "attack"]
OPEN = 40
"""Rows that are shown unfolded."""
DRAWN = 40
"""Settings in the picture."""


def attacks(sweep: SweepView, out: Path) -> Section:
    """A row per trial, target and attack; marked where what was sent leaks more than its ceiling allows."""
    found = readings(sweep)
    if found.empty:
        table = "The black-box attack on synthetic rows is under Quality: blackbox/accuracy, beside blackbox/random, "
        table += "which guessing reaches. The ledger's ceiling is not about it."
        return Section([html.paragraph(table)] if "final/eval/blackbox/accuracy" in sweep.runs else [])
    stats = [s for s in dict.fromkeys([*FIRST, *_plain(found)]) if s in found]
    rows = records(found)
    cells = [[*(_text(r[n]) for n in WHO), *(_cell(r, s) for s in stats), number(r["auc_ceiling"])] for r in rows]
    cells = [[*of, "above the ceiling" if r["above_ceiling"] else ""] for of, r in zip(cells, rows, strict=True)]
    header = [*WHO, *(WORDS.get(s, s.replace("_", " ")) for s in stats), "AUC's ceiling", ""]
    marked = [i for i, r in enumerate(rows) if r["above_ceiling"]]
    unknown = "what this target is, is not known here."
    known = [f"{target}: {TARGETS.get(target, unknown)}" for target in found["target"].unique()]
    says = "In square brackets the 95 % interval. The ceiling is the membership AUC that no attack on the uploads can "
    says += f"exceed, of whatever kind; it speaks of {NAMED}. True positive rates have ceilings of their own, at which "
    says += "rows are marked too; under central trust those of global and pool are of what is published. "
    says += f"{SMALL}: too few records for that number."
    above = f"Above their ceiling with their whole interval: {len(marked)}. The accounting or the attack is "
    above += "wrong, or members and others have other labels, for which a trial's own check allows, or it is chance, "
    above += "as in one of forty attacks of a sound trial at most."
    verdict = above if marked else f"No interval of the targets {NAMED} lies above its ceiling."
    grid = html.table(header, cells, name="attacks", marked=marked)
    shown = grid if len(cells) <= OPEN else html.folded(f"{len(cells)} rows", [grid])
    draw(found, path := out / "attacks.png", order=sweep.order)
    picture = html.picture(path.read_bytes(), alt="membership AUC of the strongest attack on each target, by setting")
    blocks = [html.bullets(known), html.paragraph(says, note=True), html.paragraph(verdict), picture, shown]
    return Section(blocks, {"attacks": found})


def draw(found: pd.DataFrame, path: Path, *, order: Sequence[str]) -> None:
    """The strongest attack on each target by setting, mean over seeds with the widest interval, as a PNG: guessing is a
    line at 0.5, and where the ceiling is about the target it is a bar that no attack can pass."""
    strongest = found.sort_values("auc").groupby(["setting", "target", "seed"], dropna=False).tail(1)
    ends = {"low": ("auc_low", "min"), "high": ("auc_high", "max"), "ceiling": ("auc_ceiling", "max")}
    shown = strongest.groupby(["setting", "target"]).agg(auc=("auc", "mean"), **ends).reset_index()
    settings = [name for name in order if name in set(shown["setting"])][:DRAWN]
    targets = [name for name in TARGETS if name in set(shown["target"])]
    targets += sorted(set(shown["target"]) - set(targets))
    figure, ((axes,),) = panels(1, 1, size=(9, 1.2 + 0.17 * len(settings) * len(targets)))
    for i, target in enumerate(targets):
        of = shown[shown["target"] == target].set_index("setting").reindex(settings)
        y = pd.Series([row + 0.7 * (i + 0.5) / len(targets) - 0.35 for row in range(len(settings))], of.index)
        bars = [(of["auc"] - of["low"]).clip(lower=0).fillna(0), (of["high"] - of["auc"]).clip(lower=0).fillna(0)]
        look = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "markersize": 5}
        axes.errorbar(of["auc"], y, xerr=bars, linestyle="none", elinewidth=0.8, label=target, **look)
        if target in CEILED:
            axes.plot(of["ceiling"], y, "|", color=look["color"], markersize=9, mew=2)
    axes.plot([], [], "|", color="black", markersize=9, mew=2, label="its ceiling")
    axes.axvline(0.5, color="0.45", linewidth=0.9, linestyle=(0, (6, 3)), label="guessing")
    axes.set_yticks(range(len(settings)), settings, fontsize=8)
    axes.set_ylim(len(settings) - 0.4, -0.6)
    axes.grid(axis="y", color="0.93", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("membership AUC", fontsize=9)
    legend(figure, [axes], first=targets)
    save(figure, path)


def readings(sweep: SweepView) -> pd.DataFrame:
    """digest, setting, seed, target, attack, every number of the attack, auc_ceiling, above_ceiling."""
    parts = {c: m for c in map(str, sweep.runs) if (m := NAME.fullmatch(c))}
    pairs = dict.fromkeys((m["target"], m["attack"]) for m in parts.values())
    rows: list[Row] = []
    stats = {"auc": "auc_ceiling", **{stat: f"tpr_ceiling_{stat.removeprefix('tpr_')}" for stat in RATES}}
    limits = {target: _limits(sweep, target, stats) for target, _ in pairs}
    for i, run in zip(sweep.runs.index, records(sweep.runs), strict=True):
        of = {"digest": run["digest"], "setting": sweep.settings[i], "seed": sweep.seeds[i]}
        for target, attack in pairs:
            mine = {m["stat"]: run[c] for c, m in parts.items() if (m["target"], m["attack"]) == (target, attack)}
            if any(v is not None for v in mine.values()):
                lows = [(mine.get(f"{stat}_low"), limit[i]) for stat, limit in limits[target].items()]
                above = target in CEILED and any(low is not None and low > most for low, most in lows)
                about = {**of, "target": target, "attack": attack, **mine}
                rows.append({**about, "auc_ceiling": limits[target]["auc"][i], "above_ceiling": bool(above)})
    return pd.DataFrame(rows).sort_values(WHO, ignore_index=True) if rows else pd.DataFrame(rows)


def _limits(sweep: SweepView, target: str, stats: dict[str, str]) -> dict[str, pd.Series]:
    """By statistic the ceiling of attacks on this target in each run: of what is published that of outsiders, where it
    is the lower one."""
    seen = {stat: column(sweep.runs, f"final/privacy/{name}") for stat, name in stats.items()}
    if target == "uploads":
        return seen
    return {stat: column(sweep.runs, f"final/privacy/{stats[stat]}_outsiders").fillna(of) for stat, of in seen.items()}


def _plain(found: pd.DataFrame) -> list[str]:
    """The numbers of an attack that are no interval's bound and not about something else."""
    about = {"digest", *WHO, "auc_ceiling", "above_ceiling", "threshold", "timestep_index"}
    own = (c for c in map(str, found) if c not in about and not c.endswith(("_low", "_high")))
    return [c for c in own if not c.startswith("fpr_reached")]


def _cell(row: Row, stat: str) -> str:
    """`0.512 [0.470 0.554]`, or that there were too few records."""
    if row[stat] is None:
        return SMALL
    low, high = row.get(f"{stat}_low"), row.get(f"{stat}_high")
    interval = "" if low is None or high is None else f" [{number(low)} {number(high)}]"
    return (_text(row[stat]) if stat.startswith("n_") else number(row[stat])) + interval


def _text(value: Any) -> str:
    """A count without decimals."""
    return f"{value:g}" if isinstance(value, float) else str(value)
