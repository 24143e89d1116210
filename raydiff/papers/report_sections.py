"""Sections of the report about papers: their tables, claims and published numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from raydiff.formats.tables import Table, with_deviation
from raydiff.papers import claims as paper_claims
from raydiff.papers.discrete.summary import shown
from raydiff.papers.feddistr import report as feddistr
from raydiff.papers.feddistr.loss_plots import draw
from raydiff.papers.pfdm import report as collaboration
from raydiff.papers.spire import report as unseen
from raydiff.report.html import html, sheet
from raydiff.report.load import column
from raydiff.report.sweep_view import Section, SweepView, short_column

PDP = {"own": "by each client's own model", "union": "by a model of all tables"}
"""Scope of the per-instance bounds of a trial -> what makes the rows."""


def studies(sweep: SweepView, out: Path) -> Section:
    """The tables of `collaboration`, `feddistr` and `newcomers`, each where the sweep has its data."""
    return Section([*_collaboration(sweep, out), *_feddistr(sweep, out), *_unseen_clients(sweep)])


def _collaboration(sweep: SweepView, out: Path) -> Iterator[str]:
    if "collaboration" not in (sweep.preset or ""):
        return
    distances = collaboration.distances(sweep.folder)
    collaboration.draw(distances, path := out / "paired.png")
    note = "Distance of the minority classes: paired differences, seed by seed, mean and 95 % Student interval, bold "
    note += "where it excludes 0; negative: the first arm is closer to real records. No correction for their number."
    yield html.heading("When does collaboration help?")
    table = collaboration.shown_table(collaboration.differences(distances))
    yield from sheet(table._replace(note=note), "paired differences")
    yield html.picture(path.read_bytes(), alt="distance of the minority classes over epsilon, by arm")


def _feddistr(sweep: SweepView, out: Path) -> Iterator[str]:
    if "partition.xi" not in sweep.runs or column(sweep.finished, "final/eval/accuracy").isna().all():
        return
    readings = feddistr.readings(sweep.runs)
    rows, table2 = feddistr.summary(readings), feddistr.convergence(readings)
    if sweep.preset != "feddistr-cifar100":  # The paper's numbers in Table 2 are of those data.
        table2 = table2.assign(paper_rounds=None, paper_parameters=None)
    for table in feddistr.tables(readings, rows, feddistr.differences(readings), table2):
        yield from sheet(table, "FedDistr's tables")
    for path in draw(rows, out):
        yield html.picture(path.read_bytes(), alt=f"utility loss: {path.stem}")


def _unseen_clients(sweep: SweepView) -> Iterator[str]:
    if "final/new/kd_cnn/all" not in sweep.finished:
        return
    readings = unseen.readings(sweep.folder)
    first = "SPIRE" if "SPIRE" in set(readings["method"]) else str(readings["method"].iloc[0])
    yield html.heading("Clients that joined later")
    yield from sheet(unseen.shown_table(readings, unseen.table(readings, first)), "newcomers")


def claims(sweep: SweepView, out: Path) -> Section:
    """Of a sweep that reproduces a paper: a verdict for each of its claims."""
    if not (sweep.preset or "").startswith("reproduce-"):
        return Section([])
    table = paper_claims.judged(sweep.runs)
    note = "Intervals: Student's at 95 %, paired. Not tested at this scale: the interval holds 0 and its half-width is "
    note += "above the paper's relative gain."
    return Section([*sheet(paper_claims.shown_table(table)._replace(note=note), "claims")], {"claims": table})


def row_bounds(sweep: SweepView, out: Path) -> Section:
    """Of tables: of how many records the per-instance bound says nothing, and what to do then."""
    rows = []
    for scope, makers in PDP.items():
        of_runs = [column(sweep.finished, f"final/pdp/{scope}/{n}") for n in ("records", "vacuous_share", "largest")]
        for i, records, vacuous, largest in zip(sweep.finished.index, *of_runs, strict=True):
            if records > 0:
                rows.append([sweep.settings[i], makers, f"{records:g}", f"{records * vacuous:.0f}", shown(largest)])
    if not rows:
        return Section([])
    header = ["setting", "released rows", "records", "bound of 1 or more: says nothing", "largest bound on delta"]
    note = "No guarantee: what released rows reveal of a record, given all others (pDP). Where it says nothing, use "
    note += "fewer bins or columns, release a noisier step (--method.model.release), or take a method with a "
    note += "guarantee for each record: --method marginals --method.epsilon 1."
    return Section([*sheet(Table(header, rows, note=note), "bounds per record")])


def papers(sweep: SweepView, out: Path) -> Section:
    """The papers' numbers beside ours, where preset and data are theirs, with what differs."""
    rows = []
    for entry in paper_claims.rows_of("published"):
        trials = paper_claims.values(sweep.finished, entry["ours"], paper_claims.where(entry["config"]))
        if trials is None or sweep.preset != entry["preset"]:
            continue
        theirs = [entry[name] for name in ("source", "data", "method", "measure", "value")]
        for setting, values in trials["value"].groupby(sweep.settings.loc[trials.index]):
            ours = f"{with_deviation(float(values.mean()), float(values.std()))} (n = {len(values)})"
            rows.append([*theirs, str(setting), short_column(entry["ours"]), ours, entry["differs"]])
    if not rows:
        return Section([])
    header = ["source", "data", "the paper's method", "its measure", "its number", "ours", "our measure", "our number"]
    names = ["source", "data", "method", "measure", "value", "setting", "our_measure", "our_value", "differs"]
    note = "None of the pairs is the same experiment: read the last column first."
    table = Table([*header, "what differs"], rows, note=note)
    return Section([*sheet(table, "published numbers")], {"published": pd.DataFrame(rows, columns=names)})
