"""How many local epochs an unseen client takes (SPIRE's Figure 4), on the digits sweep.

    python docs/data/newcomers-epochs/epochs.py SWEEP      # of `raydiff sweep spire-digits`; writes epochs.csv, prints

For each seed of the sweep and each method a client of 50 records of three classes joins by `raydiff personalize`, at
the method's constant rate: the distance of its samples to held-out records after each number of epochs.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pandas as pd

from raydiff.cli import personalize
from raydiff.formats.intervals import shown, student
from raydiff.report import load

TABLE = Path(__file__).with_name("epochs.csv")
METHODS = {"FedAvg": "FedAvg + fine-tuning", "SharedRep": "shared representation", "SPIRE": "SPIRE"}
CLASSES = ("0,1,2", "3,4,5", "6,7,8", "9,0,3", "1,4,7")  # of the client, by seed
EPOCHS = (1, 3, 10, 30, 100, 300)


def main(sweep: str) -> None:
    """Join, collect, print mean and interval over seeds."""
    folder = Path(sweep).expanduser()
    runs = load.finished(load.runs(folder))
    rows = []
    for _, run in runs[runs["method"].isin(METHODS)].iterrows():
        name, seed = METHODS[run["method"]], int(run["seed"])
        name += ", 3 embeddings" if run.get("method.embeddings") == 3 else ""
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch) / "out"
            given = {"classes": CLASSES[seed], "records": 50, "epochs": ",".join(map(str, EPOCHS)), "seed": seed}
            options = [text for field, value in given.items() for text in (f"--{field}", str(value))]
            personalize.main([str(folder / "trials" / run["digest"]), *options, "--out", str(out), "--no-mlflow"])
            curve = pd.read_csv(out / "curves.csv").to_dict("records")
        rows += [{"method": name, "seed": seed, **row} for row in curve]
    table = pd.DataFrame(rows).sort_values(["method", "seed", "epoch"])
    table.to_csv(TABLE, index=False, lineterminator="\n")
    for (method, epoch), cell in table.groupby(["method", "epoch"]):
        print(f"{method}, {epoch:.0f} epochs: {shown(*student(list(cell['kd_cnn'])), form='.3f')}")


if __name__ == "__main__":
    main(*sys.argv[1:])
