"""Sections of the report about papers: their tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from raydiff.formats.tables import Table
from raydiff.papers.discrete.summary import shown
from raydiff.papers.feddistr import report as feddistr
from raydiff.papers.feddistr.loss_plots import draw
from raydiff.papers.spire import report as unseen
from raydiff.report.html import html, sheet
from raydiff.report.load import column
from raydiff.report.sweep_view import Section, SweepView

PDP = {"own": "by each client's own model", "union": "by a model of all tables"}
"""Scope of the per-instance bounds of a trial -> what makes the rows."""


def studies(sweep: SweepView, out: Path) -> Section:
    """The tables of `feddistr` and `newcomers`, each where the sweep has its data."""
    return Section([*_feddistr(sweep, out), *_unseen_clients(sweep)])


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
