"""Sections of the report: the ledgers, and what the trials cost and how they ended."""

from __future__ import annotations

import itertools
from pathlib import Path

import pandas as pd

from raydiff.formats import json_files as files
from raydiff.formats.tables import number, short, size, span
from raydiff.report import load
from raydiff.report.frontier.kinds import shown
from raydiff.report.html import html
from raydiff.report.load import Row, column, groups, records
from raydiff.report.sweep_view import Section, SweepView

OPEN = 12
"""Trials whose ledgers are shown unfolded."""
STILL_S = 2.0
"""Seconds between two rounds that a trial did not work, beyond which it was interrupted."""


# -------------------------------------------------------------------------------------------------- the ledgers


def ledgers(sweep: SweepView, out: Path) -> Section:
    """Who sent what, how many bytes, and which epsilon under which trust."""
    rows, without, damaged = [], 0, []
    for digest, setting in zip(sweep.runs["digest"], sweep.settings, strict=True):
        path = sweep.trial(str(digest)) / "artifacts" / "ledger.json"
        if not path.exists():
            without += 1
            continue
        try:
            tree = files.read_json(path)
            entries = [dict(zip(tree["columns"], values, strict=True)) for values in tree["data"]]
            rows += [{"digest": digest, "setting": setting, **entry} for entry in entries]
        except (ValueError, KeyError, TypeError) as e:
            damaged.append(f"{path} cannot be read: {e}")
    blocks = [html.bullets(damaged)]
    if without:
        blocks.append(html.paragraph(f"Trials without a ledger, which is written at a trial's end: {without}."))
    if not rows:
        return Section([*blocks, html.paragraph("There is no ledger to show.")])
    found = pd.DataFrame(rows)
    says = "Clients whose messages and epsilons are equal share a row. The events say unit, relation and trust: local "
    says += "trust holds against the server, central trust against outsiders only, aggregate trust against the server "
    says += "where it sees sums alone. "
    says += "Client -1 is what the server published."
    cells = _grouped(found)
    names = [c.replace("epsilon_", "epsilon, ") for c in map(str, found) if c.startswith("epsilon_")]
    header = ["trial", "setting", "clients", "rounds", "events", *names, "bytes"]
    grid = html.table(header, cells, name="ledgers")
    few = len(sweep.runs) <= OPEN
    blocks += [html.paragraph(says, note=True), grid if few else html.folded(f"{len(cells)} rows", [grid])]
    return Section(blocks, {"ledger": found})


def _grouped(found: pd.DataFrame) -> list[list[str]]:
    alike = [c for c in map(str, found) if c not in ("client", "bytes")]
    rows = []
    for of, own in groups(found, alike, sort=False):
        sent, clients = own["bytes"].astype(float).sum(), _ranges(sorted(own["client"].astype(int)))
        known = [text for c, text in of.items() if c.startswith("epsilon_")]
        epsilons = ["no theorem" if text == "None" else shown(float(text)) for text in known]
        rows.append([of["digest"][:8], of["setting"], clients, of["rounds"], of["events"], *epsilons, size(sent)])
    return rows


def _ranges(numbers: list[int]) -> str:
    """`0 to 3, 7`."""
    runs = itertools.groupby(enumerate(numbers), lambda at: at[1] - at[0])
    return ", ".join(span(n for _, n in run) for _, run in runs)


# ------------------------------------------------------------------------------------------------ cost and ends


def cost(sweep: SweepView, out: Path) -> Section:
    """Seconds and bytes of every trial, how it ended and why, and how often it was interrupted."""
    found = ends(sweep)
    hours = found["seconds"].sum() / 3600
    sums = f"Together {hours:.2f} hours of trials and {size(float(found['bytes_up'].sum()))} sent."
    bad, resumed = found[found["outcome"].isin(["failed", "killed", "unfinished"])], found[found["interruptions"] > 0]
    words = f"{len(resumed)} trials were interrupted and continued, {found['interruptions'].sum()} times in all."
    words = words if len(resumed) else "No trial was seen to be interrupted and continued."
    still = "An interruption: between two rounds the clock went on and the trial did not, so it died and was continued "
    still += "from its last commit. One before the first round's end leaves no trace here."
    blocks = [html.paragraph(sums), html.paragraph(words), html.paragraph(still, note=True)]
    if unread := [line for folder in sweep.folders for line in load.cut_short(folder)]:
        blocks.append(html.bullets(unread))
    if len(bad):
        still = "still running, or its process ended without a word; {rounds} rounds recorded"
        lines = []
        for r in records(bad):
            why = still.format(**r) if r["outcome"] == "unfinished" else r["reason"] or "no reason recorded"
            lines.append(f"{r['outcome']}: {r['setting']} ({r['digest'][:8]}): {why}")
        blocks += [html.heading("Trials without final numbers"), html.bullets(lines[:OPEN])]
        blocks += [html.folded(f"{len(lines) - OPEN} more", [html.bullets(lines[OPEN:])])] if lines[OPEN:] else []
    header = ["trial", "setting", "seed", "outcome", "reason", "epsilon, server", "epsilon, outsiders", "rounds"]
    header += ["seconds", "sent", "interruptions"]
    cells = []
    for r in records(found):
        epsilons = [shown(r[f"epsilon_{view}"]) for view in load.VIEWS]
        of = [r["digest"][:8], r["setting"], short(r["seed"]), r["outcome"], r["reason"] or "", *epsilons]
        cells.append([*of, str(r["rounds"]), number(r["seconds"], 3), size(r["bytes_up"]), str(r["interruptions"])])
    grid = html.table(header, cells, name="trials")
    blocks.append(grid if len(cells) <= OPEN else html.folded(f"all {len(cells)} trials", [grid]))
    return Section(blocks, {"trials": found})


def ends(sweep: SweepView) -> pd.DataFrame:
    """A row per trial: how it ended, its epsilon against the server and outsiders, rounds recorded, seconds, bytes."""
    out = pd.DataFrame({"digest": sweep.runs["digest"], "setting": sweep.settings, "seed": sweep.trials["seed"]})
    out = out.assign(outcome=sweep.runs["outcome"], reason=sweep.runs["reason"])
    for view in load.VIEWS:
        out[f"epsilon_{view}"] = column(sweep.runs, f"{view}/epsilon")
    steps = sweep.rounds.groupby("digest")["step"].nunique()
    out["rounds"] = out["digest"].map(steps).fillna(0).astype(int)
    out["seconds"] = column(sweep.runs, "final/time/seconds")
    out["bytes_up"] = column(sweep.runs, "final/comm/bytes_up")
    out["interruptions"] = [_interruptions(sweep.trial(str(d))) for d in out["digest"]]
    out["place"] = out["setting"].map(sweep.order.index)
    return out.sort_values(["place", "seed"], ignore_index=True).drop(columns="place")


def _interruptions(folder: Path) -> int:
    lines: list[Row] = files.read_lines(folder / "metrics.jsonl")
    pairs = [(a, b) for a, b in itertools.pairwise(lines) if "time" in a and {"time", "time/seconds"} <= {*b}]
    return sum(b["time"] - a["time"] - b["time/seconds"] > STILL_S for a, b in pairs)
