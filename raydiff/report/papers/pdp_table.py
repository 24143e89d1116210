"""The tables of a sweep over tables: what leaving records out costs (Figure 6), what an attack finds (Figure 7).

A group is what differs in the name of the data, the arm and the varied field; in it the trials differ by seed and by
the split of the data. Differences are paired by both.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from raydiff.report.intervals import student
from raydiff.report.markdown import grid

REMOVE, SPLIT = "audit.remove", ["seed", "data.split_seed"]
ATTACK = "final/eval/blackbox/accuracy"
BOUND = "final/pdp/own/largest"
GROUPS = "final/pdp/own/groups"  # labels by which a table was audited; older trials have none
AS_ONE = (
    "These bounds were made before conditional models were audited by label: of models that are conditional on the "
    "label, as they are by default, they are too small. Run the trials again."
)
SCHEDULE = ["method.model.schedule", "method.model.schedule.rate"]
ARM = ["data.name", "method", "clients"]
TABLE_6 = {"adult": "81 % to 78 % from 0 to 0.5", "german": "73 % to 70 % from 0 to 0.5"}
"""The paper's accuracy over the share removed, from its text; its best is at 0.03 (Adult) and 0.01 (German Credit)."""
FIGURE_7 = {20: {0.1: 0.28, 1.0: 0.22}, 30: {0.1: 0.29, 1.0: 0.22}}
"""The paper's attack on Adult by T and rate of the linear schedule, read at the ends: 20 % of the records are members.
"""


