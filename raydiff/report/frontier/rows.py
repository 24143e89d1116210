"""The rows of the frontier: what was swept, what it measured, which rows no other dominates."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

import pandas as pd

from raydiff.report.frontier.kinds import comparable, guarantees
from raydiff.report.load import Row, column, records

DONE = ("finished", "stopped")
"""Outcomes that have a row; the other trials are listed below the table."""
GROUPS = ("minor", "major", "all")
SAMPLERS = ("ddim", "ancestral")
NOT_SETTINGS = re.compile(r"seed$|data\.split_seed$|runtime$|runtime\.(?!threads)|data\.root$")
"""Config columns in which the repetitions of one setting may differ."""
RESOLVED = ("data_digest", "method.model.shape", "method.model.labels")
"""Config columns that follow from the data, of no interest where the data are swept."""
ACCOUNTANT = "method.accountant"
"""Of no interest where it follows from the method: the kind of epsilon says it too."""
TAKEN = ("method", "n", "outcome", "reason", "pareto", "epsilon", "kind", "digests", "seconds")
"""Names that no swept column may take."""
KNOWN = {
    "label_accuracy": "final/eval/label_accuracy/all",
    "auc_global": "final/attack/global/best/auc",
    "auc_client": "final/attack/client/best/auc",
    "tpr_global": "final/attack/global/best/tpr_at_1pct_fpr",
    "tpr_client": "final/attack/client/best/tpr_at_1pct_fpr",
    "bytes_up": "final/comm/bytes_up",
    "seconds": "final/time/seconds",
    "auc_ceiling": "final/privacy/auc_ceiling",
}
"""Column of the table -> column of runs."""
OWN = re.compile(
    r"final/eval/(?:(?:fd|kd|tv)_|(?:ddim|ancestral|dpmsolver|class|client|downstream|blackbox)/"
    r"|(?:precision|recall|density|coverage|label_accuracy)/"
    r"|(?:accuracy|utility_loss|own_classes|memorized_fraction)(?:/|$))"
)
"""Readings of raydiff's own instruments, which the report has in full: of them, the frontier shows those above."""
EVAL = "final/eval/"
OTHER = re.compile(
    r"fid/all|kd_\w+/all|kid/all|tv_pairs|utility_loss"
)  # In the order in which they count, which is the alphabet's.


