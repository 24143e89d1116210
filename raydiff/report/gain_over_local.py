"""What a protected setting gains over training that sends nothing: seed by seed, at each epsilon that was asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from markupsafe import Markup

from raydiff.formats import plots
from raydiff.formats import rounding as bounds
from raydiff.formats.intervals import interval, shown
from raydiff.formats.tables import Table, number
from raydiff.lookup import telling
from raydiff.report.frontier.kinds import comparable
from raydiff.report.frontier.rows import is_budget
from raydiff.report.load import Row, records
from raydiff.report.sections.seeds import OWN, compared
from raydiff.report.sweep_view import SweepView, setting, spoken

COLUMNS = ["cell", "kind", "setting", "arm", "asked", "spent", "n", "mean", "base", "base_mean"]
COLUMNS += ["difference", "low", "high"]
NOTE = (
    "In each cell the mean over seeds, and what it is more than that of the best setting that sends nothing, seed by "
    "seed, with its 95 % Student interval: bold where that excludes 0, negative where it is better. No interval is "
    "corrected for how many there are."
)


def gaps(sweep: SweepView) -> pd.DataFrame:
    """A row for each cell, kind of epsilon and setting whose epsilon is finite: its arm (the method, and what tells its
    arms apart but the epsilon), the epsilon asked for (where none was swept, spent), the most that was spent, n, mean;
    then base, the best setting of the cell that sends nothing, with its mean, and the mean difference from it with its
    interval. Empty where every setting sends something.

    Raises ValueError without a measure.
    """
    trials = compared(sweep)
    names = [name for path, name in sweep.fields.items() if path.startswith(OWN)]
    asked = [name for name in names if is_budget(name)]
    others = [name for name in names if name not in asked]
    needed = {method: telling(records(own), others) for method, own in trials.groupby("method")}
    rows: list[Row] = []
    for cell, of in trials.groupby("cell", sort=False):
        by_seed = {str(name): own.groupby("seed")["value"].mean() for name, own in of.groupby("setting")}
        silent = [str(name) for name, own in of.groupby("setting") if own["epsilon"].max() == 0]
        if not silent:
            continue
        base = min(silent, key=lambda name: by_seed[name].mean())
        protected = of[of["epsilon"].between(0, math.inf, inclusive="neither")]
        for (kind, name), own in protected.groupby([protected["kind"].map(comparable), "setting"], sort=False):
            first, mine = records(own)[0], by_seed[str(name)]
            row: Row = {"cell": cell, "kind": kind, "setting": name}
            row["arm"] = setting(first, needed[first["method"]])
            spent = own["epsilon"].max()
            row["asked"] = next((first[n] for n in asked if first[n] is not None), float(bounds.up(spent)))
            row |= {"spent": spent, "n": len(mine), "mean": mine.mean()}
            row |= {"base": base, "base_mean": by_seed[base].mean()}
            rows.append({**row, **interval((mine - by_seed[base]).dropna(), "difference")})
    return pd.DataFrame(rows, columns=COLUMNS)


def tables(sweep: SweepView, found: pd.DataFrame) -> Iterator[Table]:
    """Of each cell and kind that several seeds were run of: a row for each arm, a column for each epsilon."""
    for (cell, kind), own in found[found["n"] > 1].groupby(["cell", "kind"], sort=False):
        columns = sorted(own["asked"].dropna().unique())
        lines = []
        for arm, of in own.groupby("arm", sort=False):
            told = {row["asked"]: _told(row) for row in records(of)}
            lines.append([str(arm), *(told.get(epsilon, "") for epsilon in columns)])
        n = " to ".join(dict.fromkeys(map(str, (own["n"].min(), own["n"].max()))))
        header = [f"{spoken(str(sweep.measure))} at epsilon", *(f"{epsilon:g}" for epsilon in columns)]
        where = "" if cell == "all trials" else f"{cell}; "
        yield Table(
            header, lines, title=f"{where}epsilon {kind}", note=f"n = {n} seeds, against {own['base'].iloc[0]}."
        )


def draw(sweep: SweepView, found: pd.DataFrame, path: Path) -> None:
    """Of the kind with the most arms a panel a cell: means over epsilon, whose bars are the differences' intervals."""
    kind = found.groupby("kind")["arm"].nunique().idxmax()
    own_kind = found[found["kind"] == kind]
    cells, arms = list(own_kind.groupby("cell", sort=False)), sorted(own_kind["arm"].unique())
    figure, grid = plots.panels(1, len(cells), size=(4.2 * len(cells) + 2.4, 4.4), sharey=True)
    for axes, (cell, own) in zip(grid[0], cells, strict=True):
        base = float(own["base_mean"].iloc[0])
        for arm, of in own.sort_values("asked").groupby("arm"):
            place = arms.index(arm)  # An arm looks alike in every panel.
            colour, marker = (kinds[place % len(kinds)] for kinds in (plots.COLOURS, plots.MARKERS))
            look = {"color": colour, "marker": marker, "capsize": 2}
            plots.points(axes, of["asked"], of["mean"], (base + of["low"], base + of["high"]), label=str(arm), **look)
        axes.axhline(base, color="black", linestyle="--", label="training alone, which sends nothing")
        if own_kind["mean"].min() > 0:  # An unbiased distance can be below 0.
            plots.logarithmic(axes)
        axes.set(xscale="log", title=cell, xlabel=f"epsilon, {str(kind).split(', delta')[0]}")
        axes.set_xticks(ticks := sorted(own["asked"].unique()), [f"{tick:g}" for tick in ticks])
        axes.xaxis.minorticks_off()
    grid[0][0].set(ylabel=spoken(str(sweep.measure)))
    plots.legend(figure, grid[0])
    plots.save(figure, path)


def _told(row: Row) -> str:
    gap = shown(row["difference"], row["low"], row["high"], "+.2f", bold=True)
    return Markup("{}, {}").format(number(row["mean"], 3), gap)
