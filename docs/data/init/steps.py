"""How many steps before a model copies its records? One client's model, by records and steps, on the validation split.

    RAYDIFF_DATA=path/to/data python docs/data/init/steps.py OUT.csv digits 200:625 200:1000      # records:steps
    RAYDIFF_DATA=path/to/data python docs/data/init/steps.py OUT.csv mnist 100:312 --size 14

Adds a row a pair: passes over the records, distance to validation pictures in noise floors, fraction of copied samples.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from pathlib import Path
from typing import Any

import raydiff as rd
from raydiff.data.datasets import Data
from raydiff.data.partition import Pooled
from raydiff.evaluation import sample_metrics
from raydiff.evaluation.quality.neighbours import memorized_fraction
from raydiff.experiment import trial
from raydiff.experiment.overrides import override
from raydiff.experiment.suggested import BATCH, SIZES
from raydiff.formats.metric_records import Metric
from raydiff.methods.localonly import LocalOnly
from raydiff.models.networks import MLP


def copied(drawn: sample_metrics.Drawn) -> list[Metric]:
    """The fraction of copied samples, also where nothing is final."""
    return [Metric(name="copied", value=memorized_fraction(drawn.images, drawn.client_records.images))]


copied.lower_is_better = True  # type: ignore[attr-defined]


def measured(name: str, size: int | None, records: int, steps: int) -> dict[str, Any]:
    """A row."""
    public = 400 if name == "digits" else 1000
    data = Data(name=name, size=size, train=records, public=public, validation=500, calibration=1, test=1)
    pixels = (size or (8 if name == "digits" else 28)) ** 2 * (3 if name == "cifar10" else 1)
    width, rate = next((width, rate) for most, width, _, rate in SIZES if pixels <= most)
    changes = {"method": LocalOnly, "clients": 1, "partition": Pooled, "data": data, "evaluation.split": "validation"}
    changes |= {"method.model.network": MLP(width=width, skip=True), "method.model.schedule": "cosine"}
    changes |= {"method.local.steps": steps, "method.local.learning_rate": rate, "evaluation.attacks": None}
    changes |= {"evaluation.metrics": ("all", f"{__name__}:copied"), "runtime.pool": "local"}
    with tempfile.TemporaryDirectory() as folder:
        this = trial.open_trial(override(rd.preset("digits").experiment, changes), Path(folder) / "s")
        *_, final = trial.run_trial(this, trial.local_executor(this))
    floors = final["eval/fd_cnn/all"] / final["eval/fd_cnn/all_floor"]
    passes = steps * BATCH / records
    row = {"data": f"{name} {pixels} values", "records": records, "steps": steps, "passes": passes}
    return row | {"floors": floors, "copied": final["eval/copied"]}


def main() -> None:
    """Measure every pair."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("name")
    parser.add_argument("pairs", nargs="+")
    parser.add_argument("--size", type=int)
    arguments = parser.parse_args()
    for pair in arguments.pairs:
        row = measured(arguments.name, arguments.size, *map(int, pair.split(":")))
        fresh = not arguments.out.exists()
        with arguments.out.open("a", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(row))
            if fresh:
                writer.writeheader()
            writer.writerow(row)


if __name__ == "__main__":
    main()
