"""The rows of the frontier: what was swept, what it measured, which rows no other dominates."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from raydiff.formats.metric_records import AUC_CEILING, BYTES_UP, COMPARED, DETAILED, SECONDS, Metric
from raydiff.formats.tables import shorten_value
from raydiff.lookup import distinguishing_fields
from raydiff.privacy.ledger import Guarantee
from raydiff.report.guarantees import tabulate_guarantees
from raydiff.report.load import Row, column, records

DONE = ("finished", "stopped")  # outcomes that have a row; the other trials are listed below the table
GROUPS = ("minor", "major", "all", "")
NOT_SETTINGS = ("seed", "data.split_seed", "data.root", "runtime", "digest", "outcome", "reason", "method")
"""Columns of `load.runs` that are no field of a setting: trials of one setting may differ in these."""
FROM_DATA = ("data_digest", "method.model.shape", "method.model.labels")
"""Config columns that follow from the data."""
RESERVED = ("method", "n", "outcome", "reason", "cell", "pareto", "epsilon", "guarantee", "digests", "seconds")
"""Names that no swept column may take."""
NUMBERS = {
    "label_accuracy": Metric(name="label_accuracy", split="eval", group="all"),
    "auc_global": Metric(name="auc", target="global", attack="best"),
    "auc_client": Metric(name="auc", target="client", attack="best"),
    "bytes_up": BYTES_UP,
    "seconds": SECONDS,
}
"""Column of the table -> metric."""
ATTACKS = {name: metric for name, metric in NUMBERS.items() if metric.attack}


def build_frontier(runs: pd.DataFrame, trials: pd.DataFrame, metrics: Mapping[str, Metric]) -> pd.DataFrame:
    """One row per setting and outcome, from `load.runs`, `name_trials` and `load.metrics`, in the trials' order.

    Columns: method; what was swept, under short names (text "none" where the field is empty, NaN where there is no such
    field); cell; outcome, reason; n (seeds, splits); those of `tabulate_guarantees`; auc_ceiling (none where nothing is
    sent); digests; the metric that ranks, of each group of classes, with `_std` and `_floor`, NUMBERS, and metrics
    of other packages, with `_std`; attacks with `_low` and `_high` (95 %, of a single seed). Epsilon and auc_ceiling
    are the largest over seeds, other numbers means. A stopped trial's distances are from the validation split.
    """
    quality = select_quality(metrics)
    by = [*trials, "outcome", "reason"]
    averaged = pd.DataFrame({name: _measure_quality(runs, metric) for name, metric in quality.items()})
    for name, metric in {**NUMBERS, **select_added(metrics)}.items():
        averaged[name] = column(runs, f"final/{metric}")
    each = trials.join([runs[["digest", "outcome", "reason"]], tabulate_guarantees(runs), averaged])
    each["auc_ceiling"] = column(runs, f"final/{AUC_CEILING}").mask(each["guarantee"].map(lambda g: g.nothing_sent))
    how: dict[str, Any] = {"n": ("digest", "size"), "digests": ("digest", " ".join)}
    how |= {
        name: (name, lambda values: values.max(skipna=False))
        for name in ("epsilon", "epsilon_outsiders", "auc_ceiling")
    }
    how |= {name: (name, _find_weakest) for name in ("guarantee", "guarantee_outsiders")}
    for name in map(str, averaged):
        how |= {name: (name, "mean"), f"{name}_std": (name, "std")}
    for name, metric in quality.items():
        each[f"{name}_floor"] = _measure_quality(runs, replace(metric, role="floor"))
        how[f"{name}_floor"] = (f"{name}_floor", "mean")
    for name, metric in ATTACKS.items():
        for end in ("low", "high"):
            each[f"{name}_{end}"] = column(runs, f"final/{metric}_{end}")
            how[f"{name}_{end}"] = (f"{name}_{end}", lambda values: values.iloc[0] if len(values) == 1 else math.nan)
    table: pd.DataFrame = each.groupby(by, dropna=False, sort=False).agg(**how).reset_index()
    return table


def _measure_quality(runs: pd.DataFrame, metric: Metric) -> pd.Series:
    """A trial's metric of quality, of a stopped one on the validation split."""
    test = column(runs, f"final/{replace(metric, split='eval')}")
    return test.where(runs["outcome"] == "finished", column(runs, f"last/{replace(metric, split='validation')}"))


def _find_weakest(stated: pd.Series) -> Guarantee:
    """The guarantee of the largest epsilon, which holds for all; one that was not recorded holds for none."""
    weakest: Guarantee = max(stated, key=lambda g: math.inf if math.isnan(g.epsilon) else g.epsilon)
    return weakest


def settings(runs: pd.DataFrame) -> dict[str, str]:
    """{path: short name} of the config columns that vary among the trials that have them; target epsilons last.

    A method's own fields that are the same in all its trials, such as its accountant, follow from the method.
    """
    others = (*NOT_SETTINGS, *FROM_DATA)
    config = [c for c in map(str, runs) if c not in others and "/" not in c and not c.startswith("runtime.")]
    varying = [c for c in config if runs.loc[has(runs, c), c].nunique(dropna=False) > 1 and not _follows(runs, c)]
    varying = [c for c in varying if runs[c].nunique() > 1 or not any(v.startswith(f"{c}.") for v in varying)]
    varying.sort(key=is_target_epsilon)
    return {path: _short_name(path, [p for p in varying if p != path]) for path in varying}


