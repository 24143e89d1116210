"""Does a benchmark come out here as others have measured it? Sweeps of niid-bench and dpimagebench beside their tables.

    python -m analysis.referees SWEEP [SWEEP ...] [--out DIR]      prints, and writes referees.csv and .md

A row is a row of published.tsv that has finished trials: source, data, method, accuracy in % with its deviation; our
mean over seeds; and ours minus theirs in points with the 95 % Student interval, bold where it excludes 0. Where theirs
has rounds, trials of fewer rounds with as many local epochs in each (`--method.rounds 10 --method.local.epochs 100`)
have a row with their number of rounds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import pandas as pd

from analysis.claims import SweepsOptions, rows_of, values, where
from analysis.origin import origin_of
from raydiff.__main__ import leave
from raydiff.cli.options import parse_options
from raydiff.formats.intervals import format_interval, interval
from raydiff.formats.tables import Table, publish, shorten_value, span
from raydiff.report import load
from raydiff.report.load import Row
from raydiff.report.sweep_view import open_sweep

ROUNDS = "method.rounds"
EPOCHS = "method.local.epochs"


def beside(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each published cell that has finished trials; percent, and points for the difference."""
    done = load.finished(runs)
    rows = []
    for entry in rows_of("published"):
        for rounds, trials in _alike(done, entry):
            theirs = float(entry["value"].split()[0])
            ours = 100 * trials["value"]
            row: Row = {k: entry[k] for k in ("source", "data", "method")}
            row |= {"rounds": rounds, "printed": entry["value"], "theirs": theirs, "ours": ours.mean(), "n": len(ours)}
            rows.append({**row, **interval(ours - theirs, "difference"), "differs": entry["differs"]})
    return pd.DataFrame(rows).astype({"rounds": "Int64"} if rows else {})


def _alike(done: pd.DataFrame, entry: dict[str, str]) -> Iterator[tuple[int | None, pd.DataFrame]]:
    """(rounds, trials) of a published cell with as many local epochs in each round; None where it has no rounds."""
    wanted = where(entry["config"])
    rounds = wanted.pop(ROUNDS, None)
    epochs = wanted.pop(EPOCHS, None)
    trials = values(done, entry["ours"], wanted)
    if trials is not None and rounds is None:
        yield None, trials
    elif trials is not None:
        same = trials[trials[EPOCHS] * rounds == trials[ROUNDS] * epochs]
        yield from ((int(number), rows) for number, rows in same.groupby(ROUNDS))


def shown_table(rows: pd.DataFrame) -> Table:
    """The cells as a table, and below it what differs."""
    header = ["data", "method", "published by", "published", "our rounds", "ours", "ours - published"]
    lines = []
    for row in rows.to_dict("records"):
        difference = format_interval(row["difference"], row["low"], row["high"], "+.2f", bold=True)
        theirs = [row[name] for name in ("data", "method", "source", "printed")]
        lines.append([*theirs, shorten_value(row["rounds"]), f"{row['ours']:.2f}", difference])
    differs = load.group_rows(rows, ["source", "differs"], sort=False)
    notes = [f"{of['source']}, {' and '.join(cells['method'].unique())}: {of['differs']}." for of, cells in differs]
    first = f"Test accuracy, %; n = {span(rows['n'])} seeds of ours; ± as published."
    return Table(header, lines, note="\n\n".join([first, *notes]))


def main(argv: Sequence[str]) -> None:
    """Print the table and the sweeps' origins, and write the files."""
    folders, out = parse_options(SweepsOptions, argv, __doc__).find()
    sweeps = [open_sweep(folder) for folder in folders]
    rows = beside(pd.concat([sweep.runs for sweep in sweeps]))
    if rows.empty:
        raise ValueError(f"{', '.join(map(str, folders))}: no finished trial of a published cell")
    page = "\n\n".join([str(shown_table(rows)), *map(origin_of, sweeps)])
    publish(out, "referees", page, {"referees": rows})


if __name__ == "__main__":
    leave(main, sys.argv[1:])
