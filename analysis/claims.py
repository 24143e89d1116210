"""Does a sweep show what a paper claims? One row per claim: reproduced, not reproduced, or why it was not tested.

    python -m analysis.claims SWEEP [SWEEP ...] [--out DIR]      of presets in analysis/reproduce.py: claims.md and .csv
    python -m analysis.claims claims.csv SWEEP ... --out DIR     an earlier claims.csv and newer sweeps on one page; a
                                                                 sweep takes the place of one of the same preset

Every claim, with the paper's numbers, is a row of claims.tsv. A difference is paired (by seed, split and what else the
two sides share), with its 95 % Student interval:

- reproduced: the interval lies on the claimed side;
- not reproduced: it lies on the other side, or holds 0 and is narrow enough to have shown the paper's gain;
- not tested at this scale: it holds 0, and its half-width is above the paper's gain (relative to the other side);
- not tested: the sweep lacks the data, settings or readings.

Columns of claims.tsv, in which `-` is empty:

    about           class of a method or model that has to have run
    data            data sets of the row: names, or `not` and names; in texts, {data} is the data's name
    needs           column that must vary among the trials
    claim, source, paper, differs    the claim, where it stands, the paper's numbers, what differs here
    judged          lower, higher, same (as the others); is X, at most X; or why it is not tested
    metric, ours, others             what is compared, in which trials: `column=value ...`, without a value: empty;
                    where the features are Inception's, fid and kid take the place of a small CNN's fd_cnn and kd_cnn
    margin          lower and higher: the paper's gain, relative to the others; same: the greatest difference;
                    is and at most: the greatest half-width of an interval that decides

published.tsv has numbers that papers or others print: source, data, method, measure, value, and what may stand beside
it: the metric `ours` of trials of this preset and config, with what differs. It has no number whose data we lack.
"""

from __future__ import annotations

import csv
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from analysis.origin import origin_of, preset_of
from raydiff.__main__ import leave
from raydiff.cli.options import StorageOptions, parse_options, positional
from raydiff.formats.csv_files import read_csv
from raydiff.formats.intervals import excludes_zero, format_interval, student
from raydiff.formats.tables import Table, publish, strong
from raydiff.report import load
from raydiff.report.load import Row
from raydiff.report.sweep_view import open_sweep
from raydiff.runtime.sweep_folder import sweep_named

REPRODUCED = "reproduced"
NOT = "not reproduced"
SCALE = "not tested at this scale"
NO_TRIALS = "not tested: no such trials or reading"
UNTESTED = "no data or trials"
COLUMNS = ("claim", "source", "paper", "ours", "n", "outcome", "differs", "sweep", "made")
"""Of claims.csv: `made` is `origin.origin_of` of the sweep."""
PAIRED = ("seed", "data.split_seed", "data.name", "data.train", "partition.xi", "clients", "method.model.steps")
NOT_THEIRS = re.compile("; (Fréchet|kernel) distance of a small CNN's features, not (FID|KID)")
Where = dict[str, Any]  # column -> value, or None where it must be empty


class Verdict(NamedTuple):
    """The outcome of a claim, our numbers as text, and the number of pairs or trials behind them."""

    outcome: str
    ours: str = ""
    n: int = 0


def rows_of(name: str) -> list[dict[str, str]]:
    """The rows of claims.tsv or published.tsv, with `-` as empty text."""
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
    """The claims of the papers whose methods ran, for each data set."""
    for data in sorted(set(runs.get("data.name", ()))):
        on_data = runs[runs["data.name"] == data]
        classes = {*on_data["method"], *on_data.get("method.model", ())}
        for row in rows_of("claims"):
            names = row["data"].removeprefix("not ").split()
            right = not names or (data in names) != row["data"].startswith("not ")
            varies = not row["needs"] or (row["needs"] in on_data and on_data[row["needs"]].nunique() > 1)
            if row["about"] in classes and right and varies:
                sides = {side: {"data.name": data, **where(row[side])} for side in ("ours", "others")}
                if set(on_data.get("evaluation.features", ())) == {"inception"}:
                    row["metric"] = row["metric"].replace("fd_cnn", "fid").replace("kd_cnn", "kid")
                    row["differs"] = NOT_THEIRS.sub("", row["differs"])
                yield {k: v.replace("{data}", data) for k, v in row.items()} | sides


