"""The plot of the frontier: feature distance over epsilon."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import Any

import pandas as pd

from raydiff.formats.plots import COLOURS, LINES, MARKERS, legend, logarithmic, panels, save
from raydiff.formats.tables import short
from raydiff.lookup import distinguishing_fields
from raydiff.report.frontier.rows import DONE, is_target_epsilon, network_of, noise_floor, ranked_by, swept
from raydiff.report.guarantees import definitions, described
from raydiff.report.load import records

WIDTH = 34  # characters of a line in the legend
FAR = 8.0  # greatest over least distance from which the axis is logarithmic
STOPPED, FLOOR = "hollow: stopped early\n(validation split)", "noise floor: real half\nagainst real half"


def draw(rows: pd.DataFrame, path: Path) -> bool:
    """Write the frontier as a PNG: distance over epsilon, with 0 and infinity in bands at the ends. A colour is a
    method under one privacy definition, a marker and a line what else was swept. False where nothing can be drawn."""
    rows = rows[rows["outcome"].isin(DONE) & rows["epsilon"].notna()]
    ranked, network = ranked_by(rows), network_of(rows)
    if ranked is None or network is None:
        return False
    rows = _styled(rows)
    distances = list(dict.fromkeys([ranked, f"fd_{network}/all"]))
    labels = rows["label"].nunique() + 4
    figure, ((*every,),) = panels(1, len(distances), size=(5.2 * len(distances) + 2.2, 4.4 + 0.1 * labels), dpi=200)
    for axes, name in zip(every, distances, strict=True):
        classes = "minority classes" if name.endswith("minor") else "all classes"
        axes.set_ylabel(f"Fréchet distance of {network} features, {classes}", fontsize=9)
        _draw_points(axes, rows, name, pareto=name == ranked)
        for floor in dict.fromkeys(noise_floor(rows, name) or ()):
            axes.axhline(floor, zorder=1, linestyle=(0, (6, 3)), color="0.45", linewidth=0.9, label=FLOOR)
        if (values := rows[name].dropna()).min() > 0 and values.max() > FAR * values.min():
            logarithmic(axes)
        _draw_axis(axes, rows)
    lines = [f"ε {described(rows, d)}; against {d.against}" for d in definitions(rows)] or ["ε: none is finite"]
    title = "\n".join(textwrap.fill(line.replace("delta ", "δ = "), 80 * len(distances)) for line in lines)
    figure.supxlabel(title, fontsize=9)
    legend(figure, every)
    save(figure, path)
    return True


def _styled(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with label, x, colour, marker and line."""
    items, series = records(rows), rows["method"].tolist()
    if len(definitions(rows)) > 1:
        names = [str(g.definition or ("nothing sent" if g.nothing_sent else "no guarantee")) for g in rows["guarantee"]]
        series = [f"{method}, {name}" for method, name in zip(series, names, strict=True)]
    # The axis has the target epsilon, and the series privacy and trust.
    fields = [f for f in swept(rows) if not is_target_epsilon(f) and f.rpartition(".")[2] not in ("privacy", "trust")]
    needed = {method: distinguishing_fields(records(group), fields) for method, group in rows.groupby("method")}
    settings = [", ".join(f"{f} {short(r[f])}" for f in needed[r["method"]] if r[f] is not None) for r in items]
    first, others = list(dict.fromkeys(series)), sorted(set(settings))
    colour, line = [first.index(s) for s in series], [others.index(s) for s in settings]
    marker = line if len(others) > 1 else colour
    low, high, width = _range(rows)
    ends = {0.0: low - width / 2, math.inf: high + width / 2}  # the middle of their bands
    labels = [", ".join(filter(None, pair)) for pair in zip(series, settings, strict=True)]
    return rows.assign(
        label=[textwrap.fill(label, WIDTH) for label in labels],
        colour=[COLOURS[i % len(COLOURS)] for i in colour],
        marker=[MARKERS[i % len(MARKERS)] for i in marker],
        line=[LINES[i % len(LINES)] for i in line],
        x=[ends[e] if e in ends else math.log10(e) for e in rows["epsilon"]],
    )


def _range(rows: pd.DataFrame) -> tuple[float, float, float]:
    """log10 of the two ends of the finite axis, and how wide the bands of 0 and infinity are."""
    finite = [math.log10(e) for e in rows["epsilon"] if 0 < e < math.inf] or [0.0]
    low, high = min(finite) - 0.2, max(finite) + 0.2
    return low, high, 0.3 * (high - low)


def _draw_points(axes: Any, rows: pd.DataFrame, name: str, *, pareto: bool) -> None:
    for (label, colour, marker, line), group in rows.groupby(["label", "colour", "marker", "line"], sort=False):
        for outcome, face, edge in (("finished", colour, "white"), ("stopped", "none", colour)):
            points = group[group["outcome"] == outcome].sort_values("x")
            if points.empty:
                continue
            look = {"marker": marker, "markersize": 6.5, "mfc": face, "mec": edge, "capsize": 2, "color": colour}
            style = {"linestyle": line, "label": label} if face != "none" else {"linestyle": "none", "label": STOPPED}
            axes.errorbar(points["x"], points[name], yerr=points[f"{name}_std"], linewidth=0.9, **look, **style)
        best = group[group["pareto"] & pareto]
        ring = {"markersize": 7, "mfc": "none", "mec": "black", "mew": 1.5, "zorder": 4, "linestyle": "none"}
        if len(best):
            axes.plot(best["x"], best[name], marker=marker, label="black edge: Pareto-optimal", **ring)


def _draw_axis(axes: Any, rows: pd.DataFrame) -> None:
    """Ticks at 1, 2, 5 x 10^n; a shaded band for each of 0 and infinity that occurs."""
    low, high, width = _range(rows)
    ends, epsilons = [low, high], set(rows["epsilon"])
    ticks: dict[float, str] = {}
    if any(0 < e < math.inf for e in epsilons):
        steps = (1, 2, 5) if high - low < 2.5 else (1,)
        every = {math.log10(m * 10.0**n): f"{m * 10.0**n:g}" for n in range(-9, 15) for m in steps}
        ticks = {x: words for x, words in every.items() if low <= x <= high}
    bands = ((0.0, low, low - width, "0\n(nothing\nsent)"), (math.inf, high, high + width, "inf\n(no\nguarantee)"))
    for _, inner, outer, words in (band for band in bands if band[0] in epsilons):
        ends.append(outer)
        ticks[(inner + outer) / 2] = words
        axes.axvspan(inner, outer, color="0.95", zorder=0, linewidth=0)
    axes.set_xlim(min(ends), max(ends))
    axes.set_xticks(list(ticks), list(ticks.values()), fontsize=8)
    axes.tick_params(axis="y", labelsize=8)
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
