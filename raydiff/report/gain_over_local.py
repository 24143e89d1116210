"""What each setting gains over local training, which sends nothing: seed by seed, at each target epsilon.

Settings are compared within a cell: equal in every field that is not the method's (clients, partition, data).
"""

from __future__ import annotations

import math

import pandas as pd

from raydiff.formats import rounding
from raydiff.formats.intervals import interval
from raydiff.formats.tables import short
from raydiff.lookup import distinguishing_fields
from raydiff.report.frontier.rows import cell_fields, is_target_epsilon
from raydiff.report.guarantees import guarantees
from raydiff.report.load import Row, column, groups, records
from raydiff.report.sweep_view import SweepView, setting_name

ENDS = {0.0: "nothing sent", math.inf: "without a guarantee"}
"""Epsilons that are no privacy level, and what they mean."""
COLUMNS = ["cell", "definition", "setting", "arm", "target", "epsilon", "n", "mean", "base", "difference"]
COLUMNS += ["low", "high"]


def compared(sweep: SweepView) -> pd.DataFrame:
    """The finished trials: cell, setting, measure, epsilon, privacy definition. Raises ValueError without a measure."""
    if sweep.measure is None:
        raise ValueError("there is nothing to compare: no finished trial has a measure of quality")
    others = cell_fields(sweep.fields)
    stated = guarantees(sweep.runs)
    definition = stated["guarantee"].map(lambda guarantee: guarantee.definition or guarantee.statement)
    values = {"value": column(sweep.runs, sweep.measure), "epsilon": stated["epsilon"], "definition": definition}
    trials = sweep.trials.assign(**values)
    trials = trials[(trials["outcome"] == "finished") & trials["value"].notna()]
    rows = records(sweep.trials.loc[trials.index])
    cells = [", ".join(f"{n} {short(r[n])}" for n in others if r[n] is not None) or "all trials" for r in rows]
    place = [sweep.order.index(name) for name in sweep.settings.loc[trials.index]]
    names = [name for name in sweep.fields.values() if name not in others]
    trials = trials.assign(cell=cells, setting=[setting_name(r, names) for r in rows], place=place)
    return trials.sort_values(["place", "seed"], kind="stable")


def by_seed(trials: pd.DataFrame) -> dict[str, pd.Series]:
    """Setting -> the mean value of each seed, of the rows of `compared` in one cell."""
    return {str(name): group.groupby("seed")["value"].mean() for name, group in trials.groupby("setting")}


def gains(sweep: SweepView) -> pd.DataFrame:
    """A row for each cell, privacy definition and setting.

    `arm` is the method and what differs among its arms but the target epsilon; `target` the target epsilon (the
    ledger's where none was swept; 0: nothing sent, inf: no guarantee), `epsilon` the ledger's largest; `base` the best
    arm of the cell that sends nothing or, without one, the best setting. Raises ValueError without a measure.
    """
    trials = compared(sweep)
    fields = [name for name in sweep.fields.values() if name not in cell_fields(sweep.fields)]
    targets, others = ([n for n in fields if is_target_epsilon(n) == wanted] for wanted in (True, False))
    needed = {method: distinguishing_fields(records(group), others) for method, group in trials.groupby("method")}
    rows: list[Row] = []
    for cell, in_cell in trials.groupby("cell", sort=False):
        settings, epsilons = by_seed(in_cell), in_cell.groupby("setting")["epsilon"].max()
        silent = [name for name in settings if epsilons[name] == 0]
        base = min(silent or settings, key=lambda name: settings[name].mean())
        arms = {row["setting"]: setting_name(row, needed[row["method"]]) for row in records(in_cell)}
        for row, group in groups(in_cell, ["definition", "setting"], sort=False):
            first, values = records(group)[0], settings[row["setting"]]
            target = epsilon = group["epsilon"].max()
            if epsilon in ENDS:
                row["definition"] = ENDS[epsilon]
            else:
                target = next((first[n] for n in targets if first[n] is not None), float(rounding.up(epsilon)))
            row |= {"cell": cell, "arm": arms[row["setting"]], "target": target, "epsilon": epsilon}
            row |= {"n": len(values), "mean": values.mean(), "base": arms[base] if silent else base}
            differences = (values - settings[base]).dropna() if row["setting"] != base else values[:0]
            rows.append(row | interval(differences, "difference"))
    return pd.DataFrame(rows, columns=COLUMNS)
