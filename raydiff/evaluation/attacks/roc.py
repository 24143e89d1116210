"""ROC curves of membership attacks, on logarithmic axes as Carlini et al. (arXiv 2112.03570) draw them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor


def roc(members: Tensor, nonmembers: Tensor) -> tuple[Tensor, Tensor]:
    """(false positive rates, true positive rates), ascending from (0, 0) to (1, 1), of scores (n,) low for members."""
    values = torch.cat([members, nonmembers]).double().unique()
    rates = [torch.searchsorted(s.double().sort().values, values, right=True) / len(s) for s in (nonmembers, members)]
    fpr, tpr = (torch.cat([torch.zeros(1), rate]) for rate in rates)
    return fpr, tpr


def draw_roc(scores: Mapping[str, tuple[Tensor, Tensor]], path: Path, *, title: str) -> None:
    """Write a PNG with a curve for each attack's (members, nonmembers); the axes begin below one record of either."""
    from matplotlib.figure import Figure  # not pyplot, which keeps global state

    figure = Figure(figsize=(5.0, 4.6), layout="constrained")
    axes = figure.subplots()
    least = min(1 / (2 * len(s)) for pair in scores.values() for s in pair)
    for name, (members, nonmembers) in scores.items():
        fpr, tpr = roc(members, nonmembers)
        axes.step(fpr.clamp_min(least).tolist(), tpr.clamp_min(least).tolist(), where="post", label=name)
    axes.plot([least, 1], [least, 1], color="grey", linestyle=":", label="guessing")
    axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1))
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    axes.set_title(title, fontsize=8)
    axes.legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=150, metadata={"privacy": "none"})
