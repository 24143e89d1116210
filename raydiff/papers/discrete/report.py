"""Per-instance privacy (pDP) of tables: what a sweep over tables says, or what the bound does on random tables.

    raydiff pdp SWEEP [--out DIR]       of a sweep over tables: what it has of the paper's Figures 6 and 7
    raydiff pdp FOLDER [--out DIR]      of `raydiff theory pdp --out FOLDER`: Figures 3, 4, 5, 8 and 11

Prints tables with the paper's numbers beside ours and writes pdp.md, pdp-removal and pdp-attack as CSV and pictures, or
pdp-bound.png. The paper: Wei et al., TMLR 2024 (arXiv 2310.15524). Intervals are Student's at 95 % over seeds and
splits. These bounds are no differential privacy: none stands beside an epsilon of the ledger.

A group is what differs in the name of the data, the arm and the varied field; in it the trials differ by seed and by
the split of the data. Differences are paired by both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from raydiff.formats import plots
from raydiff.formats.intervals import interval, shown
from raydiff.formats.tables import Table, publish, span
from raydiff.report import load
from raydiff.report.load import column, finished, groups

BOUND = "pdp-bound.csv"
CAVEAT = (
    "pDP bounds are valid for a perfectly trained model, training error not included; they depend on the data, are "
    "confidential to the curator, and are no replacement for DP. After removal: conditional on the removed set, not "
    "the pipeline's guarantee."
)
REMOVE, SPLIT = "audit.remove", ["seed", "data.split_seed"]
ATTACK, LARGEST = "final/eval/blackbox/accuracy", "final/pdp/own/largest"
SCHEDULE = ["method.model.schedule", "method.model.schedule.rate"]
ARM = ["data.name", "method", "clients"]
QUALITY = {"accuracy_real": "accuracy/real", "accuracy_majority": "accuracy/majority"}
"""Column -> reading of a classifier on real test rows: trained on real rows, and always naming the larger class."""
TABLE_6 = {"adult": "81 % to 78 % from 0 to 0.5", "german": "73 % to 70 % from 0 to 0.5"}
"""The paper's accuracy over the share removed, from its text; its best is at 0.03 (Adult) and 0.01 (German Credit)."""
FIGURE_7 = {20: {0.1: 0.28, 1.0: 0.22}, 30: {0.1: 0.29, 1.0: 0.22}}
"""The paper's attack on Adult by T and rate of the linear schedule, read at the ends: 20 % of the records are members.
"""


