"""What an epsilon speaks of: its kind (unit, relation, trust, delta), in which epsilons can be compared whichever
accountant found them, and epsilons kind by kind."""

from __future__ import annotations

import math
import re

import pandas as pd

from raydiff.formats import rounding as bounds
from raydiff.report.load import VIEWS, Row, column, records

NOTHING = "nothing sent"
SILENT = "noise of scale 0"


def kind_of(run: Row, view: str) -> str:
    """What the epsilon against this view (server or outsiders) speaks of, in words."""
    of = {k.removeprefix(f"{view}/"): v for k, v in run.items() if k.startswith(f"{view}/")}
    if of["epsilon"] is None:
        return "not recorded"
    if of["epsilon"] == math.inf:
        return f"no guarantee: {'not recorded why' if of['unprotected'] is None else of['unprotected'] or SILENT}"
    if of["unit"] is None:
        return NOTHING if of["epsilon"] == 0 else "unit, relation and trust not recorded"
    about = f"per {of['unit']}, {of['relation'].replace('_', '-')}, {of['trust']} trust"
    if of["delta"] is None:  # no outcome says it, and it is no field of the method
        return f"{about}, delta not recorded"
    stated = f"{about}, delta {of['delta']:g}, {of['accountant']} accountant"
    return f"{stated}; public by declaration: {of['declared']}" if of["declared"] else stated


def guarantees(runs: pd.DataFrame) -> pd.DataFrame:
    """epsilon and kind of every trial as stated: against the server, and where it has none (central trust) against
    outsiders; epsilon_outsiders and kind_outsiders."""
    found = pd.DataFrame(index=runs.index)
    for view, suffix in zip(VIEWS, ("", "_outsiders"), strict=True):
        found[f"epsilon{suffix}"] = column(runs, f"{view}/epsilon")
        found[f"kind{suffix}"] = [kind_of(run, view) for run in records(runs)]
    central = (found["epsilon"] == math.inf) & (found["epsilon_outsiders"] < math.inf)
    names = ("epsilon", "kind")
    return found.assign(**{n: found[n].mask(central, found[f"{n}_outsiders"]) for n in names})


def comparable(stated: str) -> str:
    """Its kind alone, of an epsilon as stated by one trial or several: without accountants, each of which bounds the
    same thing from above, and without what is public."""
    parts = re.split(r" or (?=per )", stated) if stated.startswith("per ") else [stated]
    return " or ".join(dict.fromkeys(re.split(r", \w+ accountant", part)[0] for part in parts))


def kinds(rows: pd.DataFrame) -> dict[str, str]:
    """{kind: its name} of the finite guarantees: unit, relation and trust; and delta where two share these."""
    views = ("", "_outsiders")
    stated = {k for view in views for k in rows.loc[rows[f"epsilon{view}"] < math.inf, f"kind{view}"]} - {NOTHING}
    names = {kind: re.split(", delta | or ", kind)[0] for kind in sorted(map(comparable, stated))}
    return {kind: kind if list(names.values()).count(name) > 1 else name for kind, name in names.items()}


def stated(rows: pd.DataFrame, kind: str) -> str:
    """The kind with accountant and what is public by declaration: of all rows, or method by method."""
    each: dict[str, list[str]] = {}
    for row in records(rows):
        for says in dict.fromkeys((row["kind"], row["kind_outsiders"])):
            if comparable(says) == kind:
                each.setdefault(says, []).append(row["method"])
    if len(each) < 2:
        return next(iter(each), kind)
    who = (f"{', '.join(dict.fromkeys(of))}: {says.removeprefix(kind).lstrip(', ')}" for says, of in each.items())
    return "; ".join([kind, *who])


def epsilons(rows: pd.DataFrame, kind: str) -> pd.Series:
    """Each row's epsilon of this kind, NaN where it has none. Without any guarantee it is infinite and where nothing
    was sent 0, of whatever kind."""
    of_any = (rows["epsilon"] == math.inf) | (rows["kind"] == NOTHING)
    own = rows["epsilon"].where(of_any | (rows["kind"].map(comparable) == kind))
    return own.mask(rows["kind_outsiders"].map(comparable) == kind, rows["epsilon_outsiders"])


def spread(rows: pd.DataFrame) -> pd.DataFrame:
    """The table with a column per kind in place of `epsilon` and `epsilon_outsiders`, where there are several kinds."""
    several = kinds(rows)
    if len(several) < 2:
        return rows
    out = rows.drop(columns=["epsilon", "epsilon_outsiders"])
    for i, (kind, name) in enumerate(several.items()):
        out.insert(list(rows).index("epsilon") + i, f"epsilon [{name}]", epsilons(rows, kind))
    return out


def against(kind: str) -> str:
    """Whom an epsilon of this kind holds against."""
    if "central trust" in kind:
        return "outsiders only; the server sees the updates"
    return "the server, which sees sums of updates alone" if "aggregate trust" in kind else "the server"


def shown(epsilon: float | None, kind: str = "") -> str:
    """`9.77`, `inf`, `0 (nothing sent)`, `?` where it was not recorded."""
    if epsilon is None:
        return "?"
    if epsilon == 0:
        return f"0 ({NOTHING})" if kind == NOTHING else "0"
    return bounds.up(epsilon)