def judged(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per claim: claim, source, paper, differs, ours, n, outcome."""
    done = load.finished(runs)
    rows = []
    for claim in claims_of(runs):
        margin = float(Fraction(claim["margin"] or 0))
        result = verdict(done, claim["judged"], claim["metric"], claim["ours"], claim["others"], margin)
        rows.append({k: claim[k] for k in ("claim", "source", "paper", "differs")} | result._asdict())
    return pd.DataFrame(rows, columns=COLUMNS[:-2])


def shown_table(table: pd.DataFrame) -> Table:
    """The verdicts as a table."""
    header = ["claim", "source", "the paper's", "ours [95 % interval], n", "outcome", "what differs"]
    lines = []
    for row in table.to_dict("records"):
        ours = f"{row['ours']}, {row['n']}" if row["n"] else ""
        lines.append([row["claim"], row["source"], row["paper"], ours, strong(row["outcome"]), row["differs"]])
    return Table(header, lines)


def verdict(runs: pd.DataFrame, how: str, metric: str, ours: Where, others: Where, margin: float) -> Verdict:
    """Judge a claim by finished runs; `how` and `margin` as in claims.tsv."""
    if how.startswith("not tested"):
        return Verdict(how)
    if how not in ("lower", "higher", "same"):
        return _held(runs, how, metric, ours, margin)
    both = _pairs(runs, metric, ours, others)
    if isinstance(both, Verdict):
        return both
    mine = both["value"]
    theirs = both["value_other"]
    if math.inf in (mine.max(), theirs.max()) and how != "same":
        return Verdict(NOT, f"{mine.max():.3g} against {theirs.max():.3g} at most", len(both))  # There is no mean.
    mean, low, high = student(mine - theirs)
    text = f"{mine.mean():.3g} against {theirs.mean():.3g}: {format_interval(mean, low, high, '+.3g')}"
    if how == "same":
        outcome = REPRODUCED if -margin <= low and high <= margin else NOT if excludes_zero(low, high) else SCALE
        return Verdict(outcome, text, len(both))
    least, most = (low, high) if how == "higher" else (-high, -low)
    shows = (high - low) / 2 <= margin * abs(theirs.mean())
    return Verdict(REPRODUCED if least > 0 else NOT if most < 0 or shows else SCALE, text, len(both))


def _held(runs: pd.DataFrame, how: str, metric: str, ours: Where, margin: float) -> Verdict:
    """Whether the mean is a value, or at most that; an interval wider than the margin does not decide."""
    mine = values(runs, metric, ours)
    if mine is None or len(mine) < 2:
        return Verdict(NO_TRIALS)
    mean, low, high = student(mine["value"])
    value = float(how.split()[-1])
    inside = high <= value if how.startswith("at most") else low <= value <= high
    outcome = (SCALE if (high - low) / 2 > margin else REPRODUCED) if inside else NOT
    return Verdict(outcome, format_interval(mean, low, high, ".3g"), len(mine))


def values(runs: pd.DataFrame, metric: str, where: Where) -> pd.DataFrame | None:
    """The runs with these values in their columns, with the reading as `value`; None where there are none."""
    rows = runs.assign(value=load.column(runs, f"final/{metric}")).dropna(subset="value")
    for name, wanted in where.items():
        cells = rows.get(name, pd.Series(None, rows.index, dtype=object))
        rows = rows[cells.isna() if wanted is None else cells == wanted]
    return rows if len(rows) else None


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
    """Whether the column distinguishes pairs: it varies on a side, and both sides have a common value."""
    return max(mine.nunique(), theirs.nunique()) > 1 and bool(set(mine.dropna()) & set(theirs.dropna()))


def page(table: pd.DataFrame) -> str:
    """The counts of outcomes, then a table for each sweep with its origin; `table` as in claims.csv."""
    outcomes = (REPRODUCED, NOT, SCALE, UNTESTED)
    by = pd.crosstab(table["sweep"], table["outcome"].where(table["outcome"].isin(outcomes), UNTESTED))
    counts = by.reindex(columns=[*outcomes], index=table["sweep"].unique(), fill_value=0)
    counts.loc["in all"] = counts.sum()
    lines = [[str(name), *map(str, row)] for name, row in zip(counts.index, counts.to_numpy(), strict=True)]
    parts = [Table(["claims of", *outcomes], lines, title="In all")]
    for name, rows in table.groupby("sweep", sort=False):
        parts.append(shown_table(rows)._replace(title=str(name), note=rows["made"].iloc[0]))
    return "\n\n".join(map(str, parts))


def _read(path: Path) -> pd.DataFrame:
    """The claims of a sweep, or those of a claims.csv. Raises ValueError where there are none."""
    if path.is_file():
        table = read_csv(path, keep_default_na=False)
        if missing := {*COLUMNS} - {*table}:
            raise ValueError(f"{path} is no claims.csv of this program: it has no {', '.join(sorted(missing))}")
        return table
    sweep = open_sweep(path)
    table = judged(sweep.runs)
    if table.empty:
        raise ValueError(f"{sweep.name} has no finished trial of a method that a paper's claims are about")
    return table.assign(sweep=preset_of(sweep) or sweep.name, made=origin_of(sweep))


@dataclass(frozen=True, kw_only=True)
class SweepsOptions(StorageOptions):
    """Options of a program that reads several sweeps."""

    sweeps: tuple[str, ...] = positional()
    """Names of sweeps, or files of this program."""
    out: Path | None = None
    """Folder to write (default: report in the first sweep)."""

    def find(self) -> tuple[list[Path], Path]:
        """(the sweeps' folders or files, the folder to write). Raises ValueError where there is none."""
        files = [Path(name) for name in self.sweeps]
        found = [file if file.is_file() else sweep_named(str(file), self.storage) for file in files]
        return found, self.out or found[0] / "report"


def main(argv: Sequence[str]) -> None:
    """Print a table for each sweep and its origin, and write the files."""
    folders, out = parse_options(SweepsOptions, argv, __doc__).find()
    tables: dict[str, pd.DataFrame] = {}
    for path in folders:
        tables |= {str(name): rows for name, rows in _read(path).groupby("sweep", sort=False)}
    table = pd.concat(tables.values())
    publish(out, "claims", page(table), {"claims": table})


if __name__ == "__main__":
    leave(main, sys.argv[1:])