def _follows(runs: pd.DataFrame, path: str) -> bool:
    """Whether a method's own field is the same in all trials of each method."""
    is_own = path.startswith("method.") and path.count(".") == 1 and not is_target_epsilon(path)
    return is_own and bool((runs.groupby("method")[path].nunique(dropna=False) <= 1).all())


def name_trials(runs: pd.DataFrame, fields: Mapping[str, str]) -> pd.DataFrame:
    """Method, swept fields under short names, and cell of each trial: settings compare within a cell.

    A cell is what was swept and is not the method's, in words.
    """
    named = runs[["method"]].copy()
    for path, name in fields.items():
        values = runs[path].astype(object)
        named[name] = values.mask(values.isna() & has(runs, path), "none")
    of_cell = [name for path, name in fields.items() if not path.startswith("method")]
    return named.assign(cell=[in_words(row, of_cell) or "all trials" for row in records(named)])


def name_arms(trials: pd.DataFrame, fields: Sequence[str]) -> pd.Series:
    """What differs among the arms of each method, in words: of `fields` those that tell them apart."""
    needed = {method: distinguishing_fields(records(arms), fields) for method, arms in trials.groupby("method")}
    return pd.Series([in_words(row, needed[row["method"]]) for row in records(trials)], trials.index, dtype=object)


def in_words(row: Row, names: Sequence[str]) -> str:
    """`schedule linear, epsilon 10`: the fields that the row has."""
    return ", ".join(f"{name} {shorten_value(row[name])}" for name in names if row[name] is not None)


def has(runs: pd.DataFrame, path: str) -> pd.Series:
    """The trials whose config has this field, empty or not: their part of this class has it somewhere."""
    part = path.rpartition(".")[0]
    return runs[part].isin(runs.loc[runs[path].notna(), part]) if part else pd.Series(True, runs.index)


def _short_name(path: str, others: Sequence[str]) -> str:
    """The shortest end of the path that is neither the end of another one nor reserved."""
    parts = path.split(".")
    ends = [".".join(parts[-n:]) for n in range(1, len(parts))]
    free = [e for e in ends if e not in RESERVED and not any(f".{o}".endswith(f".{e}") for o in others)]
    return free[0] if free else path


def select_quality(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """The metric of the least rank, of each group of classes, by column of the table.

    Raises ValueError where trials are ranked by several distances.
    """
    final = [m for m in metrics.values() if m.split in ("eval", "validation") and not m.sampler and m.part is None]
    least = min((m.rank for m in final if m.rank), default=None)
    names = sorted({m.name for m in final if m.rank == least})
    if len(names) > 1:
        raise ValueError(f"distances of several feature networks cannot share a table: {', '.join(names)}")
    found = {m.group: replace(m, split="") for m in final if m.name in names and m.role == "value"}
    return {str(found[group]): found[group] for group in GROUPS if group in found}


def select_added(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """The metrics of other packages, by column of the table."""
    final = [m for m in metrics.values() if m.split == "eval" and m.shown not in ("", *COMPARED, *DETAILED)]
    return {str(replace(metric, split="")): metric for metric in final}


def mark_pareto(rows: pd.DataFrame, measure: str) -> list[bool]:
    """Whether each is a finished row with a guarantee that no finished row of its cell dominates.

    A stopped one's distance is from another split. Where nothing is sent, samples carry no guarantee: such a row
    dominates but is not marked.
    """
    best = []
    rows = rows.assign(definition=[guarantee.definition for guarantee in rows["guarantee"]])
    points = rows[(rows["outcome"] == "finished") & rows[["epsilon", measure]].notna().all(axis=1)]
    for i, point in points[has_finite_epsilon(points["epsilon"])].iterrows():
        # Epsilon 0 compares under any definition.
        comparable = (points["definition"] == point["definition"]) | (points["epsilon"] == 0)
        others = points.loc[comparable & (points["cell"] == point["cell"]), ["epsilon", measure]]
        ours = point[["epsilon", measure]]
        if not ((others <= ours).all(axis=1) & (others != ours).any(axis=1)).any():
            best.append(i)
    return [i in best for i in rows.index]


def has_finite_epsilon(epsilons: pd.Series) -> pd.Series:
    """Whether each is neither 0 nor infinite."""
    return epsilons.between(0, math.inf, inclusive="neither")


def measure_in_words(metric: Metric) -> str:
    """`Fréchet distance of cnn features, minority classes`."""
    classes = {"minor": ", minority classes", "all": ", all classes"}
    return metric.description + classes.get(metric.group, "")


def is_target_epsilon(name: str) -> bool:
    """Whether this config column, by path or short name, is a target epsilon."""
    return name.rpartition(".")[2] == "epsilon"


def noise_floor(rows: pd.DataFrame, measure: str) -> tuple[float, float] | None:
    """Least and greatest noise floor (real half against real half) of a distance among the finished rows."""
    floors = rows.loc[rows["outcome"] == "finished", f"{measure}_floor"].dropna()
    return None if floors.empty else (float(floors.min()), float(floors.max()))
