"""What a private setting gains over local training, which sends nothing: seed by seed, at each target epsilon."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from markupsafe import Markup

from raydiff.formats import plots, rounding
from raydiff.formats.intervals import interval, shown
from raydiff.formats.tables import Table, number, span
from raydiff.lookup import distinguishing_fields
from raydiff.report.frontier.rows import is_target_epsilon
from raydiff.report.load import Row, groups, records
from raydiff.report.sections.seeds import OWN_FIELDS, by_seed, compared
from raydiff.report.sweep_view import SweepView, setting_name, short_column

COLUMNS = ["cell", "definition", "setting", "arm", "target", "epsilon", "n", "mean", "base", "base_mean"]
COLUMNS += ["difference", "low", "high"]
NOTE = (
    "In each cell the mean over seeds and its paired difference from local training with a 95 % Student interval: bold "
    "where it excludes 0, negative where the private setting is better. No correction for the number of intervals."
)


def gains(sweep: SweepView) -> pd.DataFrame:
    """A row for each cell, privacy definition and setting with a finite epsilon.

    `arm` is the method and what differs among its arms but the target epsilon; `target` the target epsilon (the
    ledger's where none was swept), `epsilon` the ledger's largest; `base` the best setting of the cell that sends
    nothing, without which the cell has no row. Raises ValueError without a measure.
    """
    trials = compared(sweep)
    names = [name for path, name in sweep.fields.items() if path.startswith(OWN_FIELDS)]
    targets, others = ([n for n in names if is_target_epsilon(n) == wanted] for wanted in (True, False))
    needed = {method: distinguishing_fields(records(group), others) for method, group in trials.groupby("method")}
    rows: list[Row] = []
    for cell, in_cell in trials.groupby("cell", sort=False):
        settings, epsilons = by_seed(in_cell), in_cell.groupby("setting")["epsilon"].max()
        silent = [name for name in settings if epsilons[name] == 0]
        if not silent:
            continue
        base = min(silent, key=lambda name: settings[name].mean())
        private = in_cell[in_cell["epsilon"].between(0, math.inf, inclusive="neither")]
        for row, group in groups(private, ["definition", "setting"], sort=False):
            first, values = records(group)[0], settings[row["setting"]]
            epsilon = group["epsilon"].max()
            target = next((first[n] for n in targets if first[n] is not None), float(rounding.up(epsilon)))
            row |= {"cell": cell, "arm": setting_name(first, needed[first["method"]]), "target": target}
            row |= {"epsilon": epsilon, "n": len(values), "mean": values.mean()}
            row |= {"base": base, "base_mean": settings[base].mean()}
            rows.append(row | interval((values - settings[base]).dropna(), "difference"))
    return pd.DataFrame(rows, columns=COLUMNS)


def tables(sweep: SweepView, gain_rows: pd.DataFrame) -> Iterator[Table]:
    """Of each cell and definition with several seeds: a row for each arm, a column for each target epsilon."""
    for of, group in groups(gain_rows[gain_rows["n"] > 1], ["cell", "definition"], sort=False):
        targets = sorted(group["target"].dropna().unique())
        lines = []
        for arm, rows in group.groupby("arm", sort=False):
            cells = {row["target"]: _cell(row) for row in records(rows)}
            lines.append([str(arm), *(cells.get(target, "") for target in targets)])
        header = [f"{short_column(str(sweep.measure))} at epsilon", *(f"{target:g}" for target in targets)]
        where = "" if of["cell"] == "all trials" else f"{of['cell']}; "
        note = f"n = {span(group['n'])} seeds, against {group['base'].iloc[0]}."
        yield Table(header, lines, title=f"{where}epsilon {of['definition']}", note=note)


def draw(sweep: SweepView, gain_rows: pd.DataFrame, path: Path) -> None:
    """A panel per cell, of the definition with the most arms: means over target epsilon, intervals of differences."""
    definition = gain_rows.groupby("definition")["arm"].nunique().idxmax()
    rows = gain_rows[gain_rows["definition"] == definition]
    cells, arms = list(rows.groupby("cell", sort=False)), sorted(rows["arm"].unique())
    figure, grid = plots.panels(1, len(cells), size=(4.2 * len(cells) + 2.4, 4.4), sharey=True)
    for axes, (cell, group) in zip(grid[0], cells, strict=True):
        base = float(group["base_mean"].iloc[0])
        for arm, points in group.sort_values("target").groupby("arm"):
            place = arms.index(arm)  # An arm looks the same in every panel.
            colour, marker = (looks[place % len(looks)] for looks in (plots.COLOURS, plots.MARKERS))
            ends = base + points["low"], base + points["high"]
            look = {"color": colour, "marker": marker, "capsize": 2, "label": str(arm)}
            plots.points(axes, points["target"], points["mean"], ends, **look)
        axes.axhline(base, color="black", linestyle="--", label="local training, which sends nothing")
        if rows["mean"].min() > 0:  # An unbiased distance can be below 0.
            plots.logarithmic(axes)
        axes.set(xscale="log", title=cell, xlabel=f"epsilon, {str(definition).partition(', delta')[0]}")
        axes.set_xticks(ticks := sorted(group["target"].unique()), [f"{tick:g}" for tick in ticks])
        axes.xaxis.minorticks_off()
    grid[0][0].set(ylabel=short_column(str(sweep.measure)))
    plots.legend(figure, grid[0])
    plots.save(figure, path)


def _cell(row: Row) -> str:
    gain = shown(row["difference"], row["low"], row["high"], "+.2f", bold=True)
    return Markup("{}, {}").format(number(row["mean"], 3), gain)
