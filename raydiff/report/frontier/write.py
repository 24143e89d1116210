"""The privacy-utility frontier of a sweep, as a table for people and as a plot.

    raydiff frontier SWEEP [--out DIR]     prints the table, writes frontier.png and frontier.csv

A row is one trial, or the trials that differ only in their seed and the split of their data. Epsilons are ranked
against each other within one kind (unit, relation, trust, delta, accountant) only; where there are several, the tables
have a column for each and the plot a series. Under central trust the epsilon is the one against outsiders.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raydiff.report import load
from raydiff.report.frontier.kinds import spread
from raydiff.report.frontier.plot import drawable, plot
from raydiff.report.frontier.table import ranked_by, table
from raydiff.report.frontier.text import text


def write(sweep: Path, out: Path) -> str:
    """Write frontier.csv and, where distances were measured, frontier.png into `out`; returns the text.

    Raises ValueError where `load.runs` or `table` does.
    """
    runs = load.runs(sweep)
    frontier = table(runs)
    out.mkdir(parents=True, exist_ok=True)
    spread(frontier).to_csv(out / "frontier.csv", index=False)
    if ranked_by(drawable(frontier)) is None:
        return f"{text(frontier)}\n\nno plot: no trial has a feature distance"
    plot(runs, out / "frontier.png")
    return text(frontier)


def main(argv: Sequence[str]) -> None:
    """Print the table, write the files and say where."""
    sweep, out = load.arguments(__doc__, argv)
    print(f"{write(sweep, out)}\n\n{out}")
