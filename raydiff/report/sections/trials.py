"""Sections of the report: the ledgers, and what the trials cost and how they ended."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pandas as pd

from raydiff.experiment import tracking
from raydiff.report import html, load
from raydiff.report.frontier.table import column, records
from raydiff.report.frontier.text import number, short, shown_epsilon, size
from raydiff.report.sweep import Section, Sweep

OPEN = 12
"""Trials whose ledgers are shown unfolded."""
STILL_S = 2.0
"""Seconds between two rounds that a trial did not work, beyond which it was interrupted."""


# -------------------------------------------------------------------------------------------------- the ledgers


def ledgers(sweep: Sweep, out: Path) -> Section:
    """Who sent what, how many bytes, and which epsilon under which trust."""
    rows, without, damaged = [], 0, []
    for digest, setting in zip(sweep.runs["digest"], sweep.settings, strict=True):
        path = sweep.folder / "trials" / str(digest) / "artifacts" / "ledger.json"
        if not path.exists():
            without += 1
            continue
        try:
            tree = json.loads(path.read_text())
            entries = [dict(zip(tree["columns"], values, strict=True)) for values in tree["data"]]
            rows += [{"digest": digest, "setting": setting, **entry} for entry in entries]
        except (ValueError, KeyError, TypeError) as e:
            damaged.append(f"{path} cannot be read: {e}")
    blocks = [html.bullets(damaged)]
    if without:
        blocks.append(html.paragraph(f"Trials without a ledger, which is written at a trial's end: {without}."))
    if not rows:
        return Section("Ledgers", [*blocks, html.paragraph("There is no ledger to show.")])
    found = pd.DataFrame(rows)
    says = "Clients whose messages and epsilons are equal share a row. The events say unit, relation and trust: local "
    says += (
        "trust holds against the server, central trust against outsiders only. Client -1 is what the server published."
    )
    cells = _grouped(found)
    accountants = [c for c in map(str, found) if c.startswith("epsilon_")]
    names = [f"epsilon, {c.removeprefix('epsilon_')}" for c in accountants]
    header = ["trial", "setting", "clients", "rounds", "events", *names, "bytes"]
    grid = html.table(header, cells, name="ledgers")
    blocks += [
        html.paragraph(says, note=True),
        grid if len(sweep.runs) <= OPEN else html.folded(f"{len(cells)} rows", [grid]),
    ]
    return Section("Ledgers", blocks, {"ledger": found})


def _grouped(found: pd.DataFrame) -> list[list[str]]:
    alike = [c for c in map(str, found) if c not in ("client", "bytes")]
    rows = []
    for key, own in found.groupby(alike, sort=False, dropna=False):
        of: dict[str, Any] = dict(zip(alike, key, strict=True))
        sent = own["bytes"].astype(float).sum()
        epsilons = [_epsilon(of[c]) for c in alike if c.startswith("epsilon_")]
        clients = _ranges(sorted(own["client"].astype(int)))
        rows.append([of["digest"][:8], of["setting"], clients, of["rounds"], of["events"], *epsilons, size(sent)])
    return rows


def _epsilon(text: str) -> str:
    return "no theorem" if text == "None" else shown_epsilon(float(text))


def _ranges(numbers: list[int]) -> str:
    """`0 to 3, 7`."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(f"{r[0]} to {r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)


# ------------------------------------------------------------------------------------------------ cost and ends


def cost(sweep: Sweep, out: Path) -> Section:
    """Seconds and bytes of every trial, how it ended and why, and how often it was interrupted."""
    found = ends(sweep)
    hours = found["seconds"].sum() / 3600
    sums = f"Together {hours:.2f} hours of trials and {size(float(found['bytes_up'].sum()))} sent."
    bad = found[found["outcome"].isin(["failed", "killed", "unfinished"])]
    blocks = [html.paragraph(sums)]
    resumed = found[found["interruptions"] > 0]
    still = "An interruption: between two rounds the clock went on and the trial did not, so it died and was continued "
    still += "from its last commit. One before the first round's end leaves no trace here."
    words = f"{len(resumed)} trials were interrupted and continued, {found['interruptions'].sum()} times in all."
    blocks.append(html.paragraph(words if len(resumed) else "No trial was seen to be interrupted and continued."))
    blocks.append(html.paragraph(still, note=True))
    if unread := load.cut_short(sweep.folder):
        blocks.append(html.bullets(unread))
    if len(bad):
        lines = [f"{r['outcome']}: {r['setting']} ({r['digest'][:8]}): {_why(r)}" for r in records(bad)]
        blocks += [html.heading("Trials without final numbers"), html.bullets(lines[:OPEN])]
        blocks += [html.folded(f"{len(lines) - OPEN} more", [html.bullets(lines[OPEN:])])] if lines[OPEN:] else []
    header = ["trial", "setting", "seed", "outcome", "reason", "epsilon, server", "epsilon, outsiders", "rounds",
              "seconds", "sent", "interruptions"]  # fmt: skip
    cells = [
        [
            r["digest"][:8],
            r["setting"],
            short(r["seed"]),
            r["outcome"],
            r["reason"] or "",
            *(shown_epsilon(r[f"epsilon_{view}"]) for view in load.VIEWS),
            str(r["rounds"]),
            number(r["seconds"], 3),
            size(r["bytes_up"]),
            str(r["interruptions"]),
        ]
        for r in records(found)
    ]
    grid = html.table(header, cells, name="trials")
    blocks.append(grid if len(cells) <= OPEN else html.folded(f"all {len(cells)} trials", [grid]))
    return Section("Cost, failures and resumes", blocks, {"trials": found})


def ends(sweep: Sweep) -> pd.DataFrame:
    """A row per trial: how it ended, its epsilon against the server and outsiders, rounds recorded, seconds, bytes."""
    out = pd.DataFrame({"digest": sweep.runs["digest"], "setting": sweep.settings, "seed": sweep.trials["seed"]})
    out = out.assign(outcome=sweep.runs["outcome"], reason=sweep.runs["reason"])
    for view in load.VIEWS:
        out[f"epsilon_{view}"] = column(sweep.runs, f"{view}/epsilon")
    steps = sweep.rounds.groupby("digest")["step"].nunique()
    out["rounds"] = out["digest"].map(steps).fillna(0).astype(int)
    out["seconds"] = column(sweep.runs, "final/time/seconds")
    out["bytes_up"] = column(sweep.runs, "final/comm/bytes_up")
    out["interruptions"] = [_interruptions(sweep.folder / "trials" / str(d)) for d in out["digest"]]
    return _in_order(sweep, out)


def _in_order(sweep: Sweep, trials: pd.DataFrame) -> pd.DataFrame:
    place = trials["setting"].map({words: i for i, words in enumerate(sweep.order)})
    return trials.assign(place=place).sort_values(["place", "seed"], ignore_index=True).drop(columns="place")


def _interruptions(folder: Path) -> int:
    lines: list[dict[str, Any]] = tracking.read_lines(folder / "metrics.jsonl")
    pairs = [(a, b) for a, b in itertools.pairwise(lines) if "time" in a and {"time", "time/seconds"} <= {*b}]
    return sum(b["time"] - a["time"] - b["time/seconds"] > STILL_S for a, b in pairs)


def _why(row: dict[str, Any]) -> str:
    if row["outcome"] == "unfinished":
        return f"still running, or its process ended without a word; {row['rounds']} rounds recorded"
    return str(row["reason"] or "no reason recorded")
