"""Accuracy on DPImageBench's task by method, epsilon and number of clients, under local trust.

    python docs/data/referees/clients.py SWEEP [SWEEP ...]      # prints the table, and writes clients.csv

One row for each setting, with the mean and the number of seeds; `evaluation.per_class` samples of each digit trained
the classifier. `real` is the accuracy of the same classifier trained on the client's real records, where
evaluation.ceiling is on. Every client noises its own sum, so that M clients have M times the noise's variance. Under
central trust the noise is added once to the same sum, which is the row of 1 client.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from raydiff.report import load

TABLE = Path(__file__).with_name("clients.csv")
BY = [
    "method",
    "method.central.moment",
    "method.delta",
    "method.epsilon",
    "data.train",
    "evaluation.per_class",
    "clients",
]
LENET = "final/eval/downstream/lenet"


def main(sweeps: list[str]) -> None:
    """Average over seeds."""
    runs = pd.concat([load.finished(load.runs(Path(sweep))) for sweep in sweeps])
    read = {name: 100 * load.column(runs, f"{LENET}/{of}") for name, of in (("accuracy", "all"), ("real", "real"))}
    cells = runs.assign(**read).groupby([name for name in BY if name in runs], dropna=False)
    table = cells.agg(accuracy=("accuracy", "mean"), n=("accuracy", "count"), real=("real", "mean")).reset_index()
    table[["accuracy", "real"]] = table[["accuracy", "real"]].round(2)
    table.to_csv(TABLE, index=False, lineterminator="\n")
    print(table.to_string(index=False))


if __name__ == "__main__":
    main(sys.argv[1:])
