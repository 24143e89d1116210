"""Pictures of per-instance privacy (pDP), after Wei et al. (arXiv 2310.15524)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd

PANELS = (
    ("3", "delta over similarity", "log", "log"),
    ("4", "n / s^psi_t over t", "linear", "log"),
    ("4", "radius over t", "linear", "linear"),
    ("4", "contribution over t", "linear", "log"),
    ("8", "contribution over t", "linear", "log"),
    ("5", "main term over s", "log", "log"),
    ("5", "delta over rate", "log", "log"),
    ("11", "delta over p", "linear", "log"),
)
"""(the paper's figure, quantity, scales of x and y)."""


def bound(table: pd.DataFrame, path: Path) -> None:
    """Figures 3, 4, 5, 8 and 11 from the rows of pdp-bound.csv: figure, quantity, curve, x, mean, low, high."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(17, 8), layout="constrained")
    for axes, (number, quantity, *scales) in zip(figure.subplots(2, 4).ravel(), PANELS, strict=True):
        here = table[(table["figure"] == number) & (table["quantity"] == quantity)]
        for label, curve in here.groupby("curve", sort=False):
            if number == "3":
                axes.plot(curve["x"], curve["mean"], ".", markersize=3, label=label)
                continue
            axes.plot(curve["x"], curve["mean"], "o-", markersize=3, label=label)
            above = curve["low"] > 0  # a logarithmic axis has no place for the others
            axes.fill_between(curve["x"], curve["low"], curve["high"], where=above, alpha=0.15)
        y, x = quantity.split(" over ")
        axes.set(xlabel=x, ylabel=y, xscale=scales[0], yscale=scales[1])
        axes.set_title(f"Figure {number}: {quantity}", fontsize=10)
        axes.legend(fontsize=7)
    figure.suptitle(
        "Bound on delta (pDP) on random tables, mean and 95 % interval (if above 0); training error not included"
    )
    figure.savefig(path, dpi=110)


def removal(table: pd.DataFrame, path: Path) -> None:
    """Figure 6, a panel per data set: bound of what is left, and accuracy, over the share removed."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(table["data.name"]))
    figure = Figure(figsize=(5.5 * len(names), 4), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        own = table[table["data.name"] == name].replace(math.inf, math.nan)
        axes.plot(own["removed"], own["bound_largest"], "s-", color="#E69F00", label="bound, largest")
        axes.plot(own["removed"], own["bound_mean"], "o-", color="#0072B2", label="bound, mean")
        axes.set(xlabel="share of records removed", ylabel="bound on delta (pDP), one row", yscale="log", title=name)
        other = axes.twinx()
        _line(other, own, "removed", "accuracy", color="#D55E00", label="accuracy")
        other.axhline(own["accuracy_real"].iloc[0], color="#D55E00", lw=0.8, ls="--", label="accuracy, real rows")
        other.axhline(own["accuracy_majority"].iloc[0], color="0.6", lw=0.8, ls=":", label="always the larger class")
        other.set_ylabel("accuracy on real test rows")
    both = [side.get_legend_handles_labels() for side in (axes, other)]
    figure.legend(*(a + b for a, b in zip(*both, strict=True)), fontsize=8, loc="outside lower center", ncols=3)
    figure.suptitle(
        "conditional on the removed set, not the pipeline's guarantee; infinite bounds left out", fontsize=9
    )
    figure.savefig(path, dpi=120)


def attack(table: pd.DataFrame, path: Path) -> None:
    """Figure 7, a panel per data set and T: the attack over the linear schedule's rate, others beside it."""
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys(zip(table["data.name"], table["method.model.steps"], strict=True)))
    figure = Figure(figsize=(4.6 * len(panels), 3.8), layout="constrained")
    every = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (name, steps) in zip(every, panels, strict=True):
        own = table[(table["data.name"] == name) & (table["method.model.steps"] == steps)]
        for (method, clients, schedule), arm in own.groupby(["method", "clients", "method.model.schedule"]):
            rates = arm["method.model.schedule.rate"].fillna(1)  # the cosine has none
            label = f"{method}, {clients:g} client{'s' if clients > 1 else ''}, {schedule}"
            _line(axes, arm.assign(rate=rates), "rate", "attack", label=label)
        for value in own["random"].unique():
            axes.axhline(value, color="0.6", lw=0.8, ls=":")
        axes.set(xlabel="rate of the schedule", title=f"{name}, T = {steps:g}", xscale="log")
        axes.legend(fontsize=7)
    every[0].set_ylabel("black-box attack: share right (dotted: random)")
    figure.savefig(path, dpi=120)


def _line(axes: Any, rows: pd.DataFrame, x: str, y: str, **look: str) -> None:
    bars = (rows[y] - rows[f"{y}_low"]).fillna(0), (rows[f"{y}_high"] - rows[y]).fillna(0)
    axes.errorbar(rows[x], rows[y], yerr=bars, fmt="o-", markersize=3, capsize=2, lw=1, **look)
