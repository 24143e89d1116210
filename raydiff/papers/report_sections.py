"""Sections of the report that only some sweeps have: paired arms, FedDistr's tables, newcomers, the papers' numbers.

The first three are what `collaboration`, `feddistr` and `newcomers` make of a sweep of their presets.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from raydiff.formats.tables import with_deviation
from raydiff.papers import claims as paper_claims
from raydiff.papers.feddistr import report as feddistr
from raydiff.papers.pfdm import report as collaboration
from raydiff.papers.spire import report as newcomers
from raydiff.report.html import html, sheet
from raydiff.report.load import column
from raydiff.report.sweep_view import Section, SweepView, spoken

REPRODUCE = "reproduce-"
"""How the names of presets begin that reproduce a paper."""
FEDDISTR_PRESET = "feddistr-cifar100"
"""The preset whose data are those of FedDistr's Table 2."""


def studies(sweep: SweepView, out: Path) -> Section:
    """What `collaboration`, `feddistr` and `newcomers` print of such a sweep."""
    blocks = [*_paired(sweep, out), *_feddistr(sweep, out), *_newcomers(sweep)]
    return Section(blocks)


def _paired(sweep: SweepView, out: Path) -> Iterator[str]:
    if "collaboration" not in (sweep.preset or ""):
        return
    found = collaboration.distances(sweep.folders[0])
    table = collaboration.differences(found)
    table.to_csv(out / "paired.csv", index=False)
    collaboration.draw(found, path := out / "paired.png")
    says = "Distance of the minority classes: paired differences, seed by seed, mean and 95 % Student interval, bold "
    says += "where it excludes 0; negative: the first arm is closer to real records. No correction for the number of "
    says += "cells."
    yield html.heading("When does collaboration help?")
    yield html.paragraph(says, note=True)
    yield from sheet(collaboration.shown_table(table), "paired differences")
    yield html.picture(path.read_bytes(), alt="distance of the minority classes over epsilon, by arm")


def _feddistr(sweep: SweepView, out: Path) -> Iterator[str]:
    if (
        "partition.xi" not in sweep.runs
        or len(sweep.folders) > 1
        or column(sweep.finished, "final/eval/accuracy").isna().all()
    ):
        return
    found = feddistr.readings(sweep.runs)
    rows, curve = feddistr.summary(found), feddistr.curves(sweep.rounds)
    table2 = feddistr.convergence(found, curve)
    if sweep.preset != FEDDISTR_PRESET:  # on other data the paper's numbers are not of the same thing
        table2 = table2.assign(paper_rounds=None, paper_parameters=None)
    for table in feddistr.tables(found, rows, feddistr.differences(found), table2):
        yield from sheet(table, "FedDistr's tables")
    for path in sorted(feddistr.draw(rows, found, curve, out)):
        yield html.picture(path.read_bytes(), alt=f"utility loss: {path.stem}")


def _newcomers(sweep: SweepView) -> Iterator[str]:
    if "final/new/kd_cnn/all" not in sweep.finished or len(sweep.folders) > 1:
        return
    found = newcomers.readings(sweep.folders[0])
    first = "SPIRE" if "SPIRE" in set(found["method"]) else str(found["method"].iloc[0])
    yield html.heading("Clients that joined later")
    yield from sheet(newcomers.shown_table(found, newcomers.table(found, first)), "newcomers")


def claims(sweep: SweepView, out: Path) -> Section:
    """Of a sweep that reproduces a paper: a verdict for each of its claims."""
    if not (sweep.preset or "").startswith(REPRODUCE):
        return Section([])
    table = paper_claims.judged(sweep.runs)
    says = "Stated apart from any result. Intervals: Student's at 95 %, paired. Not tested at this scale: the interval "
    says += "holds 0 and its half-width is above the paper's own relative gain."
    blocks = [html.paragraph(says, note=True), *sheet(paper_claims.shown_table(table), "claims")]
    return Section(blocks, {"claims": table})


def papers(sweep: SweepView, out: Path) -> Section:
    """The papers' own numbers beside ours, where preset and data are theirs, with what differs."""
    rows = []
    for entry in paper_claims.rows_of("published"):
        found = paper_claims.values(sweep.finished, entry["ours"], paper_claims.where(entry["config"]))
        if found is None or sweep.preset != entry["preset"]:
            continue
        for setting, values in found["value"].groupby(sweep.settings.loc[found.index]):
            ours = f"{with_deviation(float(values.mean()), float(values.std()))} (n = {len(values)})"
            theirs = [entry[name] for name in ("source", "data", "method", "measure", "value")]
            rows.append([*theirs, str(setting), spoken(entry["ours"]), ours, entry["differs"]])
    if not rows:
        return Section([])
    header = ["source", "data", "the paper's method", "its measure", "its number", "ours", "our measure", "our number"]
    says = "A paper's number stands beside ours only where preset and data are those it speaks of. None of the pairs "
    says += "is the same experiment: read the last column first."
    names = ["source", "data", "method", "measure", "value", "setting", "our_measure", "our_value", "differs"]
    grid = html.table([*header, "what differs"], rows, name="the papers' numbers")
    return Section([html.paragraph(says, note=True), grid], {"published": pd.DataFrame(rows, columns=names)})
