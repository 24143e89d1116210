"""Does a sweep show what a paper claims? One row per claim: reproduced, not reproduced, or why it was not tested.

    raydiff claims SWEEP [SWEEP ...] [--out DIR]      of `raydiff sweep reproduce`: prints, writes claims.md and .csv
    raydiff claims claims.csv SWEEP ... --out DIR     what it wrote before and newer sweeps, on one page

The page begins with how many claims came out in which way. A sweep of a preset that is in a file too takes its place.
Every claim, with the paper's numbers, is a row of claims.tsv, apart from any result. A difference is paired (by
seed, split and what else the two sides share), with its 95 % Student interval:

- reproduced: the interval lies on the side that is claimed;
- not reproduced: it lies on the other side, or holds 0 and is narrow enough to have shown the paper's own gain;
- not tested at this scale: it holds 0, and its half-width is above the paper's own gain (relative to the other side);
- not tested: data, settings or readings that the sweep has not.

The papers. PFDM: Patel et al., CVPR 2026 (arXiv 2504.00952). SPIRE: Ozkara et al. (arXiv 2506.12303). FedDistr: Zhao et
al. (arXiv 2410.12530), its figures' numbers read off. pDP of discrete diffusion: Wei et al., TMLR 2024 (arXiv
2310.15524). DPDM: Dockhorn et al., TMLR 2023. The columns of claims.tsv, in which `-` is empty:

    about           the class of a method or model that has to have run
    data            the data sets that the row is about: names, or `not` and names; in texts, {data} is the data's name
    needs           the column that must vary among the trials
    claim, source, paper, differs    in words: what is said, where, the paper's numbers, what is not as in the paper
    judged          lower, higher, same (as the others); is X, at most X; or why it is not tested
    metric, ours, others             what is compared, in which trials: `column=value ...`, without a value: empty
    margin          lower and higher: the paper's gain, relative to the others; same: the greatest difference;
                    is and at most: the half-width of an interval that can still tell

published.tsv has numbers that the papers print, or others who measured the same: source, data, method and measure in
their words, the value as it is printed, and what may stand beside it: the metric `ours` of trials of this preset and
config (`column=value ...`), with what differs. A number whose data we do not have under the paper's name is not there,
nor are those of FedDistr's Table 2, which `feddistr` has: a look-alike's number never stands beside it.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from raydiff.formats.intervals import shown, student
from raydiff.formats.tables import Table, publish, strong
from raydiff.report import load
from raydiff.report.load import Row
from raydiff.report.sweep_view import open_sweep

REPRODUCED, NOT, SCALE = "reproduced", "not reproduced", "not tested at this scale"
NO_TRIALS = "not tested: no such trials or reading"
UNTESTED = "no data or trials"
COLUMNS = ("claim", "source", "paper", "ours", "n", "outcome", "differs", "sweep", "made")
"""Of claims.csv: `made` is the sweep's `origin`."""
PAIRED = ("seed", "data.split_seed", "data.name", "data.train", "partition.xi", "clients", "method.model.steps")
Where = dict[str, Any]
"""Column -> value, or None where it must be empty."""


class Verdict(NamedTuple):
    """What came out of a claim."""

    outcome: str
    """reproduced, not reproduced, not tested ..."""
    ours: str = ""
    """Our numbers."""
    n: int = 0
    """Pairs or trials behind them."""


