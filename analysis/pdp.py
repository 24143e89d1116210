"""Per-instance privacy (pDP) of tables: the paper's Figures 6 and 7 from a sweep over tables.

    python -m analysis.pdp SWEEP [--out DIR]

Prints tables (Wei et al., TMLR 2024, arXiv 2310.15524) and writes them, with a picture. Intervals are Student's at 95 %
over seeds and splits. These bounds are no differential privacy.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from raydiff.__main__ import leave
from raydiff.cli.options import parse_options
from raydiff.cli.report import FinishedSweepOptions
from raydiff.formats import plots
from raydiff.formats.intervals import format_interval, interval
from raydiff.formats.tables import Table, publish, span
from raydiff.report.load import column, finished, group_rows
from raydiff.report.paired import pair_by_seed

CAVEAT = (
    "pDP bounds hold for a perfectly trained model, without training error; they depend on the data, are confidential "
    "to the curator, and do not replace DP. After removal they are conditional on the removed set."
)
REMOVE = "audit.remove"
SPLIT = ["seed", "data.split_seed"]
EVAL = "final/eval/"
ATTACK = f"{EVAL}blackbox/accuracy"
LARGEST = "final/pdp/own/largest"
STEPS = "method.model.steps"
SCHEDULE = "method.model.schedule"
RATE = "method.model.schedule.rate"
ARM = ["data.name", "method", "clients"]
CONDITIONAL = "method.model.conditional"
BATCH = "audit.batch"
LESS = {f"{EVAL}accuracy": "difference", LARGEST: "bound_difference"}
READINGS = {
    "tv_pairs_floor": "tv_pairs_floor",
    "accuracy_real": "accuracy/real",
    "accuracy_majority": "accuracy/majority",
    "random": "blackbox/random",
}
"""Column -> reading, averaged: accuracy on real test rows of a classifier trained on real rows and of the larger class;
accuracy of guessing members."""


def removal(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each way and fraction of removal.

    Bound and accuracy, and their paired differences from removing nothing; the bound's is empty where a bound is
    infinite.
    """
    if REMOVE not in runs or LARGEST not in runs:
        return pd.DataFrame()
    rows = []
    for arm, trials in group_rows(finished(runs).dropna(subset=LARGEST), [*ARM, CONDITIONAL, BATCH]):
        if trials[REMOVE].nunique() < 2:
            continue
        whole = trials[trials[REMOVE] == 0]
        for fraction, part in trials.groupby(REMOVE):
            row = {**arm, "removed": fraction, "n": len(part), "tv_pairs": column(part, f"{EVAL}tv_pairs").mean()}
            row["infinite"] = int((part[LARGEST] == math.inf).sum())
            row |= {f"bound_{name}": part[f"final/pdp/own/{name}"].mean() for name in ("largest", "mean")}
            row |= {"vacuous": part["final/pdp/own/vacuous_share"].mean(), **_means(part)}
            row |= interval(part[f"{EVAL}accuracy"], "accuracy", "accuracy_")
            for reading, name in LESS.items():
                less = pair_by_seed(part, whole, SPLIT, reading)["difference"].dropna()
                compared = bool(fraction) and less.abs().lt(math.inf).all()
                row |= interval(less if compared else less[:0], name, f"{name}_")
            rows.append(row)
    return pd.DataFrame(rows)