def removal(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each share removed: bound, accuracy, and how much the accuracy differs from removing nothing."""
    if REMOVE not in runs or BOUND not in runs:
        return pd.DataFrame()
    found = runs[(runs["outcome"] == "finished") & runs[BOUND].notna()]
    rows = []
    for arm, own in found.groupby(ARM):
        if own[REMOVE].nunique() < 2:
            continue
        whole = own[own[REMOVE] == 0].set_index(SPLIT)["final/eval/accuracy"]
        for share, part in own.groupby(REMOVE):
            accuracy = part.set_index(SPLIT)["final/eval/accuracy"]
            less = (accuracy - whole).dropna()
            rows.append(
                {
                    **dict(zip(ARM, arm, strict=True)),
                    "removed": share,
                    "n": len(part),
                    "bound_largest": part[BOUND].mean(),
                    "bound_mean": part["final/pdp/own/mean"].mean(),
                    "by_label": GROUPS in part and bool(part[GROUPS].notna().all()),
                    "vacuous_share": part["final/pdp/own/vacuous_share"].mean(),
                    **_interval("accuracy", accuracy),
                    **(_interval("difference", less) if share and len(less) else {}),
                    "accuracy_real": part["final/eval/accuracy/real"].mean(),
                    "accuracy_majority": part["final/eval/accuracy/majority"].mean(),
                    "tv_pairs": part["final/eval/tv_pairs"].mean(),
                    "tv_pairs_floor": part["final/eval/tv_pairs_floor"].mean(),
                }
            )
    return pd.DataFrame(rows)


def attacks(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each arm, T, schedule and rate: the black-box attack, and how good the rows are."""
    if ATTACK not in runs:
        return pd.DataFrame()
    found = runs[(runs["outcome"] == "finished") & runs[ATTACK].notna()]
    keys = [*ARM, "method.model.steps", *(k for k in SCHEDULE if k in found)]
    rows = []
    key: Any
    for key, own in found.groupby(keys, dropna=False):
        rows.append(
            {
                **dict(zip(keys, key, strict=True)),
                "n": len(own),
                **_interval("attack", own[ATTACK]),
                "random": own["final/eval/blackbox/random"].mean(),
                "members": own["final/eval/blackbox/n_members"].mean(),
                **_interval("tv_pairs", own["final/eval/tv_pairs"]),
                "tv_pairs_floor": own["final/eval/tv_pairs_floor"].mean(),
                "accuracy": own["final/eval/accuracy"].mean(),
                "accuracy_real": own["final/eval/accuracy/real"].mean(),
                "accuracy_majority": own["final/eval/accuracy/majority"].mean(),
            }
        )
    return pd.DataFrame(rows)


def removal_text(table: pd.DataFrame) -> str:
    """As markdown; empty where there is nothing."""
    blocks = []
    for name, own in table.groupby("data.name") if len(table) else ():
        lines = grid(
            ["removed", "bound, largest", "mean", "vacuous", "accuracy", "minus removing nothing", "pairs"],
            (
                [
                    f"{row['removed']:.0%}",
                    f"{row['bound_largest']:.3g}",
                    f"{row['bound_mean']:.3g}",
                    f"{row['vacuous_share']:.0%}",
                    _shown(row, "accuracy"),
                    _shown(row, "difference") if row["removed"] else "",
                    f"{row['tv_pairs']:.3f}",
                ]
                for _, row in own.iterrows()
            ),
        )
        first = own.iloc[0]
        says = [
            f"Trained on real rows {first['accuracy_real']:.3f}, always the larger class "
            f"{first['accuracy_majority']:.3f}; n = {_span(own['n'])}. The paper's: {TABLE_6.get(str(name), 'none')}.",
            "Accuracy: of a classifier trained on generated rows, on real test rows. Bound: delta (pDP) of one row "
            "released. Pairs: total variation of pairs of columns.",
        ]
        if not own["by_label"].all():
            says.append(AS_ONE)
        blocks.append("\n".join([f"## Removing the most exposed records of {name} (Figure 6)", "", *lines, "", *says]))
    return "\n\n".join(blocks)


def attacks_text(table: pd.DataFrame) -> str:
    """As markdown; empty where there is nothing."""
    if table.empty:
        return ""
    blocks = []
    for name, own in table.groupby("data.name"):
        lines = grid(
            ["method", "clients", "T", "schedule", "rate", "attack", "random", "the paper's", "pairs"],
            (
                [
                    row["method"],
                    f"{row['clients']:g}",
                    f"{row['method.model.steps']:g}",
                    row["method.model.schedule"],
                    "" if math.isnan(row["method.model.schedule.rate"]) else f"{row['method.model.schedule.rate']:g}",
                    _shown(row, "attack"),
                    f"{row['random']:.3f}",
                    _paper(row),
                    f"{row['tv_pairs']:.3f}",
                ]
                for _, row in own.iterrows()
            ),
        )
        says = (
            "Attack: share of the records called members that are. Pairs: total variation of pairs of columns of the "
            f"generated rows, {own['tv_pairs_floor'].mean():.3f} between real ones; n = {_span(own['n'])}."
        )
        blocks.append("\n".join([f"## Black-box membership attack on {name} (Figure 7)", "", *lines, "", says]))
    return "\n\n".join(blocks)


def _paper(row: pd.Series) -> str:
    """The paper's attack where it has one: Adult, one model, linear schedule."""
    if (row["data.name"], row["method"], row["method.model.schedule"]) != ("adult", "LocalOnly", "Linear"):
        return ""
    value = FIGURE_7.get(int(row["method.model.steps"]), {}).get(float(row["method.model.schedule.rate"]))
    return "" if value is None else f"about {value:.2f}"


def _interval(name: str, values: pd.Series) -> dict[str, float]:
    return dict(zip((name, f"{name}_low", f"{name}_high"), student(values), strict=True))


def _shown(row: pd.Series, name: str) -> str:
    mean, low, high = (row[name + end] for end in ("", "_low", "_high"))
    sign = "+" if name == "difference" else ""
    return f"{mean:{sign}.3f}" if math.isnan(low) else f"{mean:{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"


def _span(values: pd.Series) -> str:
    least, most = int(values.min()), int(values.max())
    return f"{least}" if least == most else f"{least} to {most}"
