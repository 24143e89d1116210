"""The plot of the frontier: the measure that ranks over epsilon, beside training alone and without a guarantee."""

import itertools
import math
import textwrap
from collections.abc import Sequence
from typing import Any, BinaryIO

import pandas as pd

from raydiff.formats.intervals import half_width
from raydiff.formats.metric_records import Metric
from raydiff.formats.plots import COLOURS, LINES, MARKERS, legend, logarithmic, panels, save_figure
from raydiff.report.frontier.rows import DONE, has_finite_epsilon, measure_in_words, name_arms, noise_floor
from raydiff.report.guarantees import adversary, by_definition, described
from raydiff.report.load import records

WIDTH = 34  # characters of a line in the legend
FAR = 8.0  # greatest over least distance from which the axis is logarithmic
COLUMNS = 3  # panels side by side
MOST = 24  # panels in all
MARGIN = 0.2  # of the axis beyond the least and greatest epsilon, in powers of ten
STOPPED = "hollow: stopped early\n(validation split)"
FLOOR = "noise floor: real half\nagainst real half"
INTERVALS = "bars and bands: 95 % Student intervals of the mean over seeds"
IN_DEFINITION = ("privacy", "trust")  # swept fields that the privacy definition of a series states


def draw(table: pd.DataFrame, measure: Metric, fields: Sequence[str], file: BinaryIO) -> None:
    """Write a PNG with a panel for each cell; nothing where no setting has a finite epsilon.

    A colour is a method under one privacy definition, a marker and a line the rest of an arm (`fields` of the table);
    settings that send nothing or have no guarantee at any epsilon are lines.
    """
    rows = table[table["outcome"].isin(DONE) & table["epsilon"].notna()]
    cells = rows.loc[has_finite_epsilon(rows["epsilon"]), "cell"].unique()[:MOST]
    if not len(cells):
        return
    rows = _style(rows, str(measure), fields)
    columns = min(COLUMNS, len(cells))
    lines = -(-len(cells) // columns)
    legend_lines = "\n".join([*rows["label"].unique(), FLOOR, STOPPED]).count("\n") + 2
    height = max((4.4 if lines == 1 else 3.4) * lines, 1.2 + 0.17 * legend_lines)
    figure, grid = panels(lines, columns, size=(4.6 * columns + 2.6, height), dpi=200, sharey=True)
    for axes, cell in zip(grid.flat, cells, strict=False):
        _draw_panel(axes, rows[rows["cell"] == cell], str(measure))
        _draw_axis(axes, rows.loc[~rows["level"], "epsilon"])
        axes.set_title(cell if len(cells) > 1 else "", fontsize=9)
    for axes in grid[:, 0]:
        axes.set_ylabel(measure_in_words(measure), fontsize=9)
    for axes in grid.flat[len(cells) :]:
        axes.set_axis_off()
    notes = [f"ε {described(same)}; against {adversary(same)}" for same in by_definition(rows).values()]
    notes += [INTERVALS] if rows["n"].max() > 1 else []
    notes += [f"the first {MOST} cells"] if len(cells) == MOST else []
    below = "\n".join(textwrap.fill(note.replace("delta ", "δ = "), 62 * columns) for note in notes)
    figure.supxlabel(below, fontsize=9)
    legend(figure, grid.flat, first=list(rows["label"].unique()))
    save_figure(figure, file)


def _style(rows: pd.DataFrame, measure: str, fields: Sequence[str]) -> pd.DataFrame:
    """The rows with label, level (whether it is a horizontal line), x, half an interval, colour, marker and line."""
    arms = name_arms(rows, [name for name in fields if name.rpartition(".")[2] not in IN_DEFINITION])
    series = rows["method"]
    if len(by_definition(rows)) > 1:
        definitions = rows["guarantee"].map(lambda guarantee: guarantee.definition)
        series = series.where(definitions.isna(), series + ", " + definitions.fillna(""))
    level = ~has_finite_epsilon(rows["epsilon"]).groupby([series, arms]).transform("any")
    ends = rows["epsilon"].map(lambda epsilon: ", no guarantee" if epsilon == math.inf else ", nothing sent")
    series = series + ends.where(level, "")
    colours = pd.factorize(series)[0]
    lines = pd.factorize(arms, sort=True)[0]
    markers = lines if arms.nunique() > 1 else colours
    labels = series + arms.where(arms == "", ", " + arms)
    _, high, width = _range(rows["epsilon"])
    return rows.assign(
        label=labels.map(lambda label: textwrap.fill(label, WIDTH)),
        level=level,
        x=[high + width / 2 if e == math.inf else math.log10(e or 1) for e in rows["epsilon"]],
        half=half_width(rows[f"{measure}_std"], rows["n"]),
        colour=[COLOURS[i % len(COLOURS)] for i in colours],
        marker=[MARKERS[i % len(MARKERS)] for i in markers],
        line=[LINES[i % len(LINES)] for i in lines],
    )


def _range(epsilons: pd.Series) -> tuple[float, float, float]:
    """log10 of the two ends of the finite axis, and how wide the band of infinity is."""
    finite = epsilons[has_finite_epsilon(epsilons)]
    low = math.log10(finite.min()) - MARGIN
    high = math.log10(finite.max()) + MARGIN
    return low, high, 0.3 * (high - low)


def _draw_panel(axes: Any, rows: pd.DataFrame, measure: str) -> None:
    for (label, colour, marker, line), group in rows.groupby(["label", "colour", "marker", "line"], sort=False):
        for row in records(group[group["level"] & (group["outcome"] == "finished")]):
            axes.axhline(row[measure], color=colour, linestyle=line, linewidth=1.2, label=label, zorder=1.5)
            if row["half"] is not None:
                ends = row[measure] - row["half"], row[measure] + row["half"]
                axes.axhspan(*ends, color=colour, alpha=0.12, linewidth=0)
        points = group[~group["level"]].sort_values("x")
        look = {"marker": marker, "markersize": 6.5, "capsize": 3, "color": colour, "linewidth": 0.9}
        filled = {"linestyle": line, "label": label, "mfc": colour, "mec": "white"}
        hollow = {"linestyle": "none", "label": STOPPED, "mfc": "none", "mec": colour}
        for outcome, style in (("finished", filled), ("stopped", hollow)):
            part = points[points["outcome"] == outcome]
            if len(part):
                axes.errorbar(part["x"], part[measure], yerr=part["half"], **look, **style)
        best = points[points["pareto"]]
        if len(best):
            ring = {"markersize": 7, "mfc": "none", "mec": "black", "mew": 1.5, "zorder": 4, "linestyle": "none"}
            axes.plot(best["x"], best[measure], marker=marker, label="black edge: Pareto-optimal", **ring)
    for floor in {*(noise_floor(rows, measure) or ())}:
        axes.axhline(floor, zorder=1, linestyle=(0, (6, 3)), color="0.45", linewidth=0.9, label=FLOOR)
    values = rows[measure].dropna()
    if values.min() > 0 and values.max() > FAR * values.min():
        logarithmic(axes)


def _draw_axis(axes: Any, epsilons: pd.Series) -> None:
    """Ticks at 1, 2, 5 x 10^n; a shaded band for infinity if it occurs among the points."""
    low, high, width = _range(epsilons)
    steps = (1, 2, 5) if high - low < 2.5 else (1,)
    values = [step * 10.0**power for power, step in itertools.product(range(-9, 15), steps)]
    ticks = {math.log10(value): f"{value:g}" for value in values if low <= math.log10(value) <= high}
    axes.set_xlim(low, high)
    if math.inf in set(epsilons):
        axes.set_xlim(low, high + width)
        ticks[high + width / 2] = "inf\n(no\nguarantee)"
        axes.axvspan(high, high + width, color="0.95", zorder=0, linewidth=0)
    axes.set_xticks(list(ticks), list(ticks.values()), fontsize=8)
    axes.tick_params(axis="y", labelsize=8)
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
