"""A sweep as one HTML page that opens offline, and its tables as CSV and parquet.

    raydiff report SWEEP [--out DIR]     writes report.html and the tables into DIR (default: SWEEP/report)

A section without data (an attack, a second seed) is left out. A sweep may still be running.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from raydiff import lookup
from raydiff.formats.csv_files import write_csv
from raydiff.report import load
from raydiff.report.html import html
from raydiff.report.sections.attacks import attacks
from raydiff.report.sections.conclusion import conclusion
from raydiff.report.sections.quality import quality, seeds
from raydiff.report.sections.samples import samples
from raydiff.report.sections.setting import frontier, what_was_run
from raydiff.report.sections.trials import cost, ledgers
from raydiff.report.sweep_view import Section, SweepView, open_sweep

SECTIONS: lookup.Door[Callable[[SweepView, Path], Section]] = lookup.Door(
    "section",
    {
        "What came out": conclusion,
        "Samples": samples,
        "What released rows reveal": "raydiff.papers.discrete.row_bounds:row_bounds",
        "What was run": what_was_run,
        "Frontier": frontier,
        "Seeds and intervals": seeds,
        "Quality": quality,
        "Attacks against their ceilings": attacks,
        "Ledgers": ledgers,
        "Cost, failures and resumes": cost,
    },
)
"""Title -> function of a section, which writes its pictures into a folder. In the order of the page."""


def write(out: Path, folder: Path) -> Path:
    """Write report.html and the tables of a sweep into `out`; returns the page. Raises ValueError as `open_sweep`."""
    sweep = open_sweep(folder)
    out.mkdir(parents=True, exist_ok=True)
    every = {title: _section(make, sweep, out) for title, make in SECTIONS.items()}
    tables = {name: table for section in every.values() for name, table in section.tables.items()}
    tables["rounds"] = sweep.rounds
    for name, table in tables.items():
        write_csv(out / f"{name}.csv", table)
        table.apply(load.of_one_type).to_parquet(out / f"{name}.parquet", index=False)
    listed = f"The tables are in the page's folder, as CSV and parquet: {', '.join(tables)}."
    sections = [(title, section.blocks) for title, section in every.items() if section.blocks]
    page = out / "report.html"
    page.write_text(html.page(f"Sweep {sweep.name}", [html.paragraph(listed, note=True)], sections))
    return page


def _section(make: Callable[[SweepView, Path], Section], sweep: SweepView, out: Path) -> Section:
    """One section. An error in one leaves the others."""
    try:
        return make(sweep, out)
    except Exception as e:
        kind = "" if isinstance(e, ValueError) else f"{type(e).__name__}: "
        return Section([html.paragraph(f"This section could not be made: {kind}{e}")])


def main(argv: Sequence[str]) -> None:
    """Write the report and print its path."""
    options = load.arguments(__doc__, argv)
    print(write(options.out, options.sweep))
