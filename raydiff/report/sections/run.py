"""Sections of the report: what was run, and the frontier with epsilon, per trial and composed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from raydiff.report import html
from raydiff.report.frontier.kinds import spread
from raydiff.report.frontier.plot import drawable, plot
from raydiff.report.frontier.table import DONE, ranked_by, table
from raydiff.report.frontier.text import cells_of, floor_cells, meanings, short, without_row
from raydiff.report.sweep import Section, Sweep

SHOWN = 12
"""Values of a field that are listed; of more, how many there are."""


def what_was_run(sweep: Sweep, out: Path) -> Section:
    """What varies among the trials, and folded, what does not."""
    counts = sweep.runs["outcome"].value_counts()
    planned = len(sweep.about.get("trials", ()))
    blocks = [html.paragraph(f"{len(sweep.runs)} trials: {', '.join(f'{n} {o}' for o, n in counts.items())}.")]
    if planned > len(sweep.runs):
        blocks.append(html.paragraph(f"{planned - len(sweep.runs)} of {planned} planned trials have not begun."))
    if command := sweep.about.get("command"):
        blocks.append(html.paragraph(f"Preset {sweep.preset}, by: python {' '.join(command)}"))
    else:
        blocks.append(html.paragraph("Which command made it was not recorded: there is no sweep.json."))
    varied = _varied(sweep)
    if varied:
        blocks.append(html.table(["field", "values", "trials that have it"], varied, name="what varies"))
    else:
        blocks.append(html.paragraph("Nothing varies: there is one setting and one seed."))
    common = _common(sweep)
    grid = html.table(["field", "value"], common, name="what is common")
    blocks.append(html.folded(f"{len(common)} fields that do not vary among the trials that have them", [grid]))
    return Section("What was run", blocks, {"runs": sweep.runs})


def _varied(sweep: Sweep) -> list[list[str]]:
    rows = []
    names = {"method": "method", **sweep.fields, **({"seed": "seed"} if "seed" in sweep.runs else {})}
    for path, name in names.items():
        values = sweep.trials[name].dropna()
        if values.nunique() > 1:
            rows.append([path, _listed(values), str(len(values))])
    return rows


def _listed(values: pd.Series) -> str:
    """The values in order; of many, the first few and how many there are."""
    known = sorted(values.unique(), key=lambda v: (isinstance(v, str), v))
    few = ", ".join(short(v) for v in known[:SHOWN])
    return few if len(known) <= SHOWN else f"{few}, … ({len(known)} values)"


def _common(sweep: Sweep) -> list[list[str]]:
    varied = {"digest", "outcome", "reason", *sweep.fields}
    rows = []
    for path in (c for c in map(str, sweep.runs) if "/" not in c and c not in varied):
        values = sweep.runs[path].dropna().unique()
        if len(values) == 1:
            rows.append([path, str(values[0])])
    return rows


# ----------------------------------------------------------------------------------------------- the frontier


def frontier(sweep: Sweep, out: Path) -> Section:
    """The frontier's plot and table, what its numbers mean, and the epsilon of all trials composed."""
    rows = table(sweep.runs)
    done, others = rows[rows["outcome"].isin(DONE)], rows[~rows["outcome"].isin(DONE)]
    blocks = []
    if ranked_by(drawable(rows)) is not None:
        plot(sweep.runs, out / "frontier.png")
        blocks.append(html.picture_of(out / "frontier.png", alt="feature distance over epsilon; stopped trials hollow"))
    else:
        blocks.append(html.paragraph("There is no plot: no trial has a feature distance."))
    if len(done):
        columns = [c for c in cells_of(done) if set(c[2]) != {"-"}]
        header = [_title(above, name) for above, name, _ in columns]
        below = floor_cells(done, columns)
        lines = list(zip(*([*c[2], *floors] for c, floors in zip(columns, below, strict=True)), strict=True))
        blocks += [html.table(header, lines, name="the frontier"), html.bullets(meanings(done), note=True)]
    else:
        blocks.append(html.paragraph("No trial finished or was stopped with results: there is no frontier."))
    if "outcome/remark" in sweep.runs:
        blocks.append(html.bullets(sorted(sweep.runs["outcome/remark"].dropna().unique()), note=True))
    if len(others):
        blocks += [html.heading("Settings without a row"), html.bullets(without_row(others))]
    blocks += [html.heading("All trials together"), *composed(sweep)]
    return Section("Frontier", blocks, {"frontier": spread(rows)})


def _title(above: str, name: str) -> str:
    return above + name if above.endswith(".") else f"{above} {name}".strip()


def composed(sweep: Sweep) -> Iterator[str]:
    """The epsilon of the sweep: as its end computed it, else what follows without an accountant."""
    path, found = sweep.folder / "composed.json", None
    if path.exists():
        found = json.loads(path.read_text())
        covered = set(found["trials"])
        yield html.bullets(found["says"])
        if missing := len(set(sweep.runs["digest"]) - covered):
            yield html.paragraph(f"That leaves out {missing} of {len(sweep.runs)} trials, which came later.")
    yield html.paragraph("All trials ran on the same records, so together they have spent more than each.", note=True)
    if found:
        return
    known = sweep.runs.get("server/epsilon", pd.Series(dtype=float)).dropna().astype(float)
    if (known == math.inf).any():
        yield html.paragraph("Composed, epsilon is inf against the server: that of a trial is.")
    elif (known > 0).any():
        yield html.paragraph("Composed, epsilon was not computed: the end of raydiff sweep does that.")
    else:
        yield html.paragraph("No trial has sent anything that was recorded: there is nothing to compose.")
