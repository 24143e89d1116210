"""The plot of the frontier: feature distance over epsilon."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from raydiff.formats.plots import COLOURS, LINES, MARKERS, logarithmic, panels, save
from raydiff.formats.tables import number, short
from raydiff.lookup import telling
from raydiff.report.frontier.kinds import NOTHING, against, comparable, kinds, shown, stated
from raydiff.report.frontier.rows import DONE, floors_of, is_budget, network_of, ranked_by, swept
from raydiff.report.load import Row, records

WIDTH = 34
"""Of the legend's lines, in characters."""
FAR = 8.0
"""From how many times the least distance on the axis is logarithmic: else the near ones cannot be told apart."""
FLOOR: Row = {"linestyle": (0, (6, 3)), "color": "0.45", "linewidth": 0.9}


def drawable(rows: pd.DataFrame) -> bool:
    """Whether there is something to plot: a trial with a distance and an epsilon."""
    return network_of(rows) is not None and ranked_by(_placed(rows)) is not None


Spot = tuple[float, float, str]
"""(from the left, from the top, in shares of the picture; what is there)."""


def draw(rows: pd.DataFrame, path: Path) -> list[Spot]:
    """The frontier as a PNG: distance over epsilon, 0 and infinity in bands beyond a broken axis. Gives where each
    setting is.

    Raises ValueError where no trial has a distance.
    """
    rows = _placed(rows)
    ranked, network = ranked_by(rows), network_of(rows)
    if ranked is None:
        raise ValueError("there is nothing to plot: no trial has a feature distance")
    rows = _styled(rows)
    distances = list(dict.fromkeys([ranked, f"fd_{network}/all"]))
    legend = _legend(rows, distances)
    height = 0.3 + 0.17 * sum(entry.get_label().count("\n") + 1 for entry in legend)
    size = (5.2 * len(distances) + 2.2, max(4.4, height))
    figure, ((*every,),) = panels(1, len(distances), size=size, dpi=200)
    for axes, name in zip(every, distances, strict=True):
        classes = "minority classes" if name.endswith("minor") else "all classes"
        axes.set_ylabel(f"Fréchet distance of {network} features, {classes}", fontsize=9)
        _draw_points(axes, rows, name)
        for _, (floor,) in floors_of(rows, [name]):
            axes.axhline(floor, zorder=1, **FLOOR)
        if (values := rows[name].dropna()).min() > 0 and values.max() > FAR * values.min():
            logarithmic(axes)
        _draw_axis(axes, rows)
    figure.supxlabel(textwrap.fill(_axis_title(rows), 80 * len(distances)), fontsize=9)
    figure.legend(handles=legend, loc="outside right upper", fontsize=8, frameon=False, handlelength=3.2)
    save(figure, path)
    return [spot for axes, name in zip(every, distances, strict=True) for spot in _spots(axes, rows, name)]


def _spots(axes: Any, rows: pd.DataFrame, name: str) -> Iterator[Spot]:
    """Of one panel of a figure that has been drawn."""
    (width, height), transform = axes.figure.bbox.size, axes.transData.transform
    for row in records(rows[rows[name].notna()]):
        x, y = transform((row["x"], row[name]))
        setting = [f"{field} {short(row[field])}" for field in swept(rows) if row[field] is not None]
        spread = "" if row[f"{name}_std"] is None else f"±{number(row[f'{name}_std'])}"
        measured = f"{name} {number(row[name])}{spread} at epsilon {shown(row['epsilon'])}"
        yield x / width, 1 - y / height, f"{', '.join([row['method'], *setting])}: {measured}, n {row['n']}"


def _placed(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["outcome"].isin(DONE) & rows["epsilon"].notna()]


