"""Distances over the epochs of a training, as a PNG: one line for each learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

NAMES = {"kd_cnn": "kernel distance (kd_cnn)", "fd_cnn": "Fréchet distance (fd_cnn)"}
CUT = 2.0
"""A panel ends at so many times the distance at epoch 0: one rate that is far too large would flatten the others."""


def draw_curves(rows: Sequence[Mapping[str, float]], path: Path, *, title: str) -> None:
    """Write a panel for each distance that the rows have, with its floor (real half against real half).

    Each row has `learning_rate`, `epoch`, and the distances with `_floor`; kd_cnn with `_spread`, which is shaded.
    """
    from matplotlib.figure import Figure  # not pyplot, which keeps global state

    shown = [name for name in NAMES if name in rows[0]]
    figure = Figure(figsize=(4.4 * len(shown) + 1.6, 4.2), layout="constrained")
    figure.suptitle(title, fontsize=9)
    times = sorted({row["epoch"] for row in rows})
    for axes, name in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        for i, rate in enumerate(sorted({row["learning_rate"] for row in rows})):
            mine = sorted((row for row in rows if row["learning_rate"] == rate), key=lambda row: row["epoch"])
            epochs, values = [row["epoch"] for row in mine], [row[name] for row in mine]
            axes.plot(epochs, values, marker="o", markersize=3, color=f"C{i}", label=f"{rate:g}")
            if spread := [row[f"{name}_spread"] for row in mine if f"{name}_spread" in row]:
                low, high = ([v + sign * s for v, s in zip(values, spread, strict=True)] for sign in (-1, 1))
                axes.fill_between(epochs, low, high, color=f"C{i}", alpha=0.15, linewidth=0)
        axes.axhline(rows[0][f"{name}_floor"], color="grey", linestyle=":", label="floor")
        start = min(row[name] for row in rows if row["epoch"] == 0)
        if start > 0 and max(row[name] for row in rows) > CUT * start:
            lowest = min(*(row[name] for row in rows), rows[0][f"{name}_floor"])
            axes.set_ylim(lowest - 0.1 * (CUT * start - lowest), CUT * start)
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlim(-0.1, 1.15 * max(times) + 0.1)
        axes.set_xticks(times, [f"{t:g}" for t in times])
        axes.minorticks_off()
        axes.set(xlabel="epochs of the new client", ylabel=NAMES[name])
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, title="learning rate", fontsize=8, loc="outside right upper")
    figure.savefig(path, dpi=150, metadata={"privacy": "none"})
