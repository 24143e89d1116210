"""The rows of the frontier: what was swept, what it measured, which rows no other dominates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from raydiff.formats.metric_records import (
    AUC_CEILING,
    BYTES_UP,
    COMPARED,
    DETAILED,
    SECONDS,
    Metric,
    Role,
    read_metrics,
)
from raydiff.report import guarantees
from raydiff.report.load import Row, column, groups, records

Point = tuple[str | None, float, float]  # definition, epsilon, measure
DONE = ("finished", "stopped")  # outcomes that have a row; the other trials are listed below the table
GROUPS = ("minor", "major", "all", "")
NOT_SETTINGS = ("seed", "data.split_seed", "data.root", "runtime")  # trials of one setting may differ in these
FROM_DATA = ("data_digest", "method.model.shape", "method.model.labels")
"""Config columns that follow from the data, of no interest where the data are swept."""
RESERVED = ("method", "n", "outcome", "reason", "pareto", "epsilon", "guarantee", "digests", "seconds")
"""Names that no swept column may take."""
NUMBERS = {
    "label_accuracy": Metric(name="label_accuracy", split="eval", group="all"),
    "auc_global": Metric(name="auc", target="global", attack="best"),
    "auc_client": Metric(name="auc", target="client", attack="best"),
    "bytes_up": BYTES_UP,
    "seconds": SECONDS,
    "auc_ceiling": AUC_CEILING,
}
"""Column of the table -> metric."""
ENDS = tuple(f"{name}_{end}" for name, metric in NUMBERS.items() if metric.attack for end in ("low", "high"))
METRICS = "metrics"  # in the table's `attrs`: column -> the metric of quality that it holds, as in a file


def frontier(runs: pd.DataFrame, metrics: Mapping[str, Metric]) -> pd.DataFrame:
    """One row per setting and outcome, from `load.runs` and `load.metrics`, sorted by method and what was swept.

    Columns: method; what was swept, under short names (text "none" where the field is empty, NaN where there is no such
    field); n (seeds, splits), outcome, reason, pareto; those of `guarantees.guarantees`; the metric that ranks, of each
    group of classes, with `_std` and `_floor`; NUMBERS, attacks with `_low` and `_high` (95 %, of a single seed);
    digests; metrics of other packages. Epsilon and auc_ceiling (none where nothing is sent) are the
    largest over seeds, other numbers means with `_std`. A stopped trial's distances are from the validation split.
    Raises ValueError where trials are ranked by several distances.
    """
    fields = settings(runs)
    by = ["method", *fields.values(), "outcome", "reason"]
    quality = _select_quality(metrics)
    numbers = _numbers(runs, quality, _select_added(metrics))
    trials = pd.concat([runs[["method", *fields]].rename(columns=fields), numbers], axis=1)
    trials = trials.sort_values(by, na_position="last", kind="stable")
    for path, name in fields.items():
        trials[name] = trials[name].astype(object).mask(trials[name].isna() & has(runs, path), "none")
    floors = [name for name, metric in quality.items() if metric.role == "floor"]
    each = trials.groupby(by, dropna=False, sort=False)
    rows = pd.DataFrame([_row(group, by, floors=floors) for _, group in each])
    rows.attrs[METRICS] = {name: metric.to_json() for name, metric in quality.items()}
    rows.insert(list(rows).index("reason") + 1, "pareto", _pareto(rows, cell_fields(fields)))
    return rows


def settings(runs: pd.DataFrame) -> dict[str, str]:
    """{path: short name} of the config columns that vary among the trials that have them; target epsilons last.

    A method's own fields that are the same in all its trials, such as its accountant, follow from the method.
    """
    config = [c for c in map(str, runs) if "/" not in c and c not in ("digest", "outcome", "reason", "method")]
    varying = [c for c in config if runs[c].nunique(dropna=False) > 1]
    own = [c for c in varying if c.startswith("method.") and c.count(".") == 1 and not is_target_epsilon(c)]
    follow = [c for c in own if (runs.groupby("method")[c].nunique(dropna=False) <= 1).all()]
    varying = [c for c in varying if c not in follow]
    varying = [c for c in varying if runs.loc[has(runs, c), c].nunique(dropna=False) > 1]
    if any(c.startswith("data.") and c != "data.root" for c in varying):
        varying = [c for c in varying if c not in FROM_DATA]
    varying = [c for c in varying if c not in NOT_SETTINGS and not c.startswith("runtime.")]
    varying = [c for c in varying if runs[c].nunique() > 1 or not any(v.startswith(f"{c}.") for v in varying)]
    varying.sort(key=is_target_epsilon)
    return {path: _short_name(path, [p for p in varying if p != path]) for path in varying}


def cell_fields(fields: Mapping[str, str]) -> list[str]:
    """Of `settings`, the short names of what is not the method's: settings compare where these are equal."""
    return [name for path, name in fields.items() if not path.startswith("method")]


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


