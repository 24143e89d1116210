"""Sections of the report: gains over local training with intervals, and all readings of the evaluation by setting."""

from __future__ import annotations

from pathlib import Path

from raydiff.formats import rounding
from raydiff.formats.intervals import shown
from raydiff.formats.tables import Table, number, with_deviation
from raydiff.report.frontier.rows import DONE, EVAL
from raydiff.report.gain_over_local import gains
from raydiff.report.html import sheet
from raydiff.report.sweep_view import Section, SweepView, short_column

GAINS = (
    "Each setting minus the best of its cell that sends nothing (without one, minus the best of all), seed by seed: "
    "mean and 95 % Student interval, bold where it excludes 0; negative: better. No correction for their number."
)
NOTE = "Mean over seeds, ± standard deviation; in square brackets the noise floor, real records against real."


def seeds(sweep: SweepView, out: Path) -> Section:
    """Of settings with several seeds the mean, and the paired difference from local training."""
    if sweep.measure is None or (table := gains(sweep))["n"].max() == 1:
        return Section([])
    header = ["cell", "setting", "epsilon", short_column(sweep.measure), "minus", "is", "n", "definition of epsilon"]
    lines = []
    for row in table.to_dict("records"):
        gain = shown(row["difference"], row["low"], row["high"], "+.3f", bold=True)
        first = [row["cell"].replace("all trials", ""), row["setting"], rounding.up(row["epsilon"])]
        lines.append([*first, number(row["mean"]), row["base"], gain, str(row["n"]), row["definition"]])
    return Section([*sheet(Table(header, lines, note=GAINS), "gains")], {"gain_over_local": table})


def quality(sweep: SweepView, out: Path) -> Section:
    """Means over seeds of all that the evaluation read, with noise floors."""
    done = sweep.runs[sweep.runs["outcome"].isin(DONE)]
    readings = done[[c for c in map(str, done) if c.startswith(EVAL) and done[c].notna().any()]]
    if readings.empty:
        return Section([])
    trials = readings.astype(float).rename(columns=short_column).groupby(sweep.settings.loc[done.index])
    mean, deviation, counts = trials.mean(), trials.std(), trials.size()

    def cell(setting: str, name: str) -> str:
        text = with_deviation(mean[name].loc[setting], deviation[name].loc[setting])
        floor = f"{name}_floor"
        return f"{text} [{number(mean[floor].loc[setting])}]" if floor in mean else text

    measures = [name for name in map(str, mean) if not sweep.metrics[f"{EVAL}{name}"].qualifies]
    settings = [setting for setting in sweep.order if setting in mean.index]
    rows = [[s, str(counts[s]), *(cell(s, name) for name in measures)] for s in settings]
    return Section([*sheet(Table(["setting", "n", *measures], rows, note=NOTE), "quality by setting")])
