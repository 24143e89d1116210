"""The plot of the frontier: the measure that ranks over epsilon, beside training alone and without a guarantee."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd

from raydiff.formats.intervals import half_width
from raydiff.formats.plots import COLOURS, LINES, MARKERS, legend, logarithmic, panels, save
from raydiff.formats.tables import short
from raydiff.lookup import distinguishing_fields
from raydiff.report.frontier.rows import (
    DONE,
    is_target_epsilon,
    measure_in_words,
    noise_floor,
    quality_of,
    ranked_by,
    swept,
)
from raydiff.report.guarantees import adversary, definitions, described
from raydiff.report.load import groups, records

WIDTH = 34  # characters of a line in the legend
FAR = 8.0  # greatest over least distance from which the axis is logarithmic
COLUMNS = 3  # panels side by side
MOST = 24  # panels in all
STOPPED = "hollow: stopped early\n(validation split)"
FLOOR = "noise floor: real half\nagainst real half"
INTERVALS = "bars and bands: 95 % Student intervals of the mean over seeds"


def draw(table: pd.DataFrame, file: Path | BinaryIO, *, cell: Sequence[str] = ()) -> bool:
    """Write a PNG with a panel for each combination of the columns `cell`; for one, minority classes and all classes.

    A colour is a method under one privacy definition, a marker and a line what else was swept; settings that send
    nothing or have no guarantee at any epsilon are lines. False where no setting has a finite epsilon and a measure.
    """
    rows = table[table["outcome"].isin(DONE) & table["epsilon"].notna()]
    ranked = ranked_by(rows)
    if ranked is None or not _finite(rows["epsilon"]).any():
        return False
    parts = list(_parts(rows := _styled(rows, cell), ranked, cell))[:MOST]
    columns = min(COLUMNS, len(parts))
    lines = -(-len(parts) // columns)
    legend_lines = "\n".join([*rows["label"].unique(), FLOOR, STOPPED]).count("\n") + 2
    height = max((4.4 if lines == 1 else 3.4) * lines, 1.2 + 0.17 * legend_lines)
    figure, grid = panels(lines, columns, size=(4.6 * columns + 2.6, height), dpi=200, sharey=len(parts[0][0]) > 0)
    for axes, part in zip(grid.flat, parts, strict=False):
        _draw_panel(axes, *part, pareto=part[1] == ranked)
        _draw_axis(axes, rows.loc[~rows["level"], "epsilon"])
    for axes in grid.flat[len(parts) :]:
        axes.set_axis_off()
    notes = [f"ε {described(rows, d)}; against {adversary(rows, d)}" for d in definitions(rows)]
    notes += [INTERVALS] if rows["n"].max() > 1 else []
    notes += [f"the first {MOST} combinations of {', '.join(cell)}"] if len(parts) == MOST else []
    below = "\n".join(textwrap.fill(note.replace("delta ", "δ = "), 62 * columns) for note in notes)
    figure.supxlabel(below, fontsize=9)
    legend(figure, grid.flat, first=list(dict.fromkeys(rows["label"])))
    save(figure, file)
    return True


def _finite(epsilons: pd.Series) -> pd.Series:
    """Whether each is neither 0 nor infinite."""
    return epsilons.between(0, math.inf, inclusive="neither")


def _parts(rows: pd.DataFrame, ranked: str, cell: Sequence[str]) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """The panels' titles, measures and rows; of the combinations of `cell`, those with a finite epsilon."""
    if not cell or len(rows[[*cell]].drop_duplicates()) == 1:
        for name in dict.fromkeys([ranked, ranked.replace("/minor", "/all")]):
            yield "", name, rows
        return
    for of, part in groups(rows, cell, sort=False):
        if _finite(part["epsilon"]).any():
            yield ", ".join(f"{name} {short(value)}" for name, value in of.items()), ranked, part


