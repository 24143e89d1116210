"""Section of the report: mean and interval over seeds, and which settings are better than which.

Settings are compared seed by seed within a cell: equal in every field that is not the method's (clients, partition,
data). A rank counts only where the 95 % Student interval of the paired difference excludes 0.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from raydiff.formats.intervals import interval, shown
from raydiff.formats.tables import Table, number, short
from raydiff.report.guarantees import guarantees
from raydiff.report.html import sheet
from raydiff.report.load import Row, column, records
from raydiff.report.sweep_view import Section, SweepView, setting_name, short_column

OWN_FIELDS = "method"
"""How fields begin that are part of a setting; the others are part of its cell."""
COLUMNS = ["cell", "setting", "rank", "n", "mean", "std", "against", "common", "difference", "low", "high"]


def compared(sweep: SweepView) -> pd.DataFrame:
    """The finished trials: cell, setting, measure, epsilon, privacy definition. Raises ValueError without a measure."""
    if sweep.measure is None:
        raise ValueError("there is nothing to rank: no finished trial has a measure of quality")
    group = [name for path, name in sweep.fields.items() if path.startswith(OWN_FIELDS)]
    others = [name for path, name in sweep.fields.items() if not path.startswith(OWN_FIELDS)]
    stated = guarantees(sweep.runs)
    definition = stated["guarantee"].map(lambda guarantee: str(guarantee.definition or guarantee))
    values = {"value": column(sweep.runs, sweep.measure), "epsilon": stated["epsilon"], "definition": definition}
    trials = sweep.trials.assign(**values)
    trials = trials[(trials["outcome"] == "finished") & trials["value"].notna()]
    rows = records(sweep.trials.loc[trials.index])
    cells = [", ".join(f"{n} {short(r[n])}" for n in others if r[n] is not None) or "all trials" for r in rows]
    place = [sweep.order.index(name) for name in sweep.settings.loc[trials.index]]
    trials = trials.assign(cell=cells, setting=[setting_name(r, group) for r in rows], place=place)
    return trials.sort_values("place", kind="stable")


def by_seed(trials: pd.DataFrame) -> dict[str, pd.Series]:
    """Setting -> the mean value of each seed, of the rows of `compared` in one cell."""
    return {str(name): group.groupby("seed")["value"].mean() for name, group in trials.groupby("setting")}


def ranking(sweep: SweepView) -> pd.DataFrame:
    """A row per cell and setting, best first: n, mean and std of the measure, and the paired difference from the leader
    of its rank. A setting that is not clearly worse than the leader above it shares its rank. Raises ValueError without
    a measure."""
    rows: list[Row] = []
    for cell, group in compared(sweep).groupby("cell", sort=False):
        settings, leader, rank = by_seed(group), "", 0
        for place, (name, values) in enumerate(sorted(settings.items(), key=lambda item: item[1].mean()), 1):
            row: Row = {"cell": cell, "setting": name, "n": len(values), "mean": values.mean(), "std": values.std()}
            if leader:
                differences = (values - settings[leader]).dropna()
                row |= {"against": leader, "common": len(differences), **interval(differences, "difference")}
            if not leader or row["low"] > 0:
                leader, rank = name, place
            rows.append({**row, "rank": rank})
    return pd.DataFrame(rows, columns=COLUMNS)


def seeds(sweep: SweepView, out: Path) -> Section:
    """The ranking as a table; a rank without a clear interval is a tie."""
    if sweep.measure is None or (ranks := ranking(sweep))["n"].max() == 1:
        return Section([])
    note = (
        f"By {short_column(sweep.measure)}, lower is better; mean and standard deviation over n seeds. Each setting is "
        "compared within its cell, seed by seed, with the leader of the rank above it: mean difference and 95 % "
        "Student interval, bold where it excludes 0; tie: no clear difference, or too few seeds. No correction for the "
        "number of settings, and the leader is chosen on the same numbers."
    )
    shared = ranks.groupby(["cell", "rank"])["setting"].transform("count") > 1
    only = ranks.groupby("cell")["setting"].transform("count") == 1
    lines = []
    for row, tied, single in zip(ranks.to_dict("records"), shared, only, strict=True):
        rank = "-" if single else f"{row['rank']}{' (tie)' * tied}"
        difference = shown(row["difference"], row["low"], row["high"], "+.4g", bold=True)
        numbers = [str(row["n"]), number(row["mean"]), number(row["std"]), difference]
        lines.append([row["cell"], rank, row["setting"], *numbers, short(row["against"])])
    header = ["cell", "rank", "setting", "n", "mean", "std", "minus leader", "leader"]
    return Section([*sheet(Table(header, lines, note=note), "ranks")], {"seeds": ranks})