def removal(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each share removed: bound, accuracy, and how much the accuracy differs from removing nothing."""
    if REMOVE not in runs or LARGEST not in runs:
        return pd.DataFrame()
    rows = []
    for arm, own in groups(finished(runs).dropna(subset=LARGEST), ARM):
        if own[REMOVE].nunique() < 2:
            continue
        whole = own[own[REMOVE] == 0].set_index(SPLIT)["final/eval/accuracy"]
        for share, part in own.groupby(REMOVE):
            accuracy = part.set_index(SPLIT)["final/eval/accuracy"]
            less = (accuracy - whole).dropna()
            row = {**arm, "removed": share, "n": len(part)}
            row |= {f"bound_{name}": part[f"final/pdp/own/{name}"].mean() for name in ("largest", "mean")}
            row["vacuous_share"] = part["final/pdp/own/vacuous_share"].mean()
            row |= interval(accuracy, "accuracy", "accuracy_")
            row |= interval(less, "difference", "difference_") if share and len(less) else {}
            rows.append(row | _means(part, QUALITY | {"tv_pairs": "tv_pairs", "tv_pairs_floor": "tv_pairs_floor"}))
    return pd.DataFrame(rows)


def attacks(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each arm, T, schedule and rate: the black-box attack, and how good the rows are."""
    if ATTACK not in runs:
        return pd.DataFrame()
    keys = [*ARM, "method.model.steps", *(k for k in SCHEDULE if k in runs)]
    rows = []
    for arm, own in groups(finished(runs).dropna(subset=ATTACK), keys):
        row = {**arm, "n": len(own), **interval(own[ATTACK], "attack", "attack_")}
        row |= _means(own, {"random": "blackbox/random", "members": "blackbox/n_members"})
        row |= interval(own["final/eval/tv_pairs"], "tv_pairs", "tv_pairs_")
        rows.append(row | _means(own, {"tv_pairs_floor": "tv_pairs_floor", "accuracy": "accuracy", **QUALITY}))
    return pd.DataFrame(rows)


def _means(rows: pd.DataFrame, readings: dict[str, str]) -> dict[str, float]:
    return {name: column(rows, f"final/eval/{reading}").mean() for name, reading in readings.items()}


def tables(removed: pd.DataFrame, attacked: pd.DataFrame) -> Iterator[Table]:
    """A table per data set, with what the paper has."""
    header = ["removed", "bound, largest", "mean", "vacuous", "accuracy", "minus removing nothing", "pairs"]
    for name, own in removed.groupby("data.name") if len(removed) else ():
        lines, first = [], own.iloc[0]
        for row in own.to_dict("records"):
            bounds = [f"{row['bound_largest']:.3g}", f"{row['bound_mean']:.3g}", f"{row['vacuous_share']:.0%}"]
            less = _shown(row, "difference", "+.3f") if row["removed"] else ""
            lines.append([f"{row['removed']:.0%}", *bounds, _shown(row, "accuracy"), less, f"{row['tv_pairs']:.3f}"])
        says = [
            f"Trained on real rows {first['accuracy_real']:.3f}, always the larger class "
            f"{first['accuracy_majority']:.3f}; n = {span(own['n'])}. The paper's: {TABLE_6.get(str(name), 'none')}.",
            "Accuracy: of a classifier trained on generated rows, on real test rows. Bound: delta (pDP) of one row "
            "released. Pairs: total variation of pairs of columns.",
        ]
        yield Table(header, lines, f"Removing the most exposed records of {name} (Figure 6)", "\n".join(says))
    header = ["method", "clients", "T", "schedule", "rate", "attack", "random", "the paper's", "pairs"]
    for name, own in attacked.groupby("data.name") if len(attacked) else ():
        lines = []
        for row in own.to_dict("records"):
            rate = row["method.model.schedule.rate"]
            arm = [row["method"], f"{row['clients']:g}", f"{row['method.model.steps']:g}", row["method.model.schedule"]]
            found = [_shown(row, "attack"), f"{row['random']:.3f}", _paper(row), f"{row['tv_pairs']:.3f}"]
            lines.append([*arm, "" if math.isnan(rate) else f"{rate:g}", *found])
        says = [
            "Attack: share of the records called members that are. Pairs: total variation of pairs of columns of the "
            f"generated rows, {own['tv_pairs_floor'].mean():.3f} between real ones; n = {span(own['n'])}."
        ]
        yield Table(header, lines, f"Black-box membership attack on {name} (Figure 7)", "\n".join(says))


def _paper(row: Mapping[Any, Any]) -> str:
    """The paper's attack where it has one: Adult, one model, linear schedule."""
    if (row["data.name"], row["method"], row["method.model.schedule"]) != ("adult", "LocalOnly", "Linear"):
        return ""
    value = FIGURE_7.get(int(row["method.model.steps"]), {}).get(float(row["method.model.schedule.rate"]))
    return "" if value is None else f"about {value:.2f}"


def _shown(row: Mapping[Any, Any], name: str, form: str = ".3f") -> str:
    mean, low, high = (row[name + end] for end in ("", "_low", "_high"))
    return shown(mean, low, high, form)


def main(argv: Sequence[str]) -> None:
    """Print the tables, write the files and say where."""
    given = load.arguments(__doc__, argv)
    folder, out = given.sweep, given.out
    if (folder / BOUND).is_file():
        picture = (out if given.own_out else folder) / "pdp-bound.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        draw_bound(pd.read_csv(folder / BOUND, keep_default_na=False, dtype={"figure": str}), picture)
        print(picture)
    else:
        write(load.runs(folder), out, what=str(folder))


def write(runs: pd.DataFrame, out: Path, *, what: str) -> None:
    """Print and write what the runs of a sweep have of Figures 6 and 7. Raises ValueError for neither."""
    removed, attacked = removal(runs), attacks(runs)
    found = {name: t for name, t in (("pdp-removal", removed), ("pdp-attack", attacked)) if len(t)}
    if not found:
        raise ValueError(f"{what} has no finished trial on a table that was audited or attacked")
    publish(out, "pdp", "\n\n".join([*map(str, tables(removed, attacked)), CAVEAT]), found)
    for name, table in found.items():
        (draw_removal if table is removed else draw_attack)(table, out / f"{name}.png")


# -------------------------------------------------------------------------------------------------------- pictures

PANELS = (
    ("3", "delta over similarity", "log", "log"),
    ("4", "n / s^psi_t over t", "linear", "log"),
    ("4", "radius over t", "linear", "linear"),
    ("4", "contribution over t", "linear", "log"),
    ("8", "contribution over t", "linear", "log"),
    ("5", "main term over s", "log", "log"),
    ("5", "delta over rate", "log", "log"),
    ("11", "delta over p", "linear", "log"),
)
"""(the paper's figure, quantity, scales of x and y)."""


def draw_bound(table: pd.DataFrame, path: Path) -> None:
    """Figures 3, 4, 5, 8 and 11 from the rows of pdp-bound.csv: figure, quantity, curve, x, mean, low, high."""
    figure, panels = plots.panels(2, 4, size=(17, 8), dpi=110)
    for axes, (number, quantity, *scales) in zip(panels.flat, PANELS, strict=True):
        here = table[(table["figure"] == number) & (table["quantity"] == quantity)]
        for label, curve in here.groupby("curve", sort=False):
            axes.plot(curve["x"], curve["mean"], "." if number == "3" else "o-", markersize=3, label=label)
            if number != "3":  # a logarithmic axis has no place for a band's part at or below 0
                axes.fill_between(curve["x"], curve["low"], curve["high"], where=curve["low"] > 0, alpha=0.15)
        y, x = quantity.split(" over ")
        axes.set(xlabel=x, ylabel=y, xscale=scales[0], yscale=scales[1])
        axes.set_title(f"Figure {number}: {quantity}", fontsize=10)
        axes.legend(fontsize=7)
    says = "Bound on delta (pDP) on random tables, mean and 95 % interval (if above 0); training error not included"
    figure.suptitle(says)
    plots.save(figure, path)


def draw_removal(table: pd.DataFrame, path: Path) -> None:
    """Figure 6, a panel per data set: bound of what is left, and accuracy, over the share removed."""
    names = list(dict.fromkeys(table["data.name"]))
    figure, ((*panels,),) = plots.panels(1, len(names), size=(5.5 * len(names), 4), dpi=120)
    for axes, name in zip(panels, names, strict=True):
        own = table[table["data.name"] == name].replace(math.inf, math.nan)
        axes.plot(own["removed"], own["bound_largest"], "s-", color="#E69F00", label="bound, largest")
        axes.plot(own["removed"], own["bound_mean"], "o-", color="#0072B2", label="bound, mean")
        axes.set(xlabel="share of records removed", ylabel="bound on delta (pDP), one row", yscale="log", title=name)
        other = axes.twinx()
        _line(other, own, "removed", "accuracy", color="#D55E00", label="accuracy")
        other.axhline(own["accuracy_real"].iloc[0], color="#D55E00", lw=0.8, ls="--", label="accuracy, real rows")
        other.axhline(own["accuracy_majority"].iloc[0], color="0.6", lw=0.8, ls=":", label="always the larger class")
        other.set_ylabel("accuracy on real test rows")
    plots.legend(figure, (axes, other), loc="outside lower center", ncols=3, frameon=True)
    says = "conditional on the removed set, not the pipeline's guarantee; infinite bounds left out"
    figure.suptitle(says, fontsize=9)
    plots.save(figure, path)


def draw_attack(table: pd.DataFrame, path: Path) -> None:
    """Figure 7, a panel per data set and T: the attack over the linear schedule's rate, others beside it."""
    each = list(dict.fromkeys(zip(table["data.name"], table["method.model.steps"], strict=True)))
    figure, ((*panels,),) = plots.panels(1, len(each), size=(4.6 * len(each), 3.8), dpi=120, sharey=True)
    for axes, (name, steps) in zip(panels, each, strict=True):
        own = table[(table["data.name"] == name) & (table["method.model.steps"] == steps)]
        for (method, clients, schedule), arm in own.groupby(["method", "clients", "method.model.schedule"]):
            rates = arm["method.model.schedule.rate"].fillna(1)  # the cosine has none
            label = f"{method}, {clients:g} client{'s' if clients > 1 else ''}, {schedule}"
            _line(axes, arm.assign(rate=rates), "rate", "attack", label=label)
        for value in own["random"].unique():
            axes.axhline(value, color="0.6", lw=0.8, ls=":")
        axes.set(xlabel="rate of the schedule", title=f"{name}, T = {steps:g}", xscale="log")
        axes.legend(fontsize=7)
    panels[0].set_ylabel("black-box attack: share right (dotted: random)")
    plots.save(figure, path)


def _line(axes: Any, rows: pd.DataFrame, x: str, y: str, **look: str) -> None:
    ends = rows[f"{y}_low"], rows[f"{y}_high"]
    plots.points(axes, rows[x], rows[y], ends, fmt="o-", markersize=3, capsize=2, lw=1, **look)