def _styled(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with their series, setting, x, colour (of the series), marker and line (of the setting)."""
    names, known = kinds(rows), records(rows)
    series = [r["method"] for r in known]
    if len(names) > 1:  # then a series is a method with its kind of epsilon
        names[NOTHING] = NOTHING
        series = [f"{r['method']}, {names.get(comparable(r['kind']), 'no guarantee')}" for r in known]
    # The axis tells the budget, and the kind tells privacy and trust.
    fields = [f for f in swept(rows) if not is_budget(f) and f.rpartition(".")[2] not in ("privacy", "trust")]
    told = {method: telling(records(own), fields) for method, own in rows.groupby("method")}
    setting = [", ".join(f"{f} {short(r[f])}" for f in told[r["method"]] if r[f] is not None) for r in known]
    first, others = list(dict.fromkeys(series)), sorted(set(setting), key=lambda words: (not words, words))
    colour, line = [first.index(s) for s in series], [others.index(s) for s in setting]
    marker = line if len(others) > 1 else colour
    rows = rows.assign(
        series=series,
        setting=setting,
        colour=[COLOURS[i % len(COLOURS)] for i in colour],
        marker=[MARKERS[i % len(MARKERS)] for i in marker],
        line=[LINES[i % len(LINES)] for i in line],
    )
    return rows.assign(x=_places(rows))


def _range(rows: pd.DataFrame) -> tuple[float, float, float]:
    """log10 of the two ends of the unbroken axis, and how wide the bands of 0 and infinity are."""
    finite = [math.log10(e) for e in rows["epsilon"] if 0 < e < math.inf] or [0.0]
    low, high = min(finite) - 0.2, max(finite) + 0.2
    return low, high, 0.45 * (high - low)


def _places(rows: pd.DataFrame) -> list[float]:
    """x of each row: log10 epsilon; in a band, the (series, setting) pairs stand side by side."""
    low, high, width = _range(rows)
    known = list(zip(rows["epsilon"], rows["series"], rows["setting"], strict=True))
    out = []
    for key in known:
        if 0 < key[0] < math.inf:
            out.append(math.log10(key[0]))
            continue
        beside = list(dict.fromkeys(k for k in known if k[0] == key[0]))
        share = 0.1 + 0.8 * (beside.index(key) + 0.5) / len(beside)
        out.append(width * share + (high if key[0] else low - width))
    return out


def _draw_points(axes: Any, rows: pd.DataFrame, name: str) -> None:
    by = ["series", "setting", "colour", "marker", "line"]
    for (_, _, colour, marker, line), own in rows.groupby(by, sort=False):
        for outcome, face, edge, width in (("finished", colour, "white", 0.5), ("stopped", "none", colour, 1.4)):
            points = own[own["outcome"] == outcome].sort_values("x")
            look = {"marker": marker, "markersize": 6.5, "mfc": face, "mec": edge, "mew": width}
            bars = {"ecolor": colour, "elinewidth": 0.8, "capsize": 2, "yerr": points[f"{name}_std"]}
            joined = {"linestyle": line if outcome == "finished" else "none", "linewidth": 0.9, "color": colour}
            axes.errorbar(points["x"], points[name], zorder=3, **look, **bars, **joined)
        best = own[own["pareto"] & (name == ranked_by(rows))]
        axes.plot(best["x"], best[name], marker, markersize=7, mfc="none", mec="black", mew=1.5, zorder=4)


def _draw_axis(axes: Any, rows: pd.DataFrame) -> None:
    """Ticks at 1, 2, 5 x 10^n; a shaded band and a break for each of 0 and infinity that occurs."""
    low, high, width = _range(rows)
    ends, epsilons = [low, high], set(rows["epsilon"])
    ticks: dict[float, str] = {}
    if any(0 < e < math.inf for e in epsilons):
        steps = (1, 2, 5) if high - low < 2.5 else (1,)
        every = {math.log10(m * 10.0**n): f"{m * 10.0**n:g}" for n in range(-9, 15) for m in steps}
        ticks = {x: words for x, words in every.items() if low <= x <= high}
    bands = ((0.0, low, low - width, "0\n(nothing\nsent)"), (math.inf, high, high + width, "inf\n(no\nguarantee)"))
    slash: Row = {"marker": [(-0.5, -1), (0.5, 1)], "markersize": 9, "color": "black", "linestyle": "none"}
    for _, inner, outer, words in (band for band in bands if band[0] in epsilons):
        ends.append(outer)
        ticks[(inner + outer) / 2] = words
        axes.axvspan(inner, outer, color="0.95", zorder=0, linewidth=0)
        x = [inner - 0.02 * width, inner + 0.02 * width] * 2
        axes.plot(x, [0, 0, 1, 1], transform=axes.get_xaxis_transform(), clip_on=False, **slash)
    axes.set_xlim(min(ends), max(ends))
    axes.set_xticks(list(ticks), list(ticks.values()), fontsize=8)
    axes.tick_params(axis="y", labelsize=8)
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)


def _axis_title(rows: pd.DataFrame) -> str:
    found = list(kinds(rows))
    if len(found) > 1:
        return "ε, of several kinds (see the legend): those of different kinds are not comparable"
    return (
        f"ε against {against(found[0])}: {_greek(stated(rows, found[0]))}"
        if found
        else "ε against the server: none is finite"
    )


def _greek(kind: str) -> str:
    return kind.replace("delta ", "δ = ")


def _legend(rows: pd.DataFrame, distances: list[str]) -> list[Any]:
    from matplotlib.lines import Line2D

    def entry(words: str = "", **look: Any) -> Any:
        usual = {"linestyle": "none", "linewidth": 0.9, "color": "0.35", "markersize": 6.5}
        return Line2D([], [], label=words, **{**usual, **look})

    several = rows["setting"].nunique() > 1  # then the marker tells the setting
    out = []
    for row in rows.drop_duplicates("series").to_dict("records"):
        marker = "o" if several else row["marker"]
        out.append(entry(textwrap.fill(row["series"], WIDTH), color=row["colour"], marker=marker))
    if any(rows["setting"]):
        out.append(entry())
        shown = rows.drop_duplicates("setting").assign(words=lambda r: r["setting"].replace("", "none of these"))
        for row in shown.sort_values("words").to_dict("records"):
            marker = row["marker"] if several else ""
            out.append(entry(textwrap.fill(row["words"], WIDTH), marker=marker, linestyle=row["line"]))
    out.append(entry())
    if rows["pareto"].any():
        out.append(entry("Pareto-optimal", marker="o", mfc="0.8", mec="black", mew=1.5))
    if (rows["outcome"] == "stopped").any():
        out.append(entry("stopped early\n(validation split)", marker="o", mfc="none", mew=1.4))
    if floors := floors_of(rows, distances):
        each = "".join(f"\n(one per value of {field})" for field in floors[0][0] if field != "method")
        out.append(entry(f"floor: real half\nagainst real half{each}", **FLOOR))
    if rows["n"].max() > 1:
        out.append(entry("standard deviation\nover seeds", marker="|", markersize=10))
    if len(found := kinds(rows)) > 1:
        words = [f"ε {_greek(stated(rows, kind))}; against {against(kind)}" for kind in found]
        out += [entry(), *(entry(textwrap.fill(line, WIDTH)) for line in words)]
    return out
