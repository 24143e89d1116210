"""FedDistr's figures: utility loss over rounds (4 and 7), bytes, epsilon (5) and the number of clients (8)."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pandas as pd

from raydiff.report.frontier.plot import COLOURS, LINES, MARKERS
from raydiff.report.load import Row
from raydiff.report.papers.feddistr_table import ALONE, BOUNDS, CELL, POOLED

LEVELS: dict[str, Row] = {
    "centralised": {"color": "black", "linestyle": (0, (6, 2))},
    "one pooled client": {"color": "0.55", "linestyle": (0, (6, 2))},
    "one pooled client, decoded latents": {"color": "0.7", "linestyle": (0, (3, 2))},
    "FedDistr, decoded latents": {"color": "#8C510A", "linestyle": (0, (3, 2))},
    ALONE: {"color": "0.35", "linestyle": (0, (1, 2))},
}
"""Look of an arm that is a level: the upper bounds, dashed, and each client alone, which sends nothing, dotted."""
VALIDATION = "thin: validation split, most rounds"
APART = 1.04
"""Factor by which series at one place of a logarithmic axis stand apart."""


def plot(rows: pd.DataFrame, found: pd.DataFrame, curve: pd.DataFrame, out: Path) -> list[Path]:
    """A PNG per question that the rows of `summary` answer, into `out`; returns them."""
    names = list(dict.fromkeys(rows.loc[~rows["base"].isin(LEVELS), "name"]))
    numbers = [names.index(name) if name in names else -1 for name in rows["name"]]
    rows = rows.assign(series=rows["name"], number=numbers, kind=rows["kind"].where(rows["asked"].notna(), ""))
    plain, noisy = rows[rows["asked"].isna()], rows[(rows["epsilon"] > 0) & (rows["epsilon"] < math.inf)]
    is_level = plain["base"].isin(LEVELS)
    levels, lines = plain[is_level], plain[~is_level]
    noisy = _with_rounds(noisy[~noisy["base"].isin(BOUNDS)])
    same = _with_rounds(lines)
    same = same[same["series"].isin(noisy["series"])]
    same = same.assign(series=same["series"] + ", without noise")
    pictures = {
        "rounds": (lines, levels, "rounds", "rounds of communication", _validation(found, curve)),
        "bytes": (lines[lines["bytes"] > 0], levels, "bytes", "bytes sent by all clients in all rounds", None),
        "epsilon": (noisy, pd.concat([levels, same]), "epsilon", "epsilon against the server", None),
    }
    if rows["clients"].nunique() > 1:
        pooled = levels["base"].isin(POOLED.values())
        most = lines[lines["rounds"] == lines.groupby(["name", *CELL])["rounds"].transform("max")]
        each = pd.concat([most, levels[~pooled]])
        pictures["clients"] = (each, levels[pooled], "clients", "clients K; each method at its most rounds", None)
    paths = []
    for name, (series, flat, x, title, thin) in pictures.items():
        if len(series):
            paths.append(out / f"feddistr-{name}.png")
            _picture(series, flat, x, title, thin, paths[-1])
    return paths


def _with_rounds(rows: pd.DataFrame) -> pd.DataFrame:
    words = [f"{n}, {r} round{'s' if r > 1 else ''}" for n, r in zip(rows["name"], rows["rounds"], strict=True)]
    return rows.assign(series=words)


def _validation(found: pd.DataFrame, curve: pd.DataFrame) -> pd.DataFrame:
    """name, xi, clients, rounds, loss: the mean validation curve of the arms with most rounds, without noise."""
    own = found[found["asked"].isna() & ~found["base"].isin(LEVELS)]
    own = own[own["rounds"] == own.groupby(["name", *CELL])["rounds"].transform("max")]
    both = own[["digest", "name", *CELL]].merge(curve.rename(columns={"round": "rounds"}), on="digest")
    return both.groupby(["name", *CELL, "rounds"], as_index=False)[["loss"]].mean()


def _looks(series: pd.DataFrame, flat: pd.DataFrame) -> dict[str, Row]:
    """{series: look}: a colour and a marker per method, a line per series of one method; of a level, its own."""
    of: dict[str, list[str]] = {}
    out: dict[str, Row] = {}
    for row in pd.concat([series, flat]).drop_duplicates("series").to_dict("records"):
        if row["base"] in LEVELS:
            out[row["series"]] = {"marker": "", **LEVELS[row["base"]]}
            continue
        i, own = row["number"], of.setdefault(row["name"], [])
        own.append(row["series"])
        out[row["series"]] = {
            "color": COLOURS[(i + 1) % len(COLOURS)],  # FedDistr, the first, is red as in the paper
            "marker": MARKERS[i % len(MARKERS)],
            "linestyle": LINES[(len(own) - 1) % len(LINES)],
        }
    return out


def _picture(
    series: pd.DataFrame, flat: pd.DataFrame, x: str, title: str, thin: pd.DataFrame | None, path: Path
) -> None:
    """One panel per xi (columns), and per K and kind of epsilon (rows); mean over seeds, bars the 95 % interval."""
    from matplotlib.figure import Figure

    looks, kinds = _looks(series, flat), sorted(series["kind"].unique())
    columns = sorted(series["xi"].unique())
    counts = [None] if x == "clients" else sorted(series["clients"].unique())
    rows = list(itertools.product(kinds, counts))
    figure = Figure(figsize=(3.1 * len(columns) + 2.6, 2.7 * len(rows) + 0.6), dpi=160, layout="constrained")
    grid = figure.subplots(len(rows), len(columns), squeeze=False, sharex=True, sharey=True)
    for line, (kind, clients) in zip(grid, rows, strict=True):
        for axes, xi in zip(line, columns, strict=True):
            series_here = _here(series[series["kind"] == kind], xi, clients)
            _panel(axes, series_here, _here(flat, xi, clients), x, looks)
            if thin is not None:
                _thin(axes, _here(thin, xi, clients), looks)
            says = f"xi {xi:g}" if clients is None else f"xi {xi:g}, K {clients}"
            axes.set_title(f"{says}\n{kind}" if len(kinds) > 1 else says, fontsize=9)
    _axes(grid[0, 0], series, x)
    about = f" ({kinds[0]})" if len(kinds) == 1 and kinds[0] else ""
    figure.supxlabel(title + about, fontsize=9)
    figure.supylabel("utility loss (1 - accuracy)", fontsize=9)
    drawn = [axes.get_legend_handles_labels() for axes in grid.flat]
    legend = {name: handle for handles, names in drawn for handle, name in zip(handles, names, strict=True)}
    names = [name for name in [*looks, VALIDATION] if name in legend]
    handles = [legend[name] for name in names]
    figure.legend(handles, names, loc="outside right upper", fontsize=8, frameon=False, handlelength=3)
    figure.savefig(path, metadata={"Software": None})


def _here(rows: pd.DataFrame, xi: float, clients: int | None) -> pd.DataFrame:
    here = rows[rows["xi"] == xi]
    return here if clients is None else here[here["clients"] == clients]


def _panel(axes: Any, series: pd.DataFrame, flat: pd.DataFrame, x: str, looks: dict[str, Row]) -> None:
    for name, own in flat.groupby("series"):
        axes.axhline(own["loss"].iloc[0], linewidth=1.1, label=name, **{**looks[str(name)], "marker": ""})
    drawn = [name for name in looks if name in set(series["series"])]
    for i, name in enumerate(drawn):
        own = series[series["series"] == name].sort_values(x)
        places = own[x] if x == "bytes" else own[x] * APART ** (i - (len(drawn) - 1) / 2)
        bars = [(own["loss"] - own["low"]).fillna(0), (own["high"] - own["loss"]).fillna(0)]
        axes.errorbar(places, own["loss"], yerr=bars, ms=4, linewidth=1.3, elinewidth=0.9, label=name, **looks[name])


def _thin(axes: Any, curves: pd.DataFrame, looks: dict[str, Row]) -> None:
    for name, own in curves.groupby("name"):
        axes.plot(own["rounds"], own["loss"], color=looks[str(name)]["color"], linewidth=0.6, alpha=0.6)
    if len(curves):
        axes.plot([], [], color="0.5", linewidth=0.6, label=VALIDATION)


def _axes(axes: Any, series: pd.DataFrame, x: str) -> None:
    """Of all panels, which share theirs: a logarithmic x; losses between 0 and 1, although intervals may end beyond."""
    axes.set_xscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, 0), min(high, 1))
    if x in ("rounds", "clients"):
        run = sorted(series[x].unique())
        axes.set_xticks(run, [str(v) for v in run])
        axes.minorticks_off()
    axes.set_xlim(series[x].min() / 1.5, series[x].max() * 1.5)
