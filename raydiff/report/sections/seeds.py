"""Section of the report: mean and interval over seeds, and which settings are better than which.

Settings are compared within a cell: equal in every field that is not the method's (clients, partition, data), and seed
by seed; of several sweeps on one page, the sweep is a field of the method's. A rank counts only where both intervals of
the difference exclude 0: the paired percentile bootstrap, which is too narrow where seeds are few, and Student's, as in
the other analyses.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd

from raydiff.formats.intervals import interval
from raydiff.formats.tables import number, short
from raydiff.report.frontier.kinds import guarantees
from raydiff.report.html import html
from raydiff.report.load import Row, column, records
from raydiff.report.sweep_view import Section, SweepView, setting, spoken

RESAMPLES = 10_000
OWN = ("method", "sweep")
"""How fields begin that make a setting; the others make a cell."""
COLUMNS = ["cell", "setting", "rank", "n", "mean", "std", "against", "common", "difference", "low", "high"]
COLUMNS += ["student_low", "student_high"]


def bootstrap(gaps: pd.Series) -> tuple[float, float]:
    """95 % percentile interval of the mean of paired differences, by resampling seeds; NaN for a single one."""
    values = gaps.to_numpy(dtype=float)
    if len(values) < 2:
        return math.nan, math.nan
    draws = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.percentile(values[draws].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def compared(sweep: SweepView) -> pd.DataFrame:
    """The finished trials with cell, setting, value (the sweep's measure), and epsilon and kind as they are stated.

    Raises ValueError without a measure.
    """
    if sweep.measure is None:
        raise ValueError("there is nothing to rank: no finished trial has a measure of quality")
    own = [n for p, n in sweep.fields.items() if p.startswith(OWN)]
    others = [n for p, n in sweep.fields.items() if not p.startswith(OWN)]
    said = guarantees(sweep.runs)
    trials = sweep.trials.drop(columns=["epsilon", "kind"], errors="ignore")
    trials = trials.assign(value=column(sweep.runs, sweep.measure), epsilon=said["epsilon"], kind=said["kind"])
    kept = (trials["outcome"] == "finished") & trials["value"].notna()
    known = records(sweep.trials[kept])
    cells = [", ".join(f"{n} {short(r[n])}" for n in others if r[n] is not None) or "all trials" for r in known]
    trials = trials[kept].assign(cell=cells, setting=[setting(r, own) for r in known])
    place = [sweep.order.index(s) for s in sweep.settings.loc[trials.index]]
    return trials.assign(place=place).sort_values("place", kind="stable")


def ranking(sweep: SweepView) -> pd.DataFrame:
    """A row per cell and setting, best first: n, mean and std of the sweep's measure; the paired difference to the
    leader of its rank with both intervals.

    A setting that is not clearly worse than the leader above it shares its rank. Raises ValueError without a measure.
    """
    rows = [row for cell, of in compared(sweep).groupby("cell", sort=False) for row in _ranked(str(cell), of)]
    return pd.DataFrame(rows, columns=COLUMNS)


def _ranked(cell: str, trials: pd.DataFrame) -> list[Row]:
    """The rows of one cell."""
    values = {str(s): of.groupby("seed")["value"].mean() for s, of in trials.groupby("setting")}
    rows: list[Row] = []
    leader, rank = "", 0
    for place, name in enumerate(sorted(values, key=lambda s: values[s].mean()), 1):
        mine = values[name]
        row: Row = {"cell": cell, "setting": name, "n": len(mine), "mean": mine.mean(), "std": mine.std()}
        if leader:
            gaps = (mine - values[leader]).dropna()
            row |= {"against": leader, "common": len(gaps), **interval(gaps, "difference", "student_")}
            row["low"], row["high"] = bootstrap(gaps)
        if not leader or (row["common"] > 1 and row["low"] > 0 and row["student_low"] > 0):
            leader, rank = name, place
        rows.append({**row, "rank": rank})
    return rows


# --------------------------------------------------------------------------------------------------- for people


def seeds(sweep: SweepView, out: Path) -> Section:
    """The ranking as a table; a rank without a clear interval is a tie."""
    if sweep.measure is None or (found := ranking(sweep))["n"].max() == 1:
        return Section([])  # With one seed of each nothing is ranked, and the first section says so.
    says = [
        f"By {spoken(sweep.measure)}, lower is better; mean and standard deviation over n seeds; settings are compared "
        "within a cell, seed by seed, each with the leader of the rank above it.",
        "Bootstrap: 95 % paired percentile interval over seeds, which is too narrow where they are few; so a rank also "
        "needs Student's interval to exclude 0. No correction for the number of settings, and the leader is picked on "
        "the same numbers.",
        "tie: no clear difference from the leader of this rank, or too few seeds to tell.",
    ]
    shared = found.groupby(["cell", "rank"])["setting"].transform("count") > 1
    alone = found.groupby("cell")["setting"].transform("count") == 1
    header = ["cell", "rank", "setting", "n", "mean", "std", "minus leader", "bootstrap", "Student", "leader"]
    cells = []
    for row, tied, single in zip(records(found), shared, alone, strict=True):
        rank = "-" if single else f"{row['rank']} (tie)" if tied else str(row["rank"])
        of = [row["cell"], rank, row["setting"], str(row["n"]), number(row["mean"]), number(row["std"])]
        both = [_interval(row["low"], row["high"]), _interval(row["student_low"], row["student_high"])]
        cells.append([*of, _signed(row["difference"]), *both, row["against"] or "-"])
    grid = html.table(header, cells, name="ranks")
    return Section([html.bullets(says, note=True), grid], {"seeds": found})


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{'+' if value > 0 else ''}{number(value)}"


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{_signed(low)} to {_signed(high)}"
