"""The privacy-utility frontier of a sweep, as a table for people and as a plot.

    raydiff frontier SWEEP [--out DIR]     prints the table, writes frontier.png and frontier.csv; with several seeds
                                           also gain_over_local.md and .csv

A row is a setting, over its seeds and splits. Epsilons compare within one privacy definition (unit, neighbouring
relation, trust model, delta) only, each with its column. Under central trust the epsilon is that against outsiders.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from raydiff.formats.csv_files import write_csv
from raydiff.formats.tables import publish
from raydiff.report import gain_over_local, guarantees, load
from raydiff.report.frontier.rows import cell_fields, frontier, settings
from raydiff.report.frontier.scatter import draw
from raydiff.report.frontier.text import text
from raydiff.report.sweep_view import open_sweep


def write(sweep: Path, out: Path) -> str:
    """Write frontier.csv and, with distances, frontier.png; returns the table. Raises ValueError as `frontier`."""
    runs = load.runs(sweep)
    rows = frontier(runs)
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / "frontier.csv", guarantees.flat(rows))
    drawn = draw(rows, out / "frontier.png", cell=cell_fields(settings(runs)))
    return text(rows) + ("" if drawn else "\n\nno plot: no setting has a finite epsilon and a measure of quality")


def main(argv: Sequence[str]) -> None:
    """Print the table, write the files, and print where they are."""
    options = load.arguments(__doc__, argv)
    print(f"{write(options.sweep, options.out)}\n\n{options.out}")
    sweep = open_sweep(options.sweep)
    gains = gain_over_local.gains(sweep) if sweep.measure else pd.DataFrame(columns=gain_over_local.COLUMNS)
    gains = gains[gains["epsilon"].between(0, math.inf, inclusive="neither") & (gains["base"] != "")]
    if gains["n"].max() > 1:
        tables = gain_over_local.tables(sweep, gains)
        page = "\n\n".join([*map(str, tables), gain_over_local.NOTE, sweep.origin])
        publish(options.out, "gain_over_local", page, {"gain_over_local": gains})
