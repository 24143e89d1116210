"""Figures of commands, as PNGs: records per client, distances over a training, ROC curves of attacks."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from raydiff.formats.plots import panels

DISTANCES = {"kd_cnn": "kernel distance (kd_cnn)", "fd_cnn": "Fréchet distance (fd_cnn)"}
CUT = 2.0  # upper limit of a panel over the distance at epoch 0, so that a diverging rate does not flatten the others


def draw_curves(rows: Sequence[Mapping[str, float]], path: Path, *, title: str) -> None:
    """Write a panel for each distance that the rows have, with its noise floor (real half against real half).

    Each row has `learning_rate`, `epoch`, and the distances with `_floor`.
    """
    shown = [name for name in DISTANCES if name in rows[0]]
    figure, (every,) = panels(1, len(shown), size=(4.4 * len(shown) + 1.6, 4.2))
    figure.suptitle(title, fontsize=9)
    for axes, name in zip(every, shown, strict=True):
        for rate in sorted({row["learning_rate"] for row in rows}):
            curve = sorted((row["epoch"], row[name]) for row in rows if row["learning_rate"] == rate)
            axes.plot(*zip(*curve, strict=True), marker="o", markersize=3, label=f"{rate:g}")
        axes.axhline(rows[0][f"{name}_floor"], color="grey", linestyle=":", label="floor")
        start = min(row[name] for row in rows if row["epoch"] == 0)
        axes.set_ylim(top=min(axes.get_ylim()[1], CUT * start) if start > 0 else None)
        axes.set_xscale("symlog", linthresh=1)
        axes.set(xlabel="epochs of the new client", ylabel=DISTANCES[name])
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, title="learning rate", fontsize=8, loc="outside right upper")
    figure.savefig(path, dpi=150, metadata={"privacy": "none"})


def roc(members: Tensor, nonmembers: Tensor) -> tuple[Tensor, Tensor]:
    """Return (false, true positive rates), ascending from (0, 0) to (1, 1), of scores (n,) that are low for members."""
    values = torch.cat([members, nonmembers]).double().unique()
    rates = [torch.searchsorted(s.double().sort().values, values, right=True) / len(s) for s in (nonmembers, members)]
    fpr, tpr = (torch.cat([torch.zeros(1), rate]) for rate in rates)
    return fpr, tpr


def draw_roc(scores: Mapping[str, tuple[Tensor, Tensor]], path: Path, *, title: str) -> None:
    """Write a curve for each attack's (members, nonmembers), on logarithmic axes (Carlini et al., arXiv 2112.03570)."""
    figure, ((axes,),) = panels(1, 1, size=(5.0, 4.6))
    least = 1 / (2 * max(max(map(len, pair)) for pair in scores.values()))
    for name, (members, nonmembers) in scores.items():
        fpr, tpr = roc(members, nonmembers)
        axes.step(fpr.clamp_min(least).tolist(), tpr.clamp_min(least).tolist(), where="post", label=name)
    axes.plot([least, 1], [least, 1], color="grey", linestyle=":", label="guessing")
    axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1))
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    axes.set_title(title, fontsize=8)
    axes.legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=150, metadata={"privacy": "none"})


def draw_counts(counts: Tensor, class_names: Sequence[str], path: Path) -> None:
    """Write `counts` (M, K) as a heat map, clients by classes, with numbers where legible."""
    from matplotlib.colors import PowerNorm
    from matplotlib.ticker import MaxNLocator

    clients, classes = counts.shape
    few_clients = clients <= 32
    few_classes = classes <= 32
    legible = few_clients and few_classes
    top = max(int(counts.max()), 1)
    total = int(counts.sum())
    # inches
    figure, ((axes,),) = panels(
        1, 1, size=(max(4.0, 1.6 + min(0.5 * classes, 14)), max(2.0, 1.4 + min(0.3 * clients, 9)))
    )
    # a linear scale hides small counts
    cells = axes.pcolormesh(
        counts.numpy(), cmap="Blues", norm=PowerNorm(0.5, vmin=0, vmax=top), edgecolors="white", linewidth=0.5 * legible
    )
    axes.invert_yaxis()
    axes.set(title=f"records per client and class ({total:,} in all)", xlabel="class", ylabel="client")
    if few_clients:
        axes.set_yticks(
            [m + 0.5 for m in range(clients)], [f"{m}  ({n:,})" for m, n in enumerate(counts.sum(1).tolist())]
        )
    if few_classes:
        slanted = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if max(map(len, class_names)) > 3 else {}
        axes.set_xticks([k + 0.5 for k in range(classes)], class_names, **slanted)
    if legible:
        for m, k in counts.nonzero().tolist():
            n = int(counts[m, k])
            colour = "white" if n > 0.4 * top else "black"
            axes.text(k + 0.5, m + 0.5, str(n), ha="center", va="center", fontsize=8, color=colour)
    else:
        figure.colorbar(cells, label="records", ticks=MaxNLocator(integer=True))
    figure.savefig(path, dpi=150)
