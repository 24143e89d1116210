"""Differences between arms, seed by seed: which are more than chance?"""

import math
from collections.abc import Sequence

import pandas as pd

from raydiff.formats import rounding
from raydiff.formats.intervals import interval
from raydiff.lookup import nearest
from raydiff.report.frontier.rows import name_arms
from raydiff.report.guarantees import tabulate_guarantees
from raydiff.report.load import Row, group_rows
from raydiff.report.sweep_view import SweepView

ENDS = {0.0: "nothing sent", math.inf: "without a guarantee"}
"""Epsilons that are no privacy level, and what they mean."""
COLUMNS = [
    "cell",
    "definition",
    "setting",
    "arm",
    "target",
    "epsilon",
    "n",
    "mean",
    "base",
    "difference",
    "low",
    "high",
]


def pair_by_seed(arm: pd.DataFrame, base: pd.DataFrame, on: Sequence[str], reading: str) -> pd.DataFrame:
    """Pair the rows of two arms that agree in the columns `on`, the seed among them.

    The base's other columns end in `_base`; `difference` is the arm's reading minus the base's.
    """
    pairs = arm.merge(base, on=[*on], suffixes=("", "_base"))
    return pairs.assign(difference=pairs[reading] - pairs[f"{reading}_base"])


def comparable_trials(sweep: SweepView, reading: str | None = None) -> pd.DataFrame:
    """The finished trials that have a reading: method, swept fields, seed, cell, setting, value, epsilon, definition.

    `reading` is a column of `load.runs` without final/; None: the measure that ranks. Raises ValueError where no
    finished trial has it.
    """
    values = sweep.read(reading or f"eval/{sweep.measure}").dropna()
    if values.empty:
        wanted = reading or "a measure of quality"
        raise ValueError(f"there is nothing to compare: no finished trial of {sweep.name} has {wanted}")
    stated = tabulate_guarantees(sweep.runs).loc[values.index]
    definitions = stated["guarantee"].map(lambda guarantee: guarantee.definition or guarantee.statement)
    trials = sweep.trials.loc[values.index].assign(value=values, epsilon=stated["epsilon"], definition=definitions)
    return trials.assign(setting=sweep.name_settings(sweep.method_fields))


def mean_by_seed(trials: pd.DataFrame) -> pd.DataFrame:
    """A row per cell, setting and seed, with its mean value."""
    return trials.groupby(["cell", "setting", "seed"], sort=False)["value"].mean().reset_index()


def pair_settings(sweep: SweepView, *, reading: str | None = None, against: str | None = None) -> pd.DataFrame:
    """A row for each cell, privacy definition and setting, with its difference from the base, seed by seed.

    `arm` is the method and what differs among its arms but the target epsilon; `target` the target epsilon (the
    ledger's where none was swept; 0: nothing sent, inf: no guarantee), `epsilon` the ledger's largest. Raises
    ValueError without a reading, and where a cell has no setting `against`.
    """
    trials = comparable_trials(sweep, reading)
    targets = trials[[name for name in sweep.method_fields if name not in sweep.arm_fields]]
    arms = name_arms(trials, sweep.arm_fields)
    trials["arm"] = trials["method"] + arms.where(arms == "", ", " + arms)
    trials["swept"] = targets.apply(pd.to_numeric, errors="coerce").max(axis=1)
    rows: list[Row] = []
    for cell, in_cell in trials.groupby("cell", sort=False):
        of_seeds = mean_by_seed(in_cell)
        base = against or _choose_base(in_cell)
        if base not in {*of_seeds["setting"]}:
            raise ValueError(f"--against: {cell} has no setting {base!r}{nearest(base, of_seeds['setting'])}")
        for row, group in group_rows(in_cell, ["definition", "setting", "arm"], sort=False):
            mine = of_seeds[of_seeds["setting"] == row["setting"]]
            pairs = pair_by_seed(mine, of_seeds[of_seeds["setting"] == base], ["seed"], "value")
            row |= {"cell": cell, "epsilon": group["epsilon"].max(), "n": len(mine), "mean": mine["value"].mean()}
            row |= interval(pairs["difference"] if row["setting"] != base else pairs["difference"][:0], "difference")
            row |= {"base": base, "target": _choose_target(row["epsilon"], group["swept"].iloc[0])}
            rows.append({**row, "definition": ENDS.get(row["epsilon"], row["definition"])})
    return pd.DataFrame(rows, columns=COLUMNS)


def _choose_target(epsilon: float, swept: float) -> float:
    if epsilon in ENDS:
        return epsilon
    return float(rounding.up(epsilon)) if math.isnan(swept) else swept


def _choose_base(trials: pd.DataFrame) -> str:
    """The best setting of a cell that sends nothing or, without one, the best setting."""
    silent = trials[trials["epsilon"] == 0]
    means = mean_by_seed(trials if silent.empty else silent).groupby("setting", sort=False)["value"].mean()
    return str(means.idxmin())