def _select_quality(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """The metric of the least rank, of each group of classes, and its floors, by column of the table."""
    final = [m for m in metrics.values() if m.split in ("eval", "validation") and not m.sampler and m.part is None]
    least = min((m.rank for m in final if m.rank), default=0)
    names = sorted({m.name for m in final if least and m.rank == least})
    if len(names) > 1:
        raise ValueError(f"distances of several feature networks cannot share a table: {', '.join(names)}")
    found = {str(replace(m, split="")): replace(m, split="") for m in final if m.name in names}
    places = [(group, role) for group in GROUPS for role in ("value", "floor")]
    kept = [metric for metric in found.values() if (metric.group, metric.role) in places]
    kept.sort(key=lambda metric: places.index((metric.group, metric.role)))
    return {str(metric): metric for metric in kept}


def _select_added(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """The metrics of other packages, by column of the table."""
    final = [m for m in metrics.values() if m.split == "eval" and m.shown not in ("", *COMPARED, *DETAILED)]
    return {str(replace(metric, split="")): metric for metric in final}


def _numbers(runs: pd.DataFrame, quality: Mapping[str, Metric], added: Mapping[str, Metric]) -> pd.DataFrame:
    """Per trial, the columns of the table from `outcome` on."""
    out = runs[["outcome", "reason"]].join(guarantees.guarantees(runs))
    for name, metric in quality.items():
        test = column(runs, f"final/{replace(metric, split='eval')}")
        validation = column(runs, f"last/{replace(metric, split='validation')}")
        out[name] = test.where(runs["outcome"] == "finished", validation)
    ends: tuple[Role, ...] = ("low", "high")
    for name, metric in NUMBERS.items():
        out[name] = column(runs, f"final/{metric}")
        for end in ends if metric.attack else ():
            out[f"{name}_{end}"] = column(runs, f"final/{replace(metric, role=end)}")
    out["digests"] = runs["digest"]
    return out.assign(**{name: column(runs, f"final/{metric}") for name, metric in added.items()})


def _row(group: pd.DataFrame, by: Sequence[str], *, floors: Sequence[str]) -> Row:
    """One row of the table from the trials of one setting."""
    first = records(group[list(by)].head(1))[0]
    row = {k: first[k] for k in by[:-2]}
    row |= {"n": len(group), "outcome": first["outcome"], "reason": first["reason"]}
    for name in group.columns.drop(list(by)):
        values = group[name]
        if name in ("guarantee", "guarantee_outsiders"):  # The largest epsilon holds for all; unrecorded: for none.
            row[name] = max(values, key=lambda g: math.inf if math.isnan(g.epsilon) else g.epsilon)
        elif name == "digests":
            row[name] = " ".join(values)
        elif name in ("epsilon", "epsilon_outsiders", "auc_ceiling"):
            row[name] = values.max(skipna=False)
        elif name in ENDS:
            row[name] = values.iloc[0] if len(group) == 1 else math.nan
        else:
            row[name] = values.mean()
            row |= {} if name in floors else {f"{name}_std": values.std()}
    return row | ({"auc_ceiling": math.nan} if row["guarantee"].nothing_sent else {})


def _pareto(rows: pd.DataFrame, cell: Sequence[str]) -> list[bool]:
    """Finished rows with a guarantee that no finished row of their cell dominates.

    A stopped one's distance is from another split. Where nothing is sent, samples carry no guarantee: such a row
    dominates but is not marked.
    """
    distance = ranked_by(rows)
    if distance is None:
        return [False] * len(rows)
    points = rows[(rows["outcome"] == "finished") & rows["epsilon"].notna() & rows[distance].notna()]
    best: set[Any] = set()
    for _, part in groups(points, cell) if cell else [({}, points)]:
        coordinates = [(g.definition, g.epsilon, d) for g, d in zip(part["guarantee"], part[distance], strict=True)]
        protected = [(i, b) for i, b in zip(part.index, coordinates, strict=True) if 0 < b[1] < math.inf]
        best |= {i for i, b in protected if not any(_dominates(a, b) for a in coordinates)}
    return [i in best for i in rows.index]


def _dominates(a: Point, b: Point) -> bool:
    comparable = a[0] == b[0] or a[1] == 0  # Epsilon 0 compares under any definition.
    return comparable and a[1] <= b[1] and a[2] <= b[2] and a[1:] != b[1:]


def quality_of(table: pd.DataFrame) -> dict[str, Metric]:
    """The metrics of quality by column of the table, without their floors."""
    written = table.attrs[METRICS]
    metrics = zip(written, read_metrics(written.values()), strict=True)
    return {name: metric for name, metric in metrics if metric.role == "value"}


def ranked_by(table: pd.DataFrame) -> str | None:
    """The column of the metric that ranks, lower is better: that of the least rank which some row has."""
    ranks = {name: m.rank for name, m in quality_of(table).items() if m.rank and table[name].notna().any()}
    return min(ranks, key=ranks.__getitem__, default=None)


def measure_in_words(metric: Metric) -> str:
    """`Fréchet distance of cnn features, minority classes`."""
    classes = {"minor": ", minority classes", "all": ", all classes"}
    return metric.description + classes.get(metric.group, "")


def swept(table: pd.DataFrame) -> list[str]:
    """The columns of what was swept."""
    names = [str(c) for c in table]
    return names[1 : names.index("n")]


def is_target_epsilon(name: str) -> bool:
    """Whether this config column, by path or short name, is a target epsilon."""
    return name.rpartition(".")[2] == "epsilon"


def noise_floor(rows: pd.DataFrame, distance: str) -> tuple[float, float] | None:
    """Least and greatest noise floor (real half against real half) of a distance among the finished rows."""
    floors = column(rows, f"{distance}_floor")[rows["outcome"] == "finished"].dropna()
    return None if floors.empty else (float(floors.min()), float(floors.max()))
