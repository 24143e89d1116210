"""Sections of the report: what was run, and the frontier with epsilon, per trial and composed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from raydiff.formats.json_files import read_json
from raydiff.formats.tables import short
from raydiff.report.frontier.kinds import spread
from raydiff.report.frontier.rows import DONE
from raydiff.report.frontier.rows import frontier as rows_of
from raydiff.report.frontier.scatter import draw, drawable
from raydiff.report.frontier.text import columns_of, meanings, without_row
from raydiff.report.html import html
from raydiff.report.load import column
from raydiff.report.sweep_view import Section, SweepView, made_by

SHOWN = 12
"""Values of a field that are listed; of more, how many there are."""


def what_was_run(sweep: SweepView, out: Path) -> Section:
    """What varies among the trials, and folded, what does not."""
    counts = sweep.runs["outcome"].value_counts()
    planned = len(sweep.about.get("trials", ()))
    blocks = [html.paragraph(f"{len(sweep.runs)} trials: {', '.join(f'{n} {o}' for o, n in counts.items())}.")]
    if planned > len(sweep.runs):
        blocks.append(html.paragraph(f"{planned - len(sweep.runs)} of {planned} planned trials have not begun."))
    if len(sweep.folders) > 1:
        blocks.append(html.bullets(sweep.about["made"]))
    else:
        blocks.append(html.paragraph(made_by(sweep)))
        blocks += [html.linked(f"Its runs in MLflow: {opened}") for opened in [sweep.about.get("opened_by")] if opened]
    blocks.append(html.bullets([f"tuned: {line}" for line in sweep.about.get("tuned", ())]))
    names = {"method": "method", **sweep.fields, **({"seed": "seed"} if "seed" in sweep.runs else {})}
    found = {path: sweep.trials[name].dropna() for path, name in names.items()}
    if varied := [[path, _listed(of), str(len(of))] for path, of in found.items() if of.nunique() > 1]:
        blocks.append(html.table(["field", "values", "trials that have it"], varied, name="what varies"))
    else:
        blocks.append(html.paragraph("Nothing varies: there is one setting and one seed."))
    others = {"digest", "outcome", "reason", *sweep.fields}
    values = {c: sweep.runs[c].dropna().unique() for c in map(str, sweep.runs) if "/" not in c and c not in others}
    common = [[path, str(of[0])] for path, of in values.items() if len(of) == 1]
    grid = html.table(["field", "value"], common, name="what is common")
    blocks.append(html.folded(f"{len(common)} fields that do not vary among the trials that have them", [grid]))
    return Section(blocks, {"runs": sweep.runs})


def _listed(values: pd.Series) -> str:
    """The values in order; of many, the first few and how many there are."""
    known = sorted(values.unique(), key=lambda v: (isinstance(v, str), v))
    few = ", ".join(short(v) for v in known[:SHOWN])
    return few if len(known) <= SHOWN else f"{few}, … ({len(known)} values)"


# ----------------------------------------------------------------------------------------------- the frontier


def frontier(sweep: SweepView, out: Path) -> Section:
    """The frontier's plot and table, what its numbers mean, and the epsilon of all trials composed."""
    rows = rows_of(sweep.runs)
    done, others = rows[rows["outcome"].isin(DONE)], rows[~rows["outcome"].isin(DONE)]
    blocks = [html.paragraph("There is no plot: no trial has a feature distance.")]
    if drawable(rows):
        spots = draw(rows, path := out / "frontier.png")
        says = "feature distance over epsilon; stopped trials hollow"
        blocks = [html.picture(path.read_bytes(), alt=says, spots=spots)]
    if len(done):
        columns = columns_of(done)
        header = [above + name if above.endswith(".") else f"{above} {name}".strip() for above, name, _ in columns]
        lines = list(zip(*(cells for *_, cells in columns), strict=True))
        blocks += [html.table(header, lines, name="the frontier"), html.bullets(meanings(done), note=True)]
    else:
        blocks.append(html.paragraph("No trial finished or was stopped with results: there is no frontier."))
    if len(others):
        blocks += [html.heading("Settings without a row"), html.bullets(without_row(others))]
    if len(sweep.folders) == 1:
        blocks += [html.heading("All trials together"), *composed(sweep)]
    return Section(blocks, {"frontier": spread(rows)})


def composed(sweep: SweepView) -> Iterator[str]:
    """The epsilon of the sweep: as its end computed it, else what follows without an accountant."""
    path = sweep.folders[0] / "composed.json"
    if found := read_json(path) if path.exists() else None:
        yield html.bullets(found["says"])
        if missing := len(set(sweep.runs["digest"]) - set(found["trials"])):
            yield html.paragraph(f"That leaves out {missing} of {len(sweep.runs)} trials, which came later.")
    yield html.paragraph("All trials ran on the same records, so together they have spent more than each.", note=True)
    if found:
        return
    known = column(sweep.runs, "server/epsilon")
    if (known == math.inf).any():
        yield html.paragraph("Composed, epsilon is inf against the server: that of a trial is.")
    elif (known > 0).any():
        yield html.paragraph("Composed, epsilon was not computed: the end of raydiff sweep does that.")
    else:
        yield html.paragraph("No trial has sent anything that was recorded: there is nothing to compose.")