def frontier(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per setting and outcome, sorted by method and what was swept, from `load.runs`.

    Columns: method; what was swept, under short names (text "none" where the field is empty, NaN where there is no
    such field); then n (seeds, splits), outcome, reason, pareto, epsilon and its kind as stated (against the
    server; where that is infinite, against outsiders), both against outsiders, `fd_<network>/<group>` with `_std`
    and `_floor`, minor_ddim and minor_ancestral (by each sampler of the client's chain) or, without such distances,
    `measures`; label_accuracy, auc_global and auc_client, tpr_global and tpr_client (at 1 % false positives, empty
    where there are too few non-members) with `_low` and `_high` (95 %, of a single seed), bytes_up, seconds,
    auc_ceiling, digests; then whatever metrics others have added. Epsilon and auc_ceiling are guarantees: the largest
    over seeds. The others are means, with `_std`. A stopped trial's distances are from the validation split. Raises
    ValueError where trials used several feature networks.
    """
    fields = settings(runs)
    by = ["method", *fields.values(), "outcome", "reason"]
    trials = pd.concat([runs[["method", *fields]].rename(columns=fields), _numbers(runs)], axis=1)
    trials = trials.sort_values(by, na_position="last", kind="stable")
    for path, name in fields.items():
        trials[name] = trials[name].astype(object).mask(trials[name].isna() & has(runs, path), "none")
    rows = pd.DataFrame([_row(group, by) for _, group in trials.groupby(by, dropna=False, sort=False)])
    rows.insert(list(rows).index("reason") + 1, "pareto", _pareto(rows))
    return rows


def settings(runs: pd.DataFrame) -> dict[str, str]:
    """{path: short name} of the config columns that vary among the trials that have them; the budget last.

    Of a part that is there or not, its fields tell which.
    """
    config = [c for c in map(str, runs) if "/" not in c and c not in ("digest", "outcome", "reason", "method")]
    varying = [c for c in config if runs[c].nunique(dropna=False) > 1]  # most do not: asked first, it is quick
    if ACCOUNTANT in varying and (runs.groupby("method")[ACCOUNTANT].nunique() <= 1).all():
        varying.remove(ACCOUNTANT)
    varying = [c for c in varying if runs.loc[has(runs, c), c].nunique(dropna=False) > 1]
    if any(c.startswith("data.") and c != "data.root" for c in varying):
        varying = [c for c in varying if c not in RESOLVED]
    varying = [c for c in varying if not NOT_SETTINGS.match(c)]
    varying = [c for c in varying if runs[c].nunique() > 1 or not any(v.startswith(f"{c}.") for v in varying)]
    varying.sort(key=is_budget)
    return {path: _short_name(path, [p for p in varying if p != path]) for path in varying}


def has(runs: pd.DataFrame, path: str) -> pd.Series:
    """The trials whose config has this field, empty or not: their part of this class has it somewhere."""
    part = path.rpartition(".")[0]
    return runs[part].isin(runs.loc[runs[path].notna(), part]) if part else pd.Series(True, runs.index)


def _short_name(path: str, others: Sequence[str]) -> str:
    """The shortest end of the path that is neither the end of another one nor taken."""
    parts = path.split(".")
    ends = [".".join(parts[-n:]) for n in range(1, len(parts))]
    free = [e for e in ends if e not in TAKEN and not any(f".{o}".endswith(f".{e}") for o in others)]
    return free[0] if free else path


def added(names: Sequence[str]) -> list[str]:
    """Of the columns of runs, metrics that raydiff itself does not have, without what qualifies another one."""
    ours = (n for n in names if n.startswith(EVAL) and not OWN.match(n))
    return [n.removeprefix(EVAL) for n in ours if not n.endswith(("_low", "_high", "_floor"))]


def _numbers(runs: pd.DataFrame) -> pd.DataFrame:
    """Per trial, the columns of the table from `outcome` on."""
    network = network_of(runs)
    out = runs[["outcome", "reason"]].join(guarantees(runs))
    groups = GROUPS if network else ()
    for name in [f"fd_{network}/{group}{floor}" for group in groups for floor in ("", "_floor")]:
        test, validation = column(runs, f"final/eval/{name}"), column(runs, f"last/validation/{name}")
        out[name] = test.where(runs["outcome"] == "finished", validation)
    for sampler in SAMPLERS if network else ():
        out[f"minor_{sampler}"] = column(runs, f"final/eval/{sampler}/fd_{network}/minor")
    for name in () if network else measures(str(c).removeprefix(EVAL) for c in runs):
        out[name] = column(runs, EVAL + name)
    for name, source in KNOWN.items():
        for suffix in ("", "_low", "_high") if source.startswith("final/attack/") else ("",):
            out[name + suffix] = column(runs, source + suffix)
    out["digests"] = runs["digest"]
    return out.assign(**{name: column(runs, EVAL + name) for name in added([*runs])})


def _row(group: pd.DataFrame, by: Sequence[str]) -> Row:
    """One row of the table from the trials of one setting."""
    first = records(group[list(by)].head(1))[0]
    row = {k: first[k] for k in by[:-2]}
    row |= {"n": len(group), "outcome": first["outcome"], "reason": first["reason"]}
    for name in group.columns.drop(list(by)):
        values = group[name]
        if name in ("kind", "kind_outsiders"):
            row[name] = " or ".join(values.unique())
        elif name == "digests":
            row[name] = " ".join(values)
        elif name in ("epsilon", "epsilon_outsiders", "auc_ceiling"):
            row[name] = values.max(skipna=False)
        elif name.endswith(("_low", "_high")):
            row[name] = values.iloc[0] if len(group) == 1 else math.nan
        else:
            row[name] = values.mean()
            row |= {} if name.endswith("_floor") else {f"{name}_std": values.std()}
    return row


def _pareto(rows: pd.DataFrame) -> list[bool]:
    """Finished rows that no other finished row dominates; a stopped one's distance is from another split."""
    distance = ranked_by(rows)
    if distance is None:
        return [False] * len(rows)
    points = rows[(rows["outcome"] == "finished") & rows["epsilon"].notna() & rows[distance].notna()]
    known = list(zip(points["kind"].map(comparable), points["epsilon"], points[distance], strict=True))

    def dominates(a: tuple[str, float, float], b: tuple[str, float, float]) -> bool:
        comparable = a[0] == b[0] or a[1] == 0 or b[1] == math.inf  # across kinds, only 0 and infinity can be compared
        return comparable and a[1] <= b[1] and a[2] <= b[2] and a[1:] != b[1:]

    best = {i for i, b in zip(points.index, known, strict=True) if not any(dominates(a, b) for a in known)}
    return [i in best for i in rows.index]


def network_of(frame: pd.DataFrame) -> str | None:
    """The feature network of the distances, None if nothing was measured."""
    names = (re.search(r"(?:^|/)fd_(\w+)/(?:minor|major|all)$", str(c)) for c in frame)
    found = sorted({m[1] for m in names if m})
    if len(found) > 1:
        raise ValueError(f"distances of several feature networks cannot share a table: {', '.join(found)}")
    return found[0] if found else None


def ranked_by(rows: pd.DataFrame) -> str | None:
    """The measure of the frontier, lower is better: the distance on the minority classes, on all where clients have no
    minority; what trials without a Fréchet distance measure."""
    names = [f"fd_{network_of(rows)}/{group}" for group in ("minor", "all")]
    names += measures(map(str, rows))
    return next((n for n in names if n in rows and rows[n].notna().any()), None)


def measures(names: Iterable[str]) -> list[str]:
    """Of these columns, those that rank trials without a Fréchet distance: the first one that is there counts."""
    return sorted(name for name in names if OTHER.fullmatch(name))


def swept(table: pd.DataFrame) -> list[str]:
    """The columns of what was swept."""
    names = [str(c) for c in table]
    return names[1 : names.index("n")]


def is_budget(name: str) -> bool:
    """Whether this config column, by path or short name, is the epsilon that was asked for."""
    return name.rpartition(".")[2] == "epsilon"


def floors_of(rows: pd.DataFrame, distances: Sequence[str]) -> list[tuple[Row, list[float]]]:
    """(what says which floor, by column; floor of each distance) of the finished rows.

    One for all rows, or one for each value of the swept field that decides them, or the lowest and highest.
    """
    done = rows[rows["outcome"] == "finished"]
    floors = done[[f"{name}_floor" for name in distances]].dropna(how="all").round(9)
    if len(floors) == 0:
        return []
    if (floors.nunique() <= 1).all():
        return [({"method": "floor"}, list(floors.iloc[0]))]
    for field in swept(rows):
        groups = floors.groupby(done[field])
        if done[field].notna().all() and (groups.nunique() <= 1).all(axis=None):
            return [({"method": "floor", field: value}, list(of)) for value, of in groups.first().iterrows()]
    return [({"method": "floor min"}, list(floors.min())), ({"method": "floor max"}, list(floors.max()))]
