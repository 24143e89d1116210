"""The privacy-utility frontier of a sweep, as a table for people and as a plot.

    raydiff frontier SWEEP [--out DIR]     prints the table, writes frontier.png and frontier.csv

A row is a setting, over its seeds and splits. Epsilons compare within one privacy definition (unit, neighbouring
relation, trust model, delta) only, each with its column. Under central trust the epsilon is that against outsiders.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raydiff.formats.csv_files import write_csv
from raydiff.report import guarantees, load
from raydiff.report.frontier.text import text
from raydiff.report.sweep_view import SweepView, open_sweep


def write(sweep: SweepView, out: Path) -> str:
    """Write frontier.csv and, with epsilons, frontier.png; returns the table. Raises ValueError as `frontier`."""
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / "frontier.csv", guarantees.flat(sweep.frontier))
    if not sweep.picture:
        return f"{text(sweep.frontier)}\n\nno plot: no setting has a finite epsilon and a measure of quality"
    (out / "frontier.png").write_bytes(sweep.picture)
    return text(sweep.frontier)


def main(argv: Sequence[str]) -> None:
    """Print the table, write the files, and print where they are."""
    options = load.arguments(__doc__, argv)
    print(f"{write(open_sweep(options.sweep), options.out)}\n\n{options.out}")