def _styled(rows: pd.DataFrame, cell: Sequence[str]) -> pd.DataFrame:
    """The rows with label, level (whether it is a horizontal line), x, colour, marker and line."""
    items = records(rows)
    series = rows["method"].tolist()
    if len(definitions(rows)) > 1:
        pairs = zip(series, rows["guarantee"], strict=True)
        series = [f"{method}, {g.definition}" if g.definition else method for method, g in pairs]
    # The axis has the target epsilon, the panels the cell, and the series privacy and trust.
    fields = [f for f in swept(rows) if not is_target_epsilon(f) and f.rpartition(".")[2] not in ("privacy", "trust")]
    fields = [f for f in fields if f not in cell]
    needed = {method: distinguishing_fields(records(group), fields) for method, group in rows.groupby("method")}
    settings = [", ".join(f"{f} {short(r[f])}" for f in needed[r["method"]] if r[f] is not None) for r in items]
    rows = rows.assign(series=series, setting=settings, finite=_finite(rows["epsilon"]))
    level = ~rows.groupby(["series", "setting"])["finite"].transform("any")
    ends = ["no guarantee" if e == math.inf else "nothing sent" for e in rows["epsilon"]]
    series = [f"{name}, {end}" if flat else name for name, end, flat in zip(series, ends, level, strict=True)]
    first = list(dict.fromkeys(series))
    others = sorted(set(settings))
    colour = [first.index(s) for s in series]
    line = [others.index(s) for s in settings]
    marker = line if len(others) > 1 else colour
    _, high, width = _range(rows["epsilon"])
    labels = [", ".join(filter(None, pair)) for pair in zip(series, settings, strict=True)]
    return rows.assign(
        label=[textwrap.fill(label, WIDTH) for label in labels],
        level=level,
        colour=[COLOURS[i % len(COLOURS)] for i in colour],
        marker=[MARKERS[i % len(MARKERS)] for i in marker],
        line=[LINES[i % len(LINES)] for i in line],
        x=[high + width / 2 if e == math.inf else math.log10(e or 1) for e in rows["epsilon"]],
    )


def _range(epsilons: pd.Series) -> tuple[float, float, float]:
    """log10 of the two ends of the finite axis, and how wide the band of infinity is."""
    finite = [math.log10(e) for e in epsilons[_finite(epsilons)]]
    low = min(finite) - 0.2
    high = max(finite) + 0.2
    return low, high, 0.3 * (high - low)


def _draw_panel(axes: Any, title: str, name: str, rows: pd.DataFrame, *, pareto: bool) -> None:
    rows = rows.assign(half=half_width(rows[f"{name}_std"], rows["n"]))
    for (label, colour, marker, line), group in rows.groupby(["label", "colour", "marker", "line"], sort=False):
        for row in records(group[group["level"] & (group["outcome"] == "finished")]):
            axes.axhline(row[name], color=colour, linestyle=line, linewidth=1.2, label=label, zorder=1.5)
            if row["half"] is not None:
                axes.axhspan(row[name] - row["half"], row[name] + row["half"], color=colour, alpha=0.12, linewidth=0)
        for outcome, face, edge in (("finished", colour, "white"), ("stopped", "none", colour)):
            points = group[(group["outcome"] == outcome) & ~group["level"]].sort_values("x")
            if points.empty:
                continue
            look = {"marker": marker, "markersize": 6.5, "mfc": face, "mec": edge, "capsize": 3, "color": colour}
            style = {"linestyle": line, "label": label} if face != "none" else {"linestyle": "none", "label": STOPPED}
            axes.errorbar(points["x"], points[name], yerr=points["half"], linewidth=0.9, **look, **style)
        best = group[group["pareto"] & pareto]
        ring = {"markersize": 7, "mfc": "none", "mec": "black", "mew": 1.5, "zorder": 4, "linestyle": "none"}
        if len(best):
            axes.plot(best["x"], best[name], marker=marker, label="black edge: Pareto-optimal", **ring)
    for floor in dict.fromkeys(noise_floor(rows, name) or ()):
        axes.axhline(floor, zorder=1, linestyle=(0, (6, 3)), color="0.45", linewidth=0.9, label=FLOOR)
    if (values := rows[name].dropna()).min() > 0 and values.max() > FAR * values.min():
        logarithmic(axes)
    axes.set_title(title, fontsize=9)
    if not title or axes.get_subplotspec().is_first_col():
        axes.set_ylabel(measure_in_words(quality_of(rows)[name]), fontsize=9)


def _draw_axis(axes: Any, epsilons: pd.Series) -> None:
    """Ticks at 1, 2, 5 x 10^n; a shaded band for infinity if it occurs among the points."""
    low, high, width = _range(epsilons)
    steps = (1, 2, 5) if high - low < 2.5 else (1,)
    every = {math.log10(m * 10.0**n): f"{m * 10.0**n:g}" for n in range(-9, 15) for m in steps}
    ticks = {x: words for x, words in every.items() if low <= x <= high}
    axes.set_xlim(low, high)
    if math.inf in set(epsilons):
        axes.set_xlim(low, high + width)
        ticks[high + width / 2] = "inf\n(no\nguarantee)"
        axes.axvspan(high, high + width, color="0.95", zorder=0, linewidth=0)
    axes.set_xticks(list(ticks), list(ticks.values()), fontsize=8)
    axes.tick_params(axis="y", labelsize=8)
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
