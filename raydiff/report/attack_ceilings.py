"""Attacks under their ceiling: the ROC curve that a release's noise allows at most, and what attacks reach.

    raydiff ceilings ATTACKS.csv --mu 1.76 [--canary 1.4] [--out ceilings.png]

ATTACKS.csv has a row for each point: attack, fpr, tpr, low, high (the interval of tpr; empty: none). Points of one
attack are joined; a row with `auc` in place of fpr is its AUC, shown in the legend. mu is the run's `privacy/mu`;
--canary the lower bound of raydiff canary: the true trade-off lies between its curve and the ceiling.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from raydiff.formats import plots
from raydiff.formats.csv_files import read_csv
from raydiff.formats.intervals import shown

RATES = ["fpr", "tpr", "low", "high"]
LEAST = 1e-4  # where the logarithmic axes begin


def read(path: Path) -> pd.DataFrame:
    """The table. Raises ValueError for one without these columns, or with rates outside [0, 1]."""
    rows = read_csv(path)
    if missing := [c for c in ("attack", *RATES) if c not in rows]:
        raise ValueError(f"{path} has no column {', '.join(missing)}")
    rates = rows[RATES].replace("auc", math.nan).apply(pd.to_numeric, errors="coerce")
    readable = rows["tpr"].notna() & (rates["fpr"].notna() | (rows["fpr"] == "auc"))
    if not readable.all() or ((rates < 0) | (rates > 1)).any(axis=None):
        raise ValueError(f"{path} must have an fpr (or auc) and a tpr in [0, 1] in every row")
    return pd.DataFrame(rates.assign(attack=rows["attack"]))


def ceiling(mu: float, fprs: Any) -> Any:
    """The largest true positive rate of any attack under mu-Gaussian DP, Phi(mu + Phi^-1(fpr))."""
    from scipy.special import ndtr, ndtri

    return ndtr(mu + ndtri(fprs))


def draw(rows: pd.DataFrame, path: Path, *, mu: float, canary: float | None = None) -> None:
    """Draw a log-log ROC: ceiling, attacks and canaries with intervals, chance. Raises ValueError for mu < 0."""
    import numpy as np

    if not all(0 <= value < math.inf for value in (mu, canary or 0.0)):
        raise ValueError(f"mu and the canaries' bound must be numbers >= 0, got {mu} and {canary}")
    fprs = np.geomspace(LEAST, 1, 400)
    figure, ((axes,),) = plots.panels(1, 1, size=(5.6, 4.6), dpi=200)
    auc = float(ceiling(mu / math.sqrt(2), 0.5))
    axes.plot(fprs, ceiling(mu, fprs), color="black", label=f"ceiling of any attack, mu {mu:.3g} (AUC {auc:.3f})")
    axes.plot(fprs, fprs, color="0.6", linestyle=":", label="chance")
    if canary is not None:
        label = f"canaries: mu between {canary:.3g} and {mu:.3g}"
        axes.fill_between(fprs, ceiling(canary, fprs), ceiling(mu, fprs), color="0.9", linewidth=0, label=label)
    looks = itertools.cycle(zip(plots.COLOURS, plots.MARKERS, strict=False))
    for (attack, group), (colour, marker) in zip(rows.groupby("attack", sort=False), looks, strict=False):
        points, aucs = group[group["fpr"].notna()].sort_values("fpr"), group.loc[group["fpr"].isna(), RATES[1:]]
        label = ", AUC ".join([str(attack), *(shown(auc, low, high, ".3f") for auc, low, high in aucs.to_numpy(float))])
        look = {"marker": marker, "markersize": 4, "linewidth": 0.9, "color": colour, "capsize": 2, "label": label}
        plots.points(axes, points["fpr"], points["tpr"], (points["low"], points["high"]), **look)
    axes.set(xscale="log", yscale="log", xlim=(LEAST, 1), ylim=(LEAST, 1))
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    axes.legend(fontsize=7, loc="lower right")
    plots.save(figure, path)


def main(argv: Sequence[str]) -> None:
    """Draw, and print the picture's path."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attacks", metavar="ATTACKS.csv", type=Path)
    parser.add_argument("--mu", type=float, required=True, help="of Gaussian DP, as the ledger has it")
    parser.add_argument("--canary", type=float, help="lower bound on mu from canaries")
    parser.add_argument("--out", type=Path, default=Path("ceilings.png"))
    options = parser.parse_args(argv)
    draw(read(options.attacks), options.out, mu=options.mu, canary=options.canary)
    print(options.out)
