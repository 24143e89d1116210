"""Section of the report: of each method the best private setting, beside local training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from raydiff.experiment.study import trial_name
from raydiff.formats import rounding
from raydiff.formats.intervals import decided, shown, student
from raydiff.formats.json_files import flatten, read_json
from raydiff.formats.metric_names import plain
from raydiff.formats.tables import number, span
from raydiff.lookup import bare_name
from raydiff.report.gain_over_local import gains
from raydiff.report.html import html
from raydiff.report.load import Row, groups, records
from raydiff.report.sections.seeds import compared
from raydiff.report.sweep_view import Section, SweepView, short_column

MEANS = 30  # settings whose mean is a run in MLflow


def conclusion(sweep: SweepView, out: Path) -> Section:
    """The number of finished trials; of each method the best private setting."""
    first, *lines = sentences(sweep)
    return Section([html.paragraph(first), html.bullets(lines)])


def sentences(sweep: SweepView) -> Iterator[str]:
    """The section as text: a sentence, then one for each cell, method and privacy definition."""
    finished = f"{len(sweep.finished)} of {len(sweep.runs)} trials finished"
    private = pd.DataFrame() if sweep.measure is None else gains(sweep)
    if private.empty:
        yield f"{finished}; no private setting to compare with local training."
        return
    yield f"{finished}. Best private setting of each method by {short_column(str(sweep.measure))}, lower is better:"
    private = private.assign(method=private["arm"].str.partition(", ")[0])
    for of, group in groups(private, ["cell", "method", "definition"], sort=False):
        best = records(group.sort_values("mean"))[0]
        difference, low, high = (math.nan if best[k] is None else best[k] for k in ("difference", "low", "high"))
        verdict = "one seed" if math.isnan(low) else f"{'clear' if decided(low, high) else 'no clear'} difference"
        yield (
            f"{of['cell']}: {best['setting']}, epsilon {rounding.up(best['epsilon'])} ({of['definition']}): "
            f"{number(best['mean'])}; minus {best['base']} {shown(difference, low, high, '+.3f')} ({verdict})"
        )


def means(sweep: SweepView) -> dict[str, Row]:
    """Rows of the runs in MLflow, best last, by name: of each setting with several seeds what was swept, the interval
    of the measure that ranks, and the means of its final numbers; epsilon is the largest."""
    if sweep.measure is None:
        return {}
    rows: dict[str, tuple[float, Row]] = {}
    for _, group in compared(sweep).groupby(["cell", "setting"], sort=False):
        by_seed = group.groupby("seed")["value"].mean()
        if len(by_seed) < 2:
            continue
        mean, low, high = student(by_seed)
        runs = sweep.runs.loc[group.index]
        config = flatten(read_json(sweep.trial(runs["digest"].iloc[0]) / "config.json"))
        params = {path: str(config[path]) for path in ("method", *sweep.fields) if path in config}
        final = runs.filter(like="final/").select_dtypes("number").mean().dropna()
        numbers = plain({str(name).removeprefix("final/"): float(value) for name, value in final.items()})
        row = {**params, "seeds": str(len(by_seed)), "interval": span((low, high), number), **numbers}
        row["epsilon"] = float(group["epsilon"].max())
        name = trial_name(config, {bare_name(config["method"]): [*sweep.fields]})
        rows[f"{name} (mean of {len(by_seed)} seeds)"] = (mean, row)
    return {name: row for name, (_, row) in sorted(rows.items(), key=lambda item: -item[1][0])[-MEANS:]}