def attacks(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each arm, T, schedule and rate: the black-box attack, and how good the rows are."""
    if ATTACK not in runs:
        return pd.DataFrame()
    rows = []
    keys = [*ARM, STEPS, *(k for k in (SCHEDULE, RATE) if k in runs)]
    for arm, trials in group_rows(finished(runs).dropna(subset=ATTACK), keys):
        row = {**arm, "n": len(trials), **interval(trials[ATTACK], "attack", "attack_")}
        rows.append(row | interval(trials[f"{EVAL}tv_pairs"], "tv_pairs", "tv_pairs_") | _means(trials))
    return pd.DataFrame(rows)


def _means(rows: pd.DataFrame) -> dict[str, float]:
    return {name: column(rows, f"{EVAL}{reading}").mean() for name, reading in READINGS.items()}


def tables(removed: pd.DataFrame, attacked: pd.DataFrame) -> Iterator[Table]:
    """A table per data set, with the paper's numbers."""
    for name, part in removed.groupby("data.name") if len(removed) else ():
        lines = []
        first = part.iloc[0]
        for row in part.to_dict("records"):
            way = "by label" if row[CONDITIONAL] else "one table"
            way += ", one pass" if row[BATCH] == 1 else f", {100 * row[BATCH]:g} % at a time"
            bounds = [f"{row['bound_mean']:.3g}", f"{row['vacuous']:.0%}"]
            lower, less = (_shown(row, f"{name}difference", f) for name, f in (("bound_", "+.3g"), ("", "+.3f")))
            cells = [way, f"{row['removed']:.0%}", f"{row['bound_largest']:.3g}", lower, *bounds]
            lines.append([*cells, _shown(row, "accuracy"), less, f"{row['tv_pairs']:.3f}"])
        note = (
            "Bound: delta (pDP) of one row released. Accuracy: of a classifier trained on generated rows, on real test "
            f"rows; trained on real rows {first['accuracy_real']:.3f}, always the larger class "
            f"{first['accuracy_majority']:.3f}. Pairs: total variation "
            f"of pairs of columns. n = {span(part['n'])}."
        )
        less = "minus removing nothing"
        header = ["audited", "removed", "bound, largest", less, "mean", "vacuous", "accuracy", less, "pairs"]
        yield Table(header, lines, f"Removing the most exposed records of {name} (Figure 6)", note)
    for name, part in attacked.groupby("data.name") if len(attacked) else ():
        lines = []
        for row in part.to_dict("records"):
            rate = "" if math.isnan(row[RATE]) else f"{row[RATE]:g}"
            arm = [row["method"], f"{row['clients']:g}", f"{row[STEPS]:g}", row[SCHEDULE], rate]
            lines.append([*arm, _shown(row, "attack"), f"{row['random']:.3f}", f"{row['tv_pairs']:.3f}"])
        note = (
            "Attack: fraction of the records called members that are. Pairs: total variation of pairs of columns of "
            f"generated rows, {part['tv_pairs_floor'].mean():.3f} between real ones. n = {span(part['n'])}."
        )
        header = ["method", "clients", "T", "schedule", "rate", "attack", "random", "pairs"]
        yield Table(header, lines, f"Black-box membership attack on {name} (Figure 7)", note)


def _shown(row: Mapping[Any, Any], name: str, form: str = ".3f") -> str:
    return format_interval(row[name], row[f"{name}_low"], row[f"{name}_high"], form)


def main(argv: Sequence[str]) -> None:
    """Print the tables and write the files."""
    sweep, out = parse_options(FinishedSweepOptions, argv, __doc__).open()
    write(sweep.runs, out, what=sweep.name)


def write(runs: pd.DataFrame, out: Path, *, what: str) -> None:
    """Print and write what the runs of a sweep have of Figures 6 and 7. Raises ValueError for neither."""
    removed = removal(runs)
    attacked = attacks(runs)
    measured = {name: t for name, t in (("pdp-removal", removed), ("pdp-attack", attacked)) if len(t)}
    if not measured:
        raise ValueError(f"{what} has no finished trial on a table that was audited or attacked")
    publish(out, "pdp", "\n\n".join([*map(str, tables(removed, attacked)), CAVEAT]), measured)
    if len(removed):
        draw_removal(removed, out / "pdp-removal.png")


def draw_removal(table: pd.DataFrame, path: Path) -> None:
    """Figure 6, two panels per data set: bound of the remaining records, and accuracy, over the fraction removed."""
    table = table[table[BATCH] == table[BATCH].min()]
    names = list(dict.fromkeys(table["data.name"]))
    figure, grid = plots.panels(2, len(names), size=(5.5 * len(names), 6), dpi=120)
    for (above, below), name in zip(grid.T, names, strict=True):
        part = table[table["data.name"] == name].replace(math.inf, math.nan)
        for bound in ("largest", "mean"):
            above.plot(part["removed"], part[f"bound_{bound}"], "o-", label=f"bound, {bound}")
        above.set(ylabel="bound on delta (pDP), one row", yscale="log", title=name)
        ends = part["accuracy_low"], part["accuracy_high"]
        look = {"fmt": "o-", "markersize": 3, "capsize": 2, "lw": 1, "label": "accuracy"}
        plots.points(below, part["removed"], part["accuracy"], ends, **look)
        for level, style in (("real", "--"), ("majority", ":")):
            below.axhline(part[f"accuracy_{level}"].iloc[0], color="0.5", lw=0.8, ls=style, label=f"accuracy, {level}")
        below.set(xlabel="fraction of records removed", ylabel="accuracy on real test rows")
    plots.legend(figure, grid.flat, loc="outside right center")  # below the title, which is as wide as the figure
    figure.suptitle("conditional on the removed set; infinite bounds left out", fontsize=9)
    plots.save_figure(figure, path)


if __name__ == "__main__":
    leave(main, sys.argv[1:])
