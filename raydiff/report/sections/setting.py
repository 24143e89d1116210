"""Sections of the report: what was run, and the frontier with epsilon, per trial and composed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from raydiff.formats.json_files import read_json
from raydiff.formats.tables import short
from raydiff.report import guarantees
from raydiff.report.frontier import rows, text
from raydiff.report.html import html
from raydiff.report.sweep_view import Section, SweepView

LISTED = 12  # values of a field; of more, their number


def what_was_run(sweep: SweepView, out: Path) -> Section:
    """What varies among the trials, and folded, what does not."""
    counts = sweep.runs["outcome"].value_counts()
    planned = max(len(sweep.about.get("trials", ())), len(sweep.runs))
    count = f"{len(sweep.runs)} of {planned} trials: {', '.join(f'{n} {o}' for o, n in counts.items())}."
    blocks = [html.paragraph(count), html.bullets([sweep.origin])]
    if address := sweep.about.get("opened_by"):
        blocks.append(html.linked(f"Its runs in MLflow: {address}"))
    blocks.append(html.bullets([f"tuned: {line}" for line in sweep.about.get("tuned", ())]))
    names = {"method": "method", **sweep.fields, **({"seed": "seed"} if "seed" in sweep.runs else {})}
    values = {path: sweep.trials[name].dropna() for path, name in names.items()}
    varied = [[path, _listed(of), str(len(of))] for path, of in values.items() if of.nunique() > 1]
    table = html.table(["field", "values", "trials that have it"], varied, name="what varies")
    blocks.append(table if varied else html.paragraph("Nothing varies: there is one setting and one seed."))
    listed = ("digest", "outcome", "reason", *sweep.fields)
    config = [c for c in map(str, sweep.runs) if "/" not in c and c not in listed and sweep.runs[c].nunique() == 1]
    common = [[path, str(sweep.runs[path].dropna().iloc[0])] for path in config]
    grid = html.table(["field", "value"], common, name="what is common")
    blocks.append(html.folded(f"{len(common)} fields that do not vary among the trials that have them", [grid]))
    return Section(blocks, {"runs": sweep.runs})


def _listed(values: pd.Series) -> str:
    """The values in order; of many, the first few and how many there are."""
    ordered = sorted(values.unique(), key=lambda v: (isinstance(v, str), v))
    return ", ".join(map(short, ordered[:LISTED])) + f", … ({len(ordered)} values)" * (len(ordered) > LISTED)


def frontier(sweep: SweepView, out: Path) -> Section:
    """The frontier's table, what its numbers mean, and the epsilon of all trials composed."""
    table = sweep.frontier
    done, others = table[table["outcome"].isin(rows.DONE)], table[~table["outcome"].isin(rows.DONE)]
    blocks = []
    if len(done):
        header, cells = zip(*text.columns_of(done), strict=True)
        grid = html.table(header, list(zip(*cells, strict=True)), name="the frontier")
        blocks += [grid, html.bullets(text.meanings(done), note=True)]
    else:
        blocks.append(html.paragraph("No trial finished or was stopped with results: there is no frontier."))
    if len(others):
        blocks += [html.heading("Settings without a row"), html.bullets(text.without_row(others))]
    blocks += [html.heading("All trials composed"), *composed(sweep)]
    return Section(blocks, {"frontier": guarantees.flat(table)})


def composed(sweep: SweepView) -> Iterator[str]:
    """The epsilon of the sweep, as computed at its end."""
    yield html.paragraph("All trials ran on the same records, so their epsilons add up.", note=True)
    path = sweep.folder / "composed.json"
    if not path.exists():
        yield html.paragraph("The composed epsilon was not computed: raydiff sweep does so at its end.")
        return
    end = read_json(path)
    yield html.bullets(end["text"])
    if missing := len(set(sweep.runs["digest"]) - set(end["trials"])):
        yield html.paragraph(f"That leaves out {missing} of {len(sweep.runs)} trials, which came later.")
