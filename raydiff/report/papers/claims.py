"""Does a sweep show what a paper claims? One row per claim: reproduced, not reproduced, or why it was not tested.

    raydiff claims SWEEP [--out DIR]      of `raydiff sweep reproduce`: prints, writes claims.md and .csv

Every claim, with the paper's numbers, is stated in `claims_made` apart from any result. A difference is paired (by
seed, split and what else the two sides share), with its 95 % Student interval:

- reproduced: the interval lies on the side that is claimed;
- not reproduced: it lies on the other side, or holds 0 and is narrow enough to have shown the paper's own gain;
- not tested at this scale: it holds 0, and its half-width is above the paper's own gain (relative to the other side);
- not tested: data, settings or readings that the sweep has not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from raydiff.report import load
from raydiff.report.intervals import student
from raydiff.report.markdown import grid

REPRODUCED, NOT, SCALE = "reproduced", "not reproduced", "not tested at this scale"
PAIRED = ("seed", "data.split_seed", "data.name", "data.train", "partition.xi", "clients", "method.model.steps")
Where = dict[str, Any]
"""Column -> value, a set of values, or None where it must be empty."""


@dataclass(frozen=True)
class Verdict:
    """What came out of a claim."""

    outcome: str
    """reproduced, not reproduced, not tested ..."""
    ours: str = ""
    """Our numbers."""
    n: int = 0
    """Pairs or trials behind them."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a paper says."""

    says: str
    """In a sentence."""
    source: str
    """Where in the paper."""
    paper: str
    """Its numbers."""
    differs: str
    """What is not as in the paper, here."""
    judge: Callable[[pd.DataFrame], Verdict]
    """From the finished runs."""


def judged(runs: pd.DataFrame, claims: Sequence[Claim]) -> pd.DataFrame:
    """One row per claim: claim, source, paper, ours, n, outcome, differs."""
    done = runs[runs["outcome"] == "finished"]
    rows = []
    for claim in claims:
        found = claim.judge(done)
        rows.append(
            {
                "claim": claim.says,
                "source": claim.source,
                "paper": claim.paper,
                "ours": found.ours,
                "n": found.n,
                "outcome": found.outcome,
                "differs": claim.differs,
            }
        )
    return pd.DataFrame(rows)


def text(table: pd.DataFrame) -> str:
    """As markdown."""
    header = ["claim", "source", "the paper's", "ours [95 % interval], n", "outcome", "what differs"]
    lines = (
        [
            row["claim"],
            row["source"],
            row["paper"],
            f"{row['ours']}, {row['n']}" if row["n"] else "",
            f"**{row['outcome']}**",
            row["differs"],
        ]
        for row in table.to_dict("records")
    )
    return "\n".join(grid(header, lines))


# ---------------------------------------------------------------------------------------------------------- judges


def lower(metric: str, ours: Where, others: Where, *, gain: float) -> Callable[[pd.DataFrame], Verdict]:
    """Claimed: `metric` is lower in the runs `ours` than in the `others`; `gain` is the paper's, relative to others."""
    return _difference(metric, ours, others, gain=gain, sign=-1)


def higher(metric: str, ours: Where, others: Where, *, gain: float) -> Callable[[pd.DataFrame], Verdict]:
    """Claimed: `metric` is higher in `ours`; `gain` is the paper's, relative to the others."""
    return _difference(metric, ours, others, gain=gain, sign=1)


def _difference(
    metric: str, ours: Where, others: Where, *, gain: float, sign: int
) -> Callable[[pd.DataFrame], Verdict]:
    def judge(runs: pd.DataFrame) -> Verdict:
        both = _pairs(runs, metric, ours, others)
        if isinstance(both, Verdict):
            return both
        if both[["value", "value_other"]].isin([math.inf]).any(axis=None):
            least = f"{both['value'].max():.3g} against {both['value_other'].max():.3g} at most"
            return Verdict(NOT, least, len(both))  # no mean, and no claim of a paper is about infinite bounds
        mean, low, high = student(both["value"] - both["value_other"])
        scale = abs(float(both["value_other"].mean()))
        shown = f"{both['value'].mean():.3g} against {scale:.3g}: {mean:+.3g} [{low:+.3g}, {high:+.3g}]"
        claimed = (low, high) if sign > 0 else (-high, -low)
        return Verdict(_outcome(*claimed, gain * scale), shown, len(both))

    return judge


