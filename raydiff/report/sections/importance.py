"""Section of the report: which swept fields the measure follows, and the trials as lines over parallel axes."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from raydiff.report.cells import number, short
from raydiff.report.frontier.rows import has
from raydiff.report.html import html
from raydiff.report.load import Row, column
from raydiff.report.plots import panels, save
from raydiff.report.sweep_view import Section, SweepView, spoken

LEAST = 10
"""Finished trials below which no importance is given."""
LEVELS = 5
"""Values of a number above which they are cut into quarters."""
AXES = 7
"""Fields of the parallel coordinates, the most important ones."""


def importance(sweep: SweepView, out: Path) -> Section:
    """The share of the measure's variance that each field explains alone, and the parallel coordinates."""
    done = sweep.finished
    if sweep.measure is None or done[sweep.measure].notna().sum() < 2:
        return Section([])
    done = done[done[sweep.measure].notna()]
    name = spoken(sweep.measure)
    blocks, tables, fields = [], {}, [*sweep.fields]
    if len(done) < LEAST:
        words = f"No importance: {len(done)} finished trials are too few to tell fields apart ({LEAST} are asked for)."
        blocks.append(html.paragraph(words))
    else:
        found = tables["importance"] = explained(sweep, done)
        says = f"Share of the variance of {name} that one field explains by itself, among the trials that have it; "
        says += "adjusted for the number of its values (epsilon squared), so that a field without effect is at 0 on "
        says += "average. Fields that were swept together share what they explain, and what acts only in company of "
        says += "another field is not seen. The seed and the data's split show what chance alone gives."
        cells = [
            [r["field"], str(r["trials"]), str(r["values"]), f"{r['share']:.0%}", html.bar(r["share"])]
            for r in found.to_dict("records")
        ]
        header = ["field", "trials", "values", "share", ""]
        blocks += [html.paragraph(says, note=True), html.table(header, cells, name="importance")]
        fields = [f for f in found["field"] if f in sweep.fields]
    if lines := coordinates(sweep, done, fields):
        caption = f"A line is a finished trial, dark where {name} is low (better)."
        blocks.append(html.picture(lines, alt=f"trials over parallel axes, coloured by {name}", caption=caption))
    return Section(blocks, tables)


def explained(sweep: SweepView, done: pd.DataFrame) -> pd.DataFrame:
    """field, trials, values, share: of the variance of the measure, of each field that varies; greatest first."""
    rows: list[Row] = []
    for path in (c for c in ("method", *sweep.fields, "seed", "data.split_seed") if c in done):
        of = done[has(done, path)] if path in sweep.fields else done
        levels = _levels(of[path])
        if len(of) >= LEAST and 1 < levels.nunique() < len(of):
            share = epsilon_squared(of[sweep.measure].astype(float), levels)
            rows.append({"field": path, "trials": len(of), "values": levels.nunique(), "share": share})
    rows.sort(key=lambda r: -r["share"])
    return pd.DataFrame(rows, columns=["field", "trials", "values", "share"])


def epsilon_squared(values: pd.Series, levels: pd.Series) -> float:
    """1 - (within-level variance) / (variance), both unbiased; 0 where it is negative or nothing varies."""
    total = float(values.var())
    if total == 0 or math.isnan(total):
        return 0.0
    within = values - values.groupby(levels).transform("mean")
    return max(0.0, 1 - float((within**2).sum()) / (len(values) - levels.nunique()) / total)


def _levels(values: pd.Series) -> pd.Series:
    """The values as text; of a number with many, its quarters."""
    numbers = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    if numbers and values.nunique() > LEVELS and values.nunique() > len(values) / 3:
        return pd.qcut(values.rank(method="first"), 4, labels=False).astype(object).fillna("none").astype(str)
    return values.astype(object).where(values.notna(), "none").astype(str)


# ------------------------------------------------------------------------------------------ parallel coordinates


def coordinates(sweep: SweepView, done: pd.DataFrame, fields: Sequence[str]) -> bytes:
    """A PNG: an axis for the method, the fields, the server's epsilon and the measure. Empty where nothing varies."""
    from matplotlib import colormaps

    assert sweep.measure is not None
    wanted = ["method", *fields[:AXES], "server/epsilon"]
    names = [c for c in wanted if c in done and done[c].nunique(dropna=False) > 1]
    axes = [_axis(done[c], has(done, c)) for c in names]
    if not axes:
        return b""
    values = column(done, sweep.measure)
    low, high = float(values.min()), float(values.max())
    share = (values - low) / (high - low) if high > low else values * 0
    axes.append((list(share), [(0.0, number(low)), (1.0, number(high))]))
    called = {**sweep.fields, "server/epsilon": "epsilon,\nserver"}
    labels = [*(called.get(n, n).replace(".", ".\n") for n in names), spoken(sweep.measure)]
    figure, ((plot,),) = panels(1, 1, size=(max(5.0, 1.5 * len(axes)), 3.8), dpi=130)
    paths = np.array([points for points, _ in axes]).T
    for line, at in sorted(zip(paths, share, strict=True), key=lambda both: -both[1]):
        plot.plot(range(len(axes)), line, color=colormaps["viridis"](0.95 * at), linewidth=0.9, alpha=0.75)
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.75}
    for x, (_, ticks) in enumerate(axes):
        plot.axvline(x, color="0.25", linewidth=0.8)
        for y, words in ticks:
            plot.annotate(words, (x, y), xytext=(3, 1), textcoords="offset points", fontsize=7, bbox=box)
    plot.set_xticks(range(len(axes)), labels, fontsize=8)
    plot.set(yticks=[], xlim=(-0.15, len(axes) - 0.55), ylim=(-0.06, 1.06))
    plot.spines[:].set_visible(False)
    buffer = io.BytesIO()
    save(figure, buffer)
    return buffer.getvalue()


def _axis(values: pd.Series, there: pd.Series) -> tuple[list[float], list[tuple[float, str]]]:
    """Where each trial is on an axis from 0 to 1, and the ticks: its values in order, at equal distances."""
    known = [("none" if has_it else "-") if pd.isna(v) else v for v, has_it in zip(values, there, strict=True)]
    order = sorted(set(known), key=lambda v: (isinstance(v, str), v))
    at = {v: i / max(1, len(order) - 1) for i, v in enumerate(order)}
    ticks = [(at[v], f"{v:.3g}" if isinstance(v, float) else short(v)) for v in order[:: math.ceil(len(order) / 9)]]
    return [at[v] for v in known], ticks
