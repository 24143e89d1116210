"""Sections of the report: the ledgers, and what the trials cost and how they ended."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from raydiff.formats.json_files import read_json
from raydiff.formats.tables import Table, number, short, size
from raydiff.report import load
from raydiff.report.guarantees import shown
from raydiff.report.html import html, sheet
from raydiff.report.load import column, groups, records
from raydiff.report.sweep_view import Section, SweepView

OPEN = 12  # rows that are shown unfolded
LEDGER_NOTE = (
    "Clients with equal messages and epsilons share a row; what the server published has its own. Local trust holds "
    "against the server, central trust against outsiders only, aggregate trust against a server that sees sums alone."
)


def ledgers(sweep: SweepView, out: Path) -> Section:
    """Who sent what, how many bytes, and which epsilon under which trust model."""
    rows, messages, without = [], [], 0
    for digest, setting in zip(sweep.runs["digest"], sweep.settings, strict=True):
        path = sweep.trial(str(digest)) / "artifacts" / "ledger.json"
        if not path.exists():
            without += 1
            continue
        try:
            tree = read_json(path)
            entries = [dict(zip(tree["columns"], values, strict=True)) for values in tree["data"]]
            rows += [{"digest": digest, "setting": setting, **entry} for entry in entries]
        except (ValueError, KeyError, TypeError) as e:
            messages.append(f"{path} cannot be read: {e}")
    if without:
        messages.append(f"Trials without a ledger, which is written at a trial's end: {without}.")
    blocks = [html.bullets(messages)]
    if not rows:
        return Section(blocks)
    table, cells = pd.DataFrame(rows), []
    for of, group in groups(table, [c for c in map(str, table) if c not in ("client", "bytes")], sort=False):
        values = [value for name, value in of.items() if name.startswith("epsilon_")]
        epsilons = ["no theorem" if value == "None" else shown(float(value)) for value in values]
        first = [of["digest"][:8], of["setting"], str(group["client"].nunique()), of["rounds"], of["events"]]
        cells.append([*first, *epsilons, size(group["bytes"].astype(float).sum())])
    names = [c.replace("epsilon_", "epsilon, ") for c in map(str, table) if c.startswith("epsilon_")]
    header = ["trial", "setting", "clients", "rounds", "events", *names, "bytes"]
    grid = sheet(Table(header, cells, note=LEDGER_NOTE), "ledgers", most=OPEN)
    return Section([*blocks, *grid], {"ledger": table})


def cost(sweep: SweepView, out: Path) -> Section:
    """Seconds and bytes of every trial, how it ended and why."""
    table = ends(sweep)
    total = f"All trials: {table['seconds'].sum() / 3600:.2f} hours and {size(float(table['bytes_up'].sum()))} sent."
    blocks = [html.paragraph(total), html.bullets(load.cut_short(sweep.folder))]
    header = ["trial", "setting", "seed", "outcome", "reason", "epsilon, server", "epsilon, outsiders", "rounds"]
    header += ["seconds", "sent"]
    cells = []
    for row in records(table):
        epsilons = [shown(row[f"epsilon_{view}"]) for view in load.VIEWS]
        reason = "still running, or its process died" if row["outcome"] == "unfinished" else row["reason"] or ""
        first = [row["digest"][:8], row["setting"], short(row["seed"]), row["outcome"], reason, *epsilons]
        cells.append([*first, str(row["rounds"]), number(row["seconds"], 3), size(row["bytes_up"])])
    return Section([*blocks, *sheet(Table(header, cells), "trials", most=OPEN)], {"trials": table})


def ends(sweep: SweepView) -> pd.DataFrame:
    """A row per trial: how it ended, its epsilon against the server and outsiders, rounds recorded, seconds, bytes."""
    runs = sweep.runs
    out = pd.DataFrame({"digest": runs["digest"], "setting": sweep.settings, "seed": sweep.trials["seed"]})
    out = out.assign(outcome=runs["outcome"], reason=runs["reason"])
    for view in load.VIEWS:
        out[f"epsilon_{view}"] = column(runs, f"{view}/epsilon")
    steps = sweep.rounds.groupby("digest")["step"].nunique()
    out["rounds"] = out["digest"].map(steps).fillna(0).astype(int)
    out["seconds"] = column(runs, "final/time/seconds")
    out["bytes_up"] = column(runs, "final/comm/bytes_up")
    out["place"] = out["setting"].map(sweep.order.index)
    return out.sort_values(["place", "seed"], ignore_index=True).drop(columns="place")