def holds(
    metric: str, where: Where, value: float, *, within: float, at_most: bool = False
) -> Callable[[pd.DataFrame], Verdict]:
    """Claimed: the mean of `metric` is `value` (or at most that); an interval wider than `within` cannot tell."""

    def judge(runs: pd.DataFrame) -> Verdict:
        found = _values(runs, metric, where)
        if found is None or len(found) < 2:
            return Verdict("not tested: no such trials or reading")
        mean, low, high = student(found["value"])
        shown = f"{mean:.3g} [{low:.3g}, {high:.3g}]"
        inside = high <= value if at_most else low <= value <= high
        if inside and (high - low) / 2 > within:
            return Verdict(SCALE, shown, len(found))
        return Verdict(REPRODUCED if inside else NOT, shown, len(found))

    return judge


def same(metric: str, ours: Where, others: Where, *, within: float) -> Callable[[pd.DataFrame], Verdict]:
    """Claimed: the mean of `metric` is the same; by no more than `within` different, in its own unit."""

    def judge(runs: pd.DataFrame) -> Verdict:
        both = _pairs(runs, metric, ours, others)
        if isinstance(both, Verdict):
            return both
        mean, low, high = student(both["value"] - both["value_other"])
        means = f"{both['value'].mean():.3g} against {both['value_other'].mean():.3g}"
        shown = f"{means}: {mean:+.3g} [{low:+.3g}, {high:+.3g}]"
        inside = -within <= low and high <= within
        beyond = low > 0 or high < 0
        return Verdict(REPRODUCED if inside else NOT if beyond else SCALE, shown, len(both))

    return judge


def untested(why: str) -> Callable[[pd.DataFrame], Verdict]:
    """A claim that no run of ours can test."""
    return lambda runs: Verdict(f"not tested: {why}")


def _outcome(low: float, high: float, gain: float) -> str:
    if low > 0:
        return REPRODUCED
    if high < 0:
        return NOT
    return SCALE if (high - low) / 2 > gain else NOT


def _values(runs: pd.DataFrame, metric: str, where: Where) -> pd.DataFrame | None:
    """The runs that are meant, with the reading as `value`; None where there are none."""
    if f"final/{metric}" not in runs:
        return None
    mask = runs[f"final/{metric}"].notna()
    for column, wanted in where.items():
        if column not in runs:
            if wanted is not None:
                return None
            continue
        mask &= runs[column].isna() if wanted is None else runs[column] == wanted
    found = runs[mask]
    return found.assign(value=found[f"final/{metric}"]) if len(found) else None


def _pairs(runs: pd.DataFrame, metric: str, ours: Where, others: Where) -> pd.DataFrame | Verdict:
    """Pairs with `value` and `value_other`, or why there are none."""
    mine, theirs = (_values(runs, metric, where) for where in (ours, others))
    if mine is None or theirs is None:
        return Verdict("not tested: no such trials or reading")
    on = [c for c in PAIRED if c in mine and c not in {*ours, *others} and _shared(mine[c], theirs[c])]
    if not on or len(both := mine.merge(theirs, on=on, suffixes=("", "_other"))) < 2:
        return Verdict("not tested: fewer than two pairs")
    if both.duplicated(on).any():
        return Verdict("not tested: several trials go with one")
    return both


def _shared(mine: pd.Series, theirs: pd.Series) -> bool:
    """Whether pairs can be told by it: it varies on a side, and both sides have some value of it."""
    return max(mine.nunique(), theirs.nunique()) > 1 and bool(set(mine.dropna()) & set(theirs.dropna()))


def main(argv: Sequence[str]) -> None:
    """Print the table, write the files and say where."""
    from raydiff.report.papers.claims_made import of

    sweep, out = load.arguments(__doc__, argv)
    runs = load.runs(sweep)
    table = judged(runs, of(runs))
    if table.empty:
        raise ValueError(f"{sweep} has no finished trial of a method that a paper's claims are about")
    out.mkdir(parents=True, exist_ok=True)
    table.to_csv(out / "claims.csv", index=False)
    (out / "claims.md").write_text(text(table) + "\n")
    print(f"{text(table)}\n\n{out}")
