"""What NIID-Bench's accuracy is after each round, and of how many test records a model says each digit.

    RAYDIFF_DATA=path/to/data PYTHONPATH=. python docs/data/referees/rounds.py METHOD ROUNDS    # fedavg, say

The preset's trial of seed 0, one label a party, up to so many of its rounds: two minutes each on a slow core. Adds a
line for each round to this folder's rounds.csv, in place of those that the method had there.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from itertools import islice
from pathlib import Path

import torch

import raydiff as rd
from raydiff.data import datasets
from raydiff.data.partition import ByClass
from raydiff.experiment import overrides, trial
from raydiff.federated.rounds import LocalExecutor, run_rounds

TABLE = Path(__file__).with_name("rounds.csv")
FIELDS = ("method", "round", "accuracy", *(f"says {digit}" for digit in range(10)))


def main(method: str, count: int) -> None:
    """Train, and judge the server's model after each round."""
    study = rd.preset("analysis.referee_presets:niid_bench")
    arms = (study.experiment, *(arm.apply(study.experiment) for arm in study.beside))
    arm = next(e for e in arms if type(e.method).__name__.lower() == method)
    test = datasets.load_dataset(arm.data).splits["test"]
    rows = [row for row in csv.DictReader(TABLE.open()) if row["method"] != method] if TABLE.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        resolved = trial.resolve_on_data(overrides.override(arm, {"partition": ByClass()}), bytes(32), Path(folder))
        this = trial.open_trial(resolved, Path(folder))
        torch.set_num_threads(resolved.numerics.threads)
        clients = trial.make_clients(this, resolved.everyone)
        for client in clients:
            client.store = None
        for progress in islice(run_rounds(resolved.method, LocalExecutor(clients), keys=this.keys), count):
            said = resolved.method.deploy(progress.sent).classify(test.images).argmax(1)
            accuracy = 100 * (said == test.labels[:, 0]).double().mean().item()
            counts = torch.bincount(said, minlength=10).tolist()
            rows.append(dict(zip(FIELDS, (method, progress.number + 1, f"{accuracy:.2f}", *counts), strict=True)))
            print(*rows[-1].values(), flush=True)
            with TABLE.open("w", newline="") as file:
                writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(sorted(rows, key=lambda row: (row["method"], int(row["round"]))))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
