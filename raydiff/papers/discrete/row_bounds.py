"""Section of the report about tables: what released rows reveal of the records (pDP)."""

import pandas as pd

from raydiff.papers.discrete.summary import format_bound
from raydiff.report import html
from raydiff.report.load import column
from raydiff.report.sweep_view import SweepView

PDP = {"own": "by each client's own model", "union": "by a model of all tables"}
"""Scope of the per-instance bounds of a trial -> what makes the rows."""
NOTE = (
    "No guarantee: what released rows reveal of a record, given all others (pDP). Where it says nothing, use fewer "
    "bins or columns, release a noisier step (--method.model.release), or take a method with a guarantee for each "
    "record: --method marginals --method.epsilon 1."
)


def show_row_bounds(sweep: SweepView) -> str:
    """Of how many records the per-instance bound says nothing, and what to do then; "" without such bounds."""
    rows = []
    for scope, makers in PDP.items():
        numbers = pd.DataFrame({"setting": sweep.settings.loc[sweep.finished.index], "released rows": makers})
        for name in ("records", "vacuous_share", "largest"):
            numbers[name] = column(sweep.finished, f"final/pdp/{scope}/{name}")
        rows.append(numbers[numbers["records"] > 0])
    table = pd.concat(rows)
    if table.empty:
        return ""
    table["bound of 1 or more: says nothing"] = (table["records"] * table.pop("vacuous_share")).round().astype(int)
    table["largest bound on delta"] = table.pop("largest").map(format_bound)
    return html.render_table(table.astype({"records": int})) + html.paragraph(NOTE)
