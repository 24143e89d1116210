"""The privacy-utility frontier of a sweep, as a table for people and as a plot.

    raydiff frontier SWEEP [--out DIR]     prints the table, writes frontier.png and frontier.csv; with several seeds
                                           also what protected settings gain over training alone: alone.md, .csv, .png

A row is one trial, or the trials that differ only in their seed and the split of their data. Epsilons are ranked
against each other within one kind (unit, relation, trust, delta, accountant) only; where there are several, the tables
have a column for each and the plot a series. Under central trust the epsilon is the one against outsiders.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raydiff.formats.tables import publish
from raydiff.report import gain_over_local as alone
from raydiff.report import load
from raydiff.report.frontier.kinds import spread
from raydiff.report.frontier.rows import frontier
from raydiff.report.frontier.scatter import draw, drawable
from raydiff.report.frontier.text import text
from raydiff.report.sweep_view import open_sweep


def write(sweep: Path, out: Path) -> str:
    """Write frontier.csv and, where distances were measured, frontier.png into `out`; returns the text.

    Raises ValueError where `load.runs` or `frontier` does.
    """
    rows = frontier(load.runs(sweep))
    out.mkdir(parents=True, exist_ok=True)
    spread(rows).to_csv(out / "frontier.csv", index=False)
    if not drawable(rows):
        return f"{text(rows)}\n\nno plot: no trial has a feature distance"
    draw(rows, out / "frontier.png")
    return text(rows)


def main(argv: Sequence[str]) -> None:
    """Print the table, write the files and say where."""
    given = load.arguments(__doc__, argv)
    print(f"{write(given.sweep, given.out)}\n\n{given.out}")
    sweep = open_sweep(given.sweep)
    found = alone.gaps(sweep) if sweep.measure else None
    if found is not None and found["n"].max() > 1:
        said = "\n\n".join([*map(str, alone.tables(sweep, found)), alone.NOTE, sweep.origin])
        alone.draw(sweep, found, given.out / "alone.png")
        publish(given.out, "alone", said, {"alone": found})
