"""What a setting gains over local training, which sends nothing: seed by seed, at each target epsilon."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd
from markupsafe import Markup

from raydiff.formats import rounding
from raydiff.formats.intervals import interval, shown
from raydiff.formats.tables import Table, number, span
from raydiff.lookup import distinguishing_fields
from raydiff.report.frontier.rows import is_target_epsilon
from raydiff.report.load import Row, groups, records
from raydiff.report.sections.seeds import OWN_FIELDS, by_seed, compared
from raydiff.report.sweep_view import SweepView, setting_name, short_column

COLUMNS = ["cell", "definition", "setting", "arm", "target", "epsilon", "n", "mean", "base", "base_mean"]
COLUMNS += ["difference", "low", "high"]
NOTE = (
    "In each cell the mean over seeds and its paired difference from local training with a 95 % Student interval: bold "
    "where it excludes 0, negative where the private setting is better. No correction for the number of intervals."
)


def gains(sweep: SweepView) -> pd.DataFrame:
    """A row for each cell, privacy definition and setting.

    `arm` is the method and what differs among its arms but the target epsilon; `target` the target epsilon (the
    ledger's where none was swept; 0: nothing sent, inf: no guarantee), `epsilon` the ledger's largest; `base` the best
    setting of the cell that sends nothing, "" without one. Raises ValueError without a measure.
    """
    trials = compared(sweep)
    names = [name for path, name in sweep.fields.items() if path.startswith(OWN_FIELDS)]
    targets, others = ([n for n in names if is_target_epsilon(n) == wanted] for wanted in (True, False))
    needed = {method: distinguishing_fields(records(group), others) for method, group in trials.groupby("method")}
    rows: list[Row] = []
    for cell, in_cell in trials.groupby("cell", sort=False):
        settings, epsilons = by_seed(in_cell), in_cell.groupby("setting")["epsilon"].max()
        silent = [name for name in settings if epsilons[name] == 0]
        base = min(silent, key=lambda name: settings[name].mean(), default="")
        of_base = settings.get(base, pd.Series(dtype=float))
        for row, group in groups(in_cell, ["definition", "setting"], sort=False):
            first, values = records(group)[0], settings[row["setting"]]
            target = epsilon = group["epsilon"].max()
            if 0 < epsilon < math.inf:
                target = next((first[n] for n in targets if first[n] is not None), float(rounding.up(epsilon)))
            row |= {"cell": cell, "arm": setting_name(first, needed[first["method"]]), "target": target}
            row |= {"epsilon": epsilon, "n": len(values), "mean": values.mean()}
            row |= {"base": base, "base_mean": of_base.mean()}
            rows.append(row | interval((values - of_base).dropna(), "difference"))
    return pd.DataFrame(rows, columns=COLUMNS)


def tables(sweep: SweepView, gain_rows: pd.DataFrame) -> Iterator[Table]:
    """Of each cell and definition with several seeds: a row for each arm, a column for each target epsilon."""
    for of, group in groups(gain_rows[gain_rows["n"] > 1], ["cell", "definition"], sort=False):
        targets = sorted(group["target"].dropna().unique())
        lines = []
        for arm, rows in group.groupby("arm", sort=False):
            cells = {row["target"]: _cell(row) for row in records(rows)}
            lines.append([str(arm), *(cells.get(target, "") for target in targets)])
        header = [f"{short_column(str(sweep.measure))} at epsilon", *(f"{target:g}" for target in targets)]
        where = "" if of["cell"] == "all trials" else f"{of['cell']}; "
        note = f"n = {span(group['n'])} seeds, against {group['base'].iloc[0]}."
        yield Table(header, lines, title=f"{where}epsilon {of['definition']}", note=note)


def _cell(row: Row) -> str:
    gain = shown(row["difference"], row["low"], row["high"], "+.2f", bold=True)
    return Markup("{}, {}").format(number(row["mean"], 3), gain)
