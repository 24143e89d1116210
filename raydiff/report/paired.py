"""Each setting of a sweep minus another one, seed by seed: which differences are more than chance?

    raydiff paired SWEEP [--reading eval/fd_cnn/all] [--against LocalOnly] [--out DIR]     prints, and writes paired.csv

Settings are compared within a cell: equal in every field that is not the method's (clients, partition, data). Without
--against each is compared with the best arm of its cell that sends nothing or, where there is none, with the best
setting. Differences have a mean over seeds and its 95 % Student interval, without a correction for their number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from raydiff.formats import rounding
from raydiff.formats.csv_files import write_csv
from raydiff.formats.intervals import format_interval, interval
from raydiff.formats.tables import aligned, number, short
from raydiff.lookup import distinguishing_fields, nearest
from raydiff.report import load
from raydiff.report.frontier.rows import cell_fields, is_target_epsilon
from raydiff.report.guarantees import guarantees
from raydiff.report.load import Row, column, groups, records
from raydiff.report.sweep_view import SweepView, open_sweep, setting_name

ENDS = {0.0: "nothing sent", math.inf: "without a guarantee"}
"""Epsilons that are no privacy level, and what they mean."""
COLUMNS = ["cell", "definition", "setting", "arm", "target", "epsilon", "n", "mean", "base", "difference"]
COLUMNS += ["low", "high"]


def comparable_trials(sweep: SweepView, reading: str | None = None) -> pd.DataFrame:
    """The finished trials that have a reading: cell, setting, value, epsilon, privacy definition.

    `reading` is a column of `load.runs` without final/; None: the measure that ranks. Raises ValueError where no
    finished trial has it.
    """
    name = f"final/{reading}" if reading else str(sweep.measure)
    values = column(sweep.finished, name).dropna()
    if values.empty:
        wanted = reading or "a measure of quality"
        raise ValueError(f"there is nothing to compare: no finished trial of {sweep.name} has {wanted}")
    others = cell_fields(sweep.fields)
    names = [field for field in sweep.fields.values() if field not in others]
    stated = guarantees(sweep.runs).loc[values.index]
    trials = sweep.trials.loc[values.index].assign(value=values, epsilon=stated["epsilon"])
    rows = records(trials)
    cells = [", ".join(f"{n} {short(row[n])}" for n in others if row[n] is not None) or "all trials" for row in rows]
    trials["definition"] = stated["guarantee"].map(lambda guarantee: guarantee.definition or guarantee.statement)
    trials["place"] = [sweep.order.index(setting) for setting in sweep.settings.loc[values.index]]
    trials = trials.assign(cell=cells, setting=[setting_name(row, names) for row in rows])
    return trials.sort_values(["place", "seed"], kind="stable")


def mean_by_seed(trials: pd.DataFrame) -> dict[str, pd.Series]:
    """Setting -> the mean value of each seed, of `comparable_trials` in one cell."""
    return {str(name): group.groupby("seed")["value"].mean() for name, group in trials.groupby("setting")}


def pair_settings(sweep: SweepView, *, reading: str | None = None, against: str | None = None) -> pd.DataFrame:
    """A row for each cell, privacy definition and setting, with its difference from the base, seed by seed.

    `arm` is the method and what differs among its arms but the target epsilon; `target` the target epsilon (the
    ledger's where none was swept; 0: nothing sent, inf: no guarantee), `epsilon` the ledger's largest. Raises
    ValueError without a reading, and where a cell has no setting `against`.
    """
    trials = comparable_trials(sweep, reading)
    fields = [name for name in sweep.fields.values() if name not in cell_fields(sweep.fields)]
    targets = [name for name in fields if is_target_epsilon(name)]
    others = [name for name in fields if name not in targets]
    needed = {method: distinguishing_fields(records(group), others) for method, group in trials.groupby("method")}
    rows: list[Row] = []
    for cell, in_cell in trials.groupby("cell", sort=False):
        settings = mean_by_seed(in_cell)
        base = against or _choose_base(in_cell)
        if base not in settings:
            raise ValueError(f"--against: {cell} has no setting {base!r}{nearest(base, settings)}")
        arms = {row["setting"]: setting_name(row, needed[row["method"]]) for row in records(in_cell)}
        for row, group in groups(in_cell, ["definition", "setting"], sort=False):
            values = settings[row["setting"]]
            target = epsilon = group["epsilon"].max()
            if epsilon in ENDS:
                row["definition"] = ENDS[epsilon]
            else:
                first = records(group)[0]
                target = next((first[n] for n in targets if first[n] is not None), float(rounding.up(epsilon)))
            row |= {"cell": cell, "arm": arms[row["setting"]], "target": target, "epsilon": epsilon}
            row |= {"n": len(values), "mean": values.mean(), "base": base}
            differences = (values - settings[base]).dropna() if row["setting"] != base else values[:0]
            rows.append(row | interval(differences, "difference"))
    return pd.DataFrame(rows, columns=COLUMNS)


def _choose_base(trials: pd.DataFrame) -> str:
    """The best setting of a cell that sends nothing or, without one, the best setting."""
    silent = trials[trials["epsilon"] == 0]
    settings = mean_by_seed(trials if silent.empty else silent)
    return min(settings, key=lambda name: settings[name].mean())


def main(argv: Sequence[str]) -> None:
    """Print the table, and write it."""
    reading = {"help": "a final number (default: the measure that ranks the frontier)"}
    against = {"metavar": "SETTING", "help": "the setting that the others are compared with (default: training alone)"}
    options = load.arguments(__doc__, argv, reading=reading, against=against)
    table = pair_settings(open_sweep(options.sweep), reading=options.reading, against=options.against)
    options.out.mkdir(parents=True, exist_ok=True)
    write_csv(options.out / "paired.csv", table)
    lines = [["cell", "setting", "epsilon", "mean", "minus", "is", "n"]]
    for row in table.to_dict("records"):
        difference = format_interval(row["difference"], row["low"], row["high"], "+.3f")
        epsilon = rounding.up(row["epsilon"])
        lines.append(
            [row["cell"], row["setting"], epsilon, number(row["mean"]), row["base"], difference, str(row["n"])]
        )
    print("\n".join([*aligned(lines, words=2), "", str(options.out)]))
