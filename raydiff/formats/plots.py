"""Parts of all figures: panels, points with intervals, one legend. Without pyplot, which keeps global state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C510A", "#5E3C99")
"""Okabe and Ito's, for the colour-blind; then a brown and a violet."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
LINES = ("-", "--", "-.", ":")


def logarithmic(axes: Any) -> None:
    """Make the vertical axis logarithmic, with marks at 1, 2 and 5."""
    from matplotlib.ticker import LogLocator

    axes.set(yscale="log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")


def panels(rows: int, columns: int, *, size: tuple[float, float], dpi: int = 160, **shared: Any) -> tuple[Any, Any]:
    """Return a figure of this size in inches, and its axes as an array (rows, columns)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=dpi, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def points(axes: Any, x: Any, y: pd.Series, ends: tuple[pd.Series, pd.Series], **look: Any) -> None:
    """Draw joined points with the interval between `ends` (low, high); none where an end is NaN."""
    bars = [(y - ends[0]).clip(lower=0).fillna(0), (ends[1] - y).clip(lower=0).fillna(0)]
    axes.errorbar(x, y, yerr=bars, **look)


def legend(figure: Any, every: Sequence[Any], *, first: Sequence[str] = (), **look: Any) -> None:
    """Draw one legend for all these axes, beside them; the names in `first` lead, in that order."""
    handles: dict[str, Any] = {}
    for axes in every:
        drawn, names = axes.get_legend_handles_labels()
        handles |= zip(names, drawn, strict=True)
    names = sorted(handles, key=lambda name: first.index(name) if name in first else len(first))
    look = {"loc": "outside right upper", "fontsize": 8, "frameon": False, **look}
    figure.legend([handles[name] for name in names], names, **look)


def save_figure(figure: Any, path: Any) -> None:
    """Write a PNG, the same bytes from the same numbers."""
    figure.savefig(path, format="png", metadata={"Software": None})
