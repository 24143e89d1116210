"""Section of the report about tables: what released rows reveal of the records (pDP)."""

from __future__ import annotations

from pathlib import Path

from raydiff.formats.tables import Table
from raydiff.papers.discrete.summary import shown
from raydiff.report.html import sheet
from raydiff.report.load import column
from raydiff.report.sweep_view import Section, SweepView

PDP = {"own": "by each client's own model", "union": "by a model of all tables"}
"""Scope of the per-instance bounds of a trial -> what makes the rows."""


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
