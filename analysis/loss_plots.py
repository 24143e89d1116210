"""FedDistr's figures: utility loss over rounds and over bytes, with the bounds as horizontal lines."""

from __future__ import annotations

import itertools
from pathlib import Path

import pandas as pd

from raydiff.formats import plots

CELL = ["xi", "clients"]
FEDDISTR = "FedDistr"
LATENTS = "FedDistr, decoded latents"
CENTRAL = "centralised"
"""LocalOnly on pooled data."""
PUBLIC = "public records alone"
"""The control, to which no client sends anything."""
LEVELS = {PUBLIC: "-", CENTRAL: "--", LATENTS: "-.", "LocalOnly": ":"}
"""Arms drawn as horizontal lines: the control, bounds that no federation can pass, and local training."""


def draw(rows: pd.DataFrame, out: Path) -> list[Path]:
    """Utility loss over rounds and over bytes, without noise, from the rows of `summary`: a PNG each."""
    plain = rows[rows["target"].isna()]
    series = plain[~plain["base"].isin(LEVELS)]
    levels = plain[plain["base"].isin(LEVELS)]
    paths = []
    for x, title in (("rounds", "rounds of communication"), ("bytes", "bytes sent by all clients in all rounds")):
        if (series[x] > 0).any():
            paths.append(out / f"feddistr-{x}.png")
            _picture(series[series[x] > 0], levels, x, title, paths[-1])
    return paths


def _picture(series: pd.DataFrame, levels: pd.DataFrame, x: str, title: str, path: Path) -> None:
    """One panel per xi (columns) and K (rows); mean over seeds, bars the 95 % interval."""
    names, (xis, clients) = list(series["name"].unique()), (sorted(series[c].unique()) for c in CELL)
    size = (3.1 * len(xis) + 2.6, 2.7 * len(clients) + 0.6)
    figure, grid = plots.panels(len(clients), len(xis), size=size, sharex=True, sharey=True)
    for axes, (k, xi) in zip(grid.flat, itertools.product(clients, xis), strict=True):
        arms, flat = (rows[(rows["xi"] == xi) & (rows["clients"] == k)] for rows in (series, levels))
        for name, line in LEVELS.items():
            for loss in flat.loc[flat["base"] == name, "loss"]:
                axes.axhline(loss, linewidth=1.1, label=name, linestyle=line, color="0.35")
        for i, name in enumerate(names):
            arm = arms[arms["name"] == name].sort_values(x)
            look = {"color": plots.COLOURS[i % len(plots.COLOURS)], "marker": plots.MARKERS[i % len(plots.MARKERS)]}
            plots.points(axes, arm[x], arm["loss"], (arm["low"], arm["high"]), ms=4, label=name, **look)
        axes.set_title(f"xi {xi:g}, K {k}", fontsize=9)
        axes.set(xscale="log", ylim=(max(axes.get_ylim()[0], 0), min(axes.get_ylim()[1], 1)))
    figure.supxlabel(title, fontsize=9)
    figure.supylabel("utility loss (1 - accuracy)", fontsize=9)
    plots.legend(figure, grid.flat, first=names)
    plots.save_figure(figure, path)
