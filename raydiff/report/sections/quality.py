"""Section of the report: all readings of the evaluation by setting."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from raydiff.formats.metric_names import Metric
from raydiff.formats.tables import Table, number, with_deviation
from raydiff.report.frontier.rows import DONE, EVAL
from raydiff.report.html import sheet
from raydiff.report.sweep_view import Section, SweepView, short_column

NOTE = "Mean over seeds, ± standard deviation; in square brackets the noise floor, real records against real."


def quality(sweep: SweepView, out: Path) -> Section:
    """Means over seeds of all that the evaluation read, with noise floors."""
    done = sweep.runs[sweep.runs["outcome"].isin(DONE)]
    names = [c for c in map(str, sweep.runs) if c.startswith(EVAL)]
    values = done.melt(id_vars="digest", value_vars=names, var_name="measure").dropna(subset="value")
    trials = pd.DataFrame({"digest": sweep.runs["digest"], "setting": sweep.settings, "seed": sweep.trials["seed"]})
    readings = trials.merge(values, on="digest").astype({"value": float})
    if readings.empty:
        return Section([])
    readings["measure"] = readings["measure"].map(short_column)
    measures = [m for m in readings["measure"].unique() if not Metric.parse(m).qualifies]
    stats = readings.groupby(["setting", "measure"])["value"].agg(["mean", "std"])

    def cell(setting: str, name: str) -> str:
        at, floor = (setting, name), (setting, f"{name}_floor")
        shown = with_deviation(stats["mean"].loc[at], stats["std"].loc[at]) if at in stats.index else ""
        return f"{shown} [{number(float(stats['mean'].loc[floor]))}]" if floor in stats.index else shown

    counts = readings.groupby("setting")["digest"].nunique()
    settings = [setting for setting in sweep.order if setting in counts]
    rows = [[s, str(counts[s]), *(cell(s, name) for name in measures)] for s in settings]
    table = Table(["setting", "n", *measures], rows, note=NOTE)
    return Section([*sheet(table, "quality by setting")], {"quality": readings})
