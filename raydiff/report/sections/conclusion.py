"""Section of the report: what came out, in sentences that are made of the paired intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from raydiff.formats import rounding as bounds
from raydiff.formats.intervals import decided, shown, student
from raydiff.formats.tables import number
from raydiff.report.gain_over_local import gaps
from raydiff.report.html import html
from raydiff.report.load import Row, column, records
from raydiff.report.sections.seeds import compared, ranking
from raydiff.report.sweep_view import Section, SweepView, spoken

CELLS = 4
"""Cells that have a sentence of their own."""
MEANS = 30
"""Settings whose mean is a run in MLflow."""
NAMED = 4
"""Settings without a clear difference that are named."""

PICKED = (
    "The best of several is picked on the same numbers that it is judged by, and no interval is corrected for how many "
    "there are."
)


def conclusion(sweep: SweepView, out: Path) -> Section:
    """How many trials finished; of each cell which setting is best, and what the best protected one gives up."""
    said, *lines = sentences(sweep)
    return Section([html.paragraph(said), html.bullets(lines)])


def sentences(sweep: SweepView) -> Iterator[str]:
    """The same as text: a sentence, then those below it."""
    says = f"{len(sweep.finished)} of {len(sweep.runs)} trials finished"
    if sweep.measure is None:
        yield f"{says}; none has a measure of quality, so nothing is compared."
        return
    ranked, beside_alone = ranking(sweep), gaps(sweep)
    floor = column(sweep.finished, f"{sweep.measure}_floor").mean()
    against = "" if math.isnan(floor) else f" (real records against real ones: {number(floor)})"
    yield f"{says}. By {spoken(sweep.measure)}, lower is better{against}:"
    cells = list(dict.fromkeys(ranked["cell"]))
    for cell in cells[:CELLS]:
        where = "" if len(cells) == 1 else f"{cell}: "
        for line in (_best(ranked[ranked["cell"] == cell]), *_protected(beside_alone[beside_alone["cell"] == cell])):
            yield where + line
    if ranked.groupby("cell")["n"].agg(lambda n: len(n) > 1 and n.max() > 1).any():
        yield PICKED
    if len(cells) > CELLS:
        yield f"The other {len(cells) - CELLS} of {len(cells)} cells are in the tables below."
    yield from _recognised(sweep)


def means(sweep: SweepView) -> dict[str, Row]:
    """Of each setting with several seeds, by its name and best last: its largest epsilon, its method and its number of
    seeds as text; then its final numbers, each the mean over its seeds, the measure first, and beside it the ends of
    its 95 % Student interval."""
    if sweep.measure is None:
        return {}
    found: dict[str, tuple[float, Row]] = {}
    trials = compared(sweep)
    for (cell, name), of in trials.groupby(["cell", "setting"], sort=False):
        by_seed = of.groupby("seed")["value"].mean()
        if len(by_seed) < 2:
            continue
        mean, low, high = student(by_seed)
        told: Row = {"epsilon": bounds.up(of["epsilon"].max()), "method": str(of["method"].iloc[0])}
        told |= {"seeds": str(len(by_seed)), sweep.measure: mean}
        final = sweep.runs.loc[of.index].filter(regex="^final/").select_dtypes("number").mean().dropna()
        where = f", {cell}" if trials["cell"].nunique() > 1 else ""
        called = f"mean: {name}{where} ({len(by_seed)} seeds)"
        ends = {f"{sweep.measure}/low": low, f"{sweep.measure}/high": high}
        found[called] = (mean, told | {str(k): float(v) for k, v in final.items()} | ends)
    worst_first = sorted(found.items(), key=lambda one: -one[1][0])
    return {called: row for called, (_, row) in worst_first[-MEANS:]}


def _recognised(sweep: SweepView) -> Iterator[str]:
    """How many of the samples a classifier of real pictures takes for what was asked for."""
    made, real = (column(sweep.finished, f"final/eval/label_accuracy/{of}").dropna() for of in ("all", "real"))
    if len(made) and len(real):
        yield (
            f"A classifier that is right about {real.mean():.0%} of real pictures finds in {made.min():.0%} to "
            f"{made.max():.0%} of the samples the class that was asked for."
        )


def _best(found: pd.DataFrame) -> str:
    """Of one cell's ranking, best first."""
    called = [f"{name} ({number(mean)})" for name, mean in zip(found["setting"], found["mean"], strict=True)]
    level = int((found["rank"] == found["rank"].iloc[0]).sum())
    if len(found) == 1:
        return f"{called[0]} is the only setting."
    if found["n"].max() == 1:
        return f"one seed of each setting is too few to rank; {called[0]} has the least."
    if level == 1:
        return f"{called[0]} is best; the next, {called[1]}, is worse by a clear interval."
    others = ", ".join(called[1 : min(level, 1 + NAMED)]) + (
        f" and {level - 1 - NAMED} more" if level > 1 + NAMED else ""
    )
    worse = f"; clearly worse: {len(found) - level} others" if len(found) > level else ""
    return f"{called[0]} has the least; not clearly worse: {others}{worse}."


def _protected(found: pd.DataFrame) -> Iterator[str]:
    """Of one cell's `gaps`, for each kind of epsilon: the best setting against the best that sends nothing."""
    for kind, own in found.groupby("kind"):
        best = min(records(own), key=lambda row: float(row["mean"]))
        gap, low, high = best["difference"], best["low"], best["high"]
        verdict = f"{gap:+.3f}, one seed"
        if low is not None:
            verdict = f"{shown(gap, low, high, '+.3f')}, {'a clear' if decided(low, high) else 'no clear'} difference"
        told = str(kind).split(", delta")[0]
        which = f"with an epsilon {told}, {best['setting']} is best ({bounds.up(best['spent'])} spent)"
        yield f"{which}; its difference from {best['base']}, which sends nothing: {verdict}."