def rows_of(name: str) -> list[dict[str, str]]:
    """The rows of a table of data beside this file, with nothing for `-`."""
    path = Path(__file__).parent / f"{name}.tsv"
    rows = csv.DictReader(path.read_text().splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    return [{k: "" if v == "-" else v for k, v in row.items()} for row in rows]


def where(text: str) -> Where:
    """`method=PFDM method.epsilon=10 data.size=` as {"method": "PFDM", "method.epsilon": 10.0, "data.size": None}."""

    def value(word: str) -> float | str | None:
        try:
            return float(word)
        except ValueError:
            return word or None

    return {path: value(word) for path, _, word in (pair.partition("=") for pair in text.split())}


def claims_of(runs: pd.DataFrame) -> Iterator[Row]:
    """The claims of the papers whose methods the runs have, for each data set there is."""
    for data in sorted(set(runs.get("data.name", ()))):
        there = runs[runs["data.name"] == data]
        own = {*there["method"], *there.get("method.model", ())}
        for row in rows_of("claims"):
            negated, *names = row["data"].split() if row["data"].startswith("not ") else ("", *row["data"].split())
            right = not row["data"] or (data in names) != bool(negated)
            varies = not row["needs"] or (row["needs"] in there and there[row["needs"]].nunique() > 1)
            if row["about"] in own and right and varies:
                sides = {side: {"data.name": data, **where(row[side])} for side in ("ours", "others")}
                yield {k: v.replace("{data}", data) for k, v in row.items()} | sides


def judged(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per claim: claim, source, paper, ours, n, outcome, differs."""
    done, rows = load.finished(runs), []
    for claim in claims_of(runs):
        margin = float(Fraction(claim["margin"] or 0))
        found = verdict(done, claim["judged"], claim["metric"], claim["ours"], claim["others"], margin)
        words = {k: claim[k] for k in ("claim", "source", "paper")}
        rows.append({**words, "ours": found.ours, "n": found.n, "outcome": found.outcome, "differs": claim["differs"]})
    return pd.DataFrame(rows)


def shown_table(table: pd.DataFrame) -> Table:
    """The verdicts for people."""
    header = ["claim", "source", "the paper's", "ours [95 % interval], n", "outcome", "what differs"]
    lines = []
    for row in table.to_dict("records"):
        ours = f"{row['ours']}, {row['n']}" if row["n"] else ""
        lines.append([row["claim"], row["source"], row["paper"], ours, strong(row["outcome"]), row["differs"]])
    return Table(header, lines)


# --------------------------------------------------------------------------------------------------------- verdicts


def verdict(runs: pd.DataFrame, how: str, metric: str, ours: Where, others: Where, margin: float) -> Verdict:
    """Of finished runs; `how` and `margin` as in claims.tsv."""
    if how.startswith("not tested"):
        return Verdict(how)
    if how not in ("lower", "higher", "same"):
        return _held(runs, how, metric, ours, margin)
    both = _pairs(runs, metric, ours, others)
    if isinstance(both, Verdict):
        return both
    mine, theirs = both["value"], both["value_other"]
    if math.inf in (mine.max(), theirs.max()) and how != "same":
        return Verdict(NOT, f"{mine.max():.3g} against {theirs.max():.3g} at most", len(both))  # and no mean
    mean, low, high = student(mine - theirs)
    scale = float(theirs.mean())
    if how == "same":
        outcome = REPRODUCED if -margin <= low and high <= margin else NOT if low > 0 or high < 0 else SCALE
    else:
        scale, (low_, high_) = abs(scale), (low, high) if how == "higher" else (-high, -low)
        wide = (high - low) / 2 > margin * scale
        outcome = REPRODUCED if low_ > 0 else NOT if high_ < 0 or not wide else SCALE
    means = f"{mine.mean():.3g} against {scale:.3g}"
    return Verdict(outcome, f"{means}: {shown(mean, low, high, '+.3g')}", len(both))


def _held(runs: pd.DataFrame, how: str, metric: str, ours: Where, margin: float) -> Verdict:
    """Whether the mean is a value, or at most that; an interval wider than the margin cannot tell."""
    found = values(runs, metric, ours)
    if found is None or len(found) < 2:
        return Verdict(NO_TRIALS)
    mean, low, high = student(found["value"])
    value = float(how.split()[-1])
    inside = high <= value if how.startswith("at most") else low <= value <= high
    outcome = (SCALE if (high - low) / 2 > margin else REPRODUCED) if inside else NOT
    return Verdict(outcome, shown(mean, low, high, ".3g"), len(found))


def values(runs: pd.DataFrame, metric: str, where: Where) -> pd.DataFrame | None:
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
    mine, theirs = (values(runs, metric, where) for where in (ours, others))
    if mine is None or theirs is None:
        return Verdict(NO_TRIALS)
    on = [c for c in PAIRED if c in mine and c not in {*ours, *others} and _shared(mine[c], theirs[c])]
    if not on or len(both := mine.merge(theirs, on=on, suffixes=("", "_other"))) < 2:
        return Verdict("not tested: fewer than two pairs")
    if both.duplicated(on).any():
        return Verdict("not tested: several trials go with one")
    return both


def _shared(mine: pd.Series, theirs: pd.Series) -> bool:
    """Whether pairs can be told by it: it varies on a side, and both sides have some value of it."""
    return max(mine.nunique(), theirs.nunique()) > 1 and bool(set(mine.dropna()) & set(theirs.dropna()))


def page(found: pd.DataFrame) -> str:
    """What came out in all, then a table for each sweep with where its numbers are from; `found` as in claims.csv."""
    kinds = (REPRODUCED, NOT, SCALE)
    by = pd.crosstab(found["sweep"], found["outcome"].map(lambda outcome: outcome if outcome in kinds else UNTESTED))
    counts = by.reindex(columns=[*kinds, UNTESTED], index=found["sweep"].unique(), fill_value=0)
    counts.loc["in all"] = counts.sum()
    lines = [[str(name), *map(str, row)] for name, row in zip(counts.index, counts.to_numpy(), strict=True)]
    parts = [Table(["claims of", *counts.columns], lines, title="In all")]
    for name, own in found.groupby("sweep", sort=False):
        parts.append(shown_table(own)._replace(title=str(name), note=own["made"].iloc[0]))
    return "\n\n".join(map(str, parts))


def _read(path: Path) -> pd.DataFrame:
    """The claims of a sweep, or those of a claims.csv. Raises ValueError where there are none."""
    if path.is_file():
        table = pd.read_csv(path, keep_default_na=False)
        if lacking := {*COLUMNS} - {*table}:
            raise ValueError(f"{path} is no claims.csv of `raydiff claims`: it has no {', '.join(sorted(lacking))}")
        return table
    sweep = open_sweep(path)
    table = judged(sweep.runs)
    if table.empty:
        raise ValueError(f"{sweep.name} has no finished trial of a method that a paper's claims are about")
    return table.assign(sweep=sweep.preset or sweep.name, made=sweep.origin)


def main(argv: Sequence[str]) -> None:
    """Print a table for each sweep and where its numbers come from, write the files and say where."""
    given = load.arguments(__doc__, argv, several=True)
    tables = {str(name): own for path in given.sweeps for name, own in _read(path).groupby("sweep", sort=False)}
    found = pd.concat(tables.values())
    publish(given.out, "claims", page(found), {"claims": found})
