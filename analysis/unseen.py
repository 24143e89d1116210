"""How well does each method serve clients that join later? A sweep of a `spire-...` preset as a table.

    python -m analysis.unseen SWEEP [--sampler ddim] [--out DIR]     prints, and writes unseen.csv and .md

A row is a method: the kernel distance of its samples to real held-out records, mean over clients and seeds, for the
clients of the federation and for those that joined; the first method's distance minus its own (paired, with 95 %
Student interval, bold where it excludes 0); the fraction of samples that are copies of training records; and how many
parameters a new client trains. Samples are in the report.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from raydiff.__main__ import leave
from raydiff.cli.options import parse_options
from raydiff.cli.report import FinishedSweepOptions
from raydiff.formats.intervals import format_interval, interval
from raydiff.formats.tables import Table, publish, span
from raydiff.report import load
from raydiff.report.load import column
from raydiff.report.paired import pair_by_seed

GROUPS = {"eval": "clients", "unseen": "unseen"}
"""Split of a reading -> whose it is: clients of the federation, or unseen clients that join after it."""


def readings(runs: pd.DataFrame, sampler: str | None = None) -> pd.DataFrame:
    """One row per finished trial, from `load.runs`.

    Columns: digest, method, seed, clients and unseen, each with its noise floor and its copies (the fraction of samples
    that are near training records), then parameters, share (the fraction of all), seconds. `sampler` names the chain
    (ddim or ancestral); None: the configured one. Raises ValueError where nobody joined.
    """
    runs = load.finished(runs)
    name = f"{sampler}/kd_cnn/all" if sampler else "kd_cnn/all"
    if f"final/unseen/{name}" not in runs or not len(runs):
        raise ValueError("there are no finished trials that measured clients which joined later")
    out = runs[["digest", "method", "seed"]].assign(method=[_name(r) for r in runs.to_dict("records")])
    for split, group in GROUPS.items():
        out[group], out[f"{group}_floor"] = runs[f"final/{split}/{name}"], runs[f"final/{split}/kd_cnn/all_floor"]
        out[f"{group}_copies"] = column(runs, f"final/{split}/memorized_fraction")
    out["parameters"], out["share"] = (column(runs, f"final/unseen/parameters{end}") for end in ("", "_share"))
    return out.assign(seconds=runs["final/time/seconds"])


def _name(run: Mapping[Any, Any]) -> str:
    """The method, whether it fine-tunes, and with how many embeddings a client joins, where there are several."""
    if (run.get("method.embeddings") or 1) > 1:
        return f"{run['method']}, {run['method.embeddings']:.0f} embeddings"
    tuned = not pd.isna(run.get("method.finetune.steps"))
    return f"{run['method']} + fine-tuning" if tuned else str(run["method"])


def table(readings: pd.DataFrame, first: str) -> pd.DataFrame:
    """A row per method, `first` on top: n, means, and for each group the paired difference `first` - method."""
    mine = readings[readings["method"] == first]
    if mine.empty:
        methods = ", ".join(sorted(readings["method"].unique()))
        raise ValueError(f"there is no {first} in this sweep: it has {methods}")
    rows = []
    for method, theirs in readings.groupby("method", sort=False):
        row: dict[str, Any] = {"method": method, "n": len(theirs)}
        copies = [f"{group}_copies" for group in GROUPS.values()]
        row |= {c: theirs[c].mean() for c in (*GROUPS.values(), *copies, "parameters", "share", "seconds")}
        for group in GROUPS.values():
            gaps = pair_by_seed(mine, theirs, ["seed"], group)["difference"]
            row |= interval(gaps, f"{group}_gap", f"{group}_")
        rows.append(row)
    rows.sort(key=lambda row: (row["method"] != first, row["unseen"]))
    return pd.DataFrame(rows)


def shown_table(readings: pd.DataFrame, rows: pd.DataFrame) -> Table:
    """The table for people, and the noise floors below it."""
    first = rows["method"].iloc[0]
    lines = []
    for row in rows.to_dict("records"):
        cells = []
        for group in GROUPS.values():
            gap = format_interval(row[f"{group}_gap"], row[f"{group}_low"], row[f"{group}_high"], "+.3f", bold=True)
            cells += [f"{row[group]:.3f}", "" if row["method"] == first else gap, f"{row[f'{group}_copies']:.2%}"]
        trains = "all" if pd.isna(row["parameters"]) else f"{row['parameters']:,.0f} ({row['share']:.3%})"
        lines.append([row["method"], *cells, trains, f"{row['seconds']:.0f}"])
    floors = "; ".join(f"{group} {readings[f'{group}_floor'].mean():.3f}" for group in GROUPS.values())
    columns = [c for group in GROUPS.values() for c in (group, f"{first} - method", "copies")]
    header = ["method", *columns, "unseen client trains", "seconds"]
    return Table(header, lines, note=f"n = {span(rows['n'])} seeds; noise floors (real against real): {floors}")


@dataclass(frozen=True, kw_only=True)
class UnseenOptions(FinishedSweepOptions):
    sampler: Literal["ancestral", "ddim"] | None = None
    """The chain (default: the configured one)."""
    first: str = "SPIRE"
    """The method that the others are compared with."""


def main(argv: Sequence[str]) -> None:
    """Print the table and write the files."""
    options = parse_options(UnseenOptions, argv, __doc__)
    sweep, out = options.open()
    measured = readings(sweep.runs, options.sampler)
    rows = table(measured, options.first)
    publish(out, "unseen", str(shown_table(measured, rows)), {"unseen": rows})


if __name__ == "__main__":
    leave(main, sys.argv[1:])
