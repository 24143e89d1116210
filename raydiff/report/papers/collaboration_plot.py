"""The paired curves as a picture: distance of the minority classes over epsilon, one panel per cell of the others."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

LOOKS = {
    "localonly": ("0.35", "--"),
    "no-server": ("#E69F00", ":"),
    "shuffled": ("#CC79A7", ":"),
    "collafuse": ("#56B4E9", "-."),
    "pfdm": ("#0072B2", "-"),
    "gaussian": ("#009E73", "-"),
    "centre-localonly": ("0.35", ":"),
    "centre": ("#D55E00", "-"),
    "centre-gaussian": ("#F0E442", "-"),
    "fedavg": ("#000000", "-."),
    "centralised": ("0.6", "-."),
}
"""Arm -> colour (Okabe and Ito's, which the colour-blind tell apart) and line; grey and black have no epsilon."""


def plot(found: pd.DataFrame, path: Path) -> None:
    """One panel per minority size (columns) and sampler (rows); mean over seeds, bars from least to greatest."""
    from matplotlib.figure import Figure

    minorities = sorted(found["minority"].dropna().unique())
    samplers = list(dict.fromkeys(found["sampler"]))
    levels = sorted(found["epsilon"].dropna().unique())
    figure = Figure(figsize=(3.6 * len(minorities) + 1.6, 3.0 * len(samplers)), dpi=160, layout="constrained")
    panels = figure.subplots(len(samplers), len(minorities), squeeze=False, sharex=True)
    for line, sampler in zip(panels, samplers, strict=True):
        for axes, minority in zip(line, minorities, strict=True):
            here = found[(found["sampler"] == sampler) & ((found["minority"] == minority) | found["minority"].isna())]
            _panel(axes, here, levels)
            axes.set_title(f"{minority:g} records a minority class, {sampler}", fontsize=9)
    figure.supxlabel("epsilon of an upload", fontsize=9)
    figure.supylabel("Fréchet distance, minority classes", fontsize=9)
    drawn = [axes.get_legend_handles_labels() for axes in panels.flat]
    legend = {name: handle for handles, names in drawn for handle, name in zip(handles, names, strict=True)}
    figure.legend(legend.values(), legend.keys(), loc="outside right upper", fontsize=8, frameon=False)
    figure.savefig(path, metadata={"Software": None})


def _panel(axes, found: pd.DataFrame, levels: list[float]) -> None:  # type: ignore[no-untyped-def]
    for arm, (colour, line) in LOOKS.items():
        rows = found[found["arm"] == arm]
        if rows.empty:
            continue
        if rows["epsilon"].isna().all():
            axes.axhline(rows["distance"].mean(), color=colour, linestyle=line, linewidth=1.2, label=arm)
            continue
        at = rows.groupby("epsilon")["distance"].agg(["mean", "min", "max"])
        x = [levels.index(e) for e in at.index]
        spread = [at["mean"] - at["min"], at["max"] - at["mean"]]
        axes.errorbar(x, at["mean"], yerr=spread, color=colour, linestyle=line, marker="o", ms=3, capsize=2, label=arm)
    axes.set_xticks(range(len(levels)), ["none" if math.isinf(e) else f"{e:g}" for e in levels])
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.tick_params(which="both", labelsize=8)
