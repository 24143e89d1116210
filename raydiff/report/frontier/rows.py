"""The rows of the frontier: what was swept, what it measured, which rows no other dominates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from raydiff.formats.metric_names import FAMILIES, ColumnName
from raydiff.report import guarantees
from raydiff.report.load import Row, column, groups, records

Point = tuple[str | None, float, float]  # definition, epsilon, measure
DONE = ("finished", "stopped")  # outcomes that have a row; the other trials are listed below the table
GROUPS = ("minor", "major", "all")
NOT_SETTINGS = ("seed", "data.split_seed", "data.root", "runtime")  # trials of one setting may differ in these
FROM_DATA = ("data_digest", "method.model.shape", "method.model.labels")
"""Config columns that follow from the data, of no interest where the data are swept."""
RESERVED = ("method", "n", "outcome", "reason", "pareto", "epsilon", "guarantee", "digests", "seconds")
"""Names that no swept column may take."""
EVAL = "final/eval/"
NUMBERS = {
    "label_accuracy": f"{EVAL}label_accuracy/all",
    "auc_global": "final/attack/global/best/auc",
    "auc_client": "final/attack/client/best/auc",
    "bytes_up": "final/comm/bytes_up",
    "seconds": "final/time/seconds",
    "auc_ceiling": "final/privacy/auc_ceiling",
}
"""Column of the table -> column of runs."""
IN_REPORT = set(FAMILIES) - {"fid", "kid"}
"""Families of readings that only the report has in full."""
RANKING = ("fid/all", "kid/all", "tv_pairs", "utility_loss")
"""These and kernel distances rank trials that have no Fréchet distance of a feature network."""
MEASURES = {
    "f": "Fréchet distance of {} features",
    "k": "kernel distance of {} features",
    "tv_pairs": "total variation of pairs of columns",
    "utility_loss": "1 - accuracy on the test split",
}
"""Beginning of a measure's name -> its meaning."""


def frontier(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per setting and outcome, from `load.runs`, sorted by method and what was swept.

    Columns: method; what was swept, under short names (text "none" where the field is empty, NaN where there is no such
    field); n (seeds, splits), outcome, reason, pareto; those of `guarantees.guarantees`; `fd_<network>/<group>` with
    `_std` and `_floor` or, without such distances, `measures`; NUMBERS, attacks with `_low` and `_high` (95 %, of a
    single seed); digests; metrics of other packages. Epsilon and auc_ceiling (none where nothing is sent) are the
    largest over seeds, other numbers means with `_std`. A stopped trial's distances are from the validation split.
    Raises ValueError where trials used several feature networks.
    """
    fields = settings(runs)
    by = ["method", *fields.values(), "outcome", "reason"]
    trials = pd.concat([runs[["method", *fields]].rename(columns=fields), _numbers(runs)], axis=1)
    trials = trials.sort_values(by, na_position="last", kind="stable")
    for path, name in fields.items():
        trials[name] = trials[name].astype(object).mask(trials[name].isna() & has(runs, path), "none")
    rows = pd.DataFrame([_row(group, by) for _, group in trials.groupby(by, dropna=False, sort=False)])
    rows.insert(list(rows).index("reason") + 1, "pareto", _pareto(rows, cell_fields(fields)))
    return rows


def settings(runs: pd.DataFrame) -> dict[str, str]:
    """{path: short name} of the config columns that vary among the trials that have them; target epsilons last. A
    method's own fields that are the same in all its trials, such as its accountant, follow from the method."""
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


def added(names: Iterable[str]) -> list[str]:
    """Of the columns of runs, the values of metrics that raydiff itself does not have."""
    metrics = [ColumnName.parse(name) for name in names if name.startswith(EVAL)]
    others = [m for m in metrics if m.family not in IN_REPORT and m.role == "value" and not (m.sampler or m.part)]
    return [str(metric).removeprefix("eval/") for metric in others]


def _numbers(runs: pd.DataFrame) -> pd.DataFrame:
    """Per trial, the columns of the table from `outcome` on."""
    network = network_of(runs)
    out = runs[["outcome", "reason"]].join(guarantees.guarantees(runs))
    for name in [f"fd_{network}/{group}{floor}" for group in GROUPS if network for floor in ("", "_floor")]:
        test, validation = column(runs, EVAL + name), column(runs, f"last/validation/{name}")
        out[name] = test.where(runs["outcome"] == "finished", validation)
    for name in () if network else measures(str(c).removeprefix(EVAL) for c in runs):
        out[name] = column(runs, EVAL + name)
    for name, source in NUMBERS.items():
        for end in ("", "_low", "_high") if ColumnName.parse(source).attack else ("",):
            out[name + end] = column(runs, source + end)
    out["digests"] = runs["digest"]
    return out.assign(**{name: column(runs, EVAL + name) for name in added(map(str, runs))})


def _row(group: pd.DataFrame, by: Sequence[str]) -> Row:
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
        elif name.endswith(("_low", "_high")):
            row[name] = values.iloc[0] if len(group) == 1 else math.nan
        else:
            row[name] = values.mean()
            row |= {} if name.endswith("_floor") else {f"{name}_std": values.std()}
    return row | ({"auc_ceiling": math.nan} if row["guarantee"].nothing_sent else {})


def _pareto(rows: pd.DataFrame, cell: Sequence[str]) -> list[bool]:
    """Finished rows with a guarantee that no finished row of their cell dominates. A stopped one's distance is from
    another split. Where nothing is sent, samples carry no guarantee: such a row dominates but is not marked."""
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


def network_of(frame: pd.DataFrame) -> str | None:
    """The feature network of the Fréchet distances, None if nothing was measured."""
    metrics = (ColumnName.parse(str(c)) for c in frame)
    networks = sorted({m.name[3:] for m in metrics if m.family == "fd" and m.group in GROUPS and m.role == "value"})
    if len(networks) > 1:
        raise ValueError(f"distances of several feature networks cannot share a table: {', '.join(networks)}")
    return networks[0] if networks else None


def ranked_by(rows: pd.DataFrame) -> str | None:
    """The measure of the frontier, lower is better: a distance on the minority or all classes, else of `measures`."""
    names = [f"fd_{network_of(rows)}/{group}" for group in ("minor", "all")]
    names += measures(map(str, rows))
    return next((n for n in names if n in rows and rows[n].notna().any()), None)


def measures(names: Iterable[str]) -> list[str]:
    """Of these columns, those of RANKING; the first one counts."""
    return sorted(n for n in names if n in RANKING or (n.startswith("kd_") and n.partition("/")[2] == "all"))


def measure_in_words(name: str) -> str:
    """`Fréchet distance of cnn features, minority classes` for fd_cnn/minor: lower is better of all MEASURES."""
    family, _, group = name.removeprefix(EVAL).partition("/")
    words = next(words for start, words in MEASURES.items() if family.startswith(start))
    classes = {"minor": ", minority classes", "all": ", all classes"} if words.startswith(("F", "k")) else {}
    return words.format(family.partition("_")[2] or "Inception") + classes.get(group, "")


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
