"""README's picture: what travels between clients, coordinator, Tune and MLflow.

python docs/what_travels.py     writes docs/img/what-travels.svg
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

PICTURE = Path(__file__).resolve().parent / "img" / "what-travels.svg"
INK, GREEN, RED, GREY = "#263238", "#00796b", "#c2410c", "#78909c"


def _box(
    axes: Axes, corner: tuple[float, float], size: tuple[float, float], *, title: str, says: str, color: str
) -> None:
    (x, y), (width, height) = corner, size
    axes.add_patch(FancyBboxPatch(corner, width, height, boxstyle="round,pad=0.06", fc=color, ec=INK, lw=1.2))
    axes.text(x + width / 2, y + height - 0.2, title, ha="center", va="center", fontsize=12, weight="bold", color=INK)
    axes.text(x + width / 2, y + height / 2 - 0.2, says, ha="center", va="center", fontsize=9.5, color=INK)


def _arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], *, color: str, dashed: bool = False
) -> None:
    style = "dashed" if dashed else "solid"
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=16, lw=1.8, color=color, ls=style))


def draw() -> Figure:
    """Draw the picture."""
    figure = Figure(figsize=(10, 3.91), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 11), ylim=(0, 4.3))
    axes.axis("off")
    for shift in (0.2, 0.1):
        _box(axes, (0.2 + shift, 1.5 + shift), (2.1, 1.6), title="", says="", color="#e8f5e9")
    says = "own records, and\nprivate state,\nwhich is never sent"
    _box(axes, (0.2, 1.5), (2.1, 1.6), title="clients", says=says, color="#e8f5e9")
    text = "in worker actors, each with\nCPUs or a fraction of a GPU"
    axes.text(1.3, 1.3, text, ha="center", va="top", fontsize=9.5, color=INK)
    says = "checks each release,\naggregates;\nits ledger computes\nepsilon from events"
    _box(axes, (5.5, 1.5), (2.2, 1.7), title="coordinator", says=says, color="#e3f2fd")
    _box(
        axes,
        (8.9, 2.7),
        (1.9, 1.1),
        title="Ray Tune",
        says="concurrent trials,\nresumed after a crash",
        color="#fff8e1",
    )
    _box(axes, (8.9, 0.5), (1.9, 1.1), title="MLflow", says="records every trial", color="#fff8e1")

    _arrow(axes, (5.4, 2.95), (2.65, 2.95), color=GREY)
    axes.text(4.02, 3.05, "the server's model", ha="center", fontsize=9.5, color=INK)
    _arrow(axes, (2.65, 2.35), (5.4, 2.35), color=GREEN)
    axes.text(4.02, 2.45, "release: value and privacy event", ha="center", fontsize=9.5, weight="bold", color=GREEN)
    _arrow(axes, (2.65, 1.75), (5.4, 1.75), color=RED, dashed=True)
    text = "losses, distances, attacks, samples:\nthe experimenter's measurements,\nno part of a deployment"
    axes.text(4.02, 1.62, f"{text}\n(off with --protocol-only)", ha="center", va="top", fontsize=9.5, color=RED)
    _arrow(axes, (7.82, 2.75), (8.8, 3.15), color=GREY)
    axes.text(7.75, 3.5, "rounds, metrics", ha="center", fontsize=9.5, color=INK)
    _arrow(axes, (9.85, 2.6), (9.85, 1.72), color=GREY)
    text = "configuration, metrics,\nledger, sample grids"
    axes.text(9.72, 2.16, text, ha="right", va="center", fontsize=9.5, color=INK)
    _arrow(axes, (6.6, 1.4), (6.6, 0.95), color=GREY)
    text = "every round is committed to shared storage;\nclients write their own state there"
    axes.text(6.6, 0.5, text, ha="center", fontsize=9.5, color=INK)
    return figure


if __name__ == "__main__":
    matplotlib.rcParams["svg.hashsalt"] = "raydiff"  # the same bytes for the same picture
    draw().savefig(PICTURE, metadata={"Date": None})
