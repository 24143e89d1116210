"""Section of the report: losses over rounds."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import pandas as pd

from raydiff.formats.plots import COLOURS, LINES, legend, panels, save
from raydiff.report.html import html
from raydiff.report.sweep_view import Section, SweepView

LEAST = 3
"""Rounds of which there is a curve."""
SHOWN = len(COLOURS) * len(LINES)
"""Settings that have a line."""
WORDS = {"train/loss": "clients' loss", "server/loss": "server's loss"}


def training(sweep: SweepView, out: Path) -> Section:
    """A panel for each loss, a line for each setting: the mean over its seeds."""
    setting = dict(zip(sweep.runs["digest"], sweep.settings, strict=True))
    rounds = sweep.rounds[sweep.rounds["metric"].isin(WORDS)]
    rounds = rounds.assign(setting=rounds["digest"].map(setting))
    curves: dict[tuple[str, str], pd.Series] = {
        (str(metric), str(name)): of.groupby("step")["value"].mean()
        for metric in WORDS
        for name, of in rounds[rounds["metric"] == metric].groupby("setting")
    }
    curves = {key: curve for key, curve in curves.items() if len(curve) >= LEAST}
    names = [name for name in sweep.order if name in {of for _, of in curves}][:SHOWN]
    metrics = [m for m in WORDS if any((m, name) in curves for name in names)]
    if not metrics:
        return Section([])
    figure, axes = panels(1, len(metrics), size=(4.5 * len(metrics) + 3.5, 3.6))
    looks = dict(zip(names, ((c, style) for style, c in itertools.product(LINES, COLOURS)), strict=False))
    for plot, metric in zip(axes[0], metrics, strict=True):
        for name in (name for name in names if (metric, name) in curves):
            curve, (colour, style) = curves[metric, name], looks[name]
            plot.plot(curve.index + 1, curve, color=colour, linestyle=style, linewidth=1.2, label=name)
        plot.set(title=WORDS[metric], xlabel="round")
    legend(figure, axes[0], first=names)
    buffer = io.BytesIO()
    save(figure, buffer)
    says = "Mean over seeds. Losses of methods that predict unlike things, or see unlike records, do not compare."
    return Section([html.paragraph(says, note=True), html.picture(buffer.getvalue(), alt="losses over rounds")])
