"""SPIRE and its comparison on MNIST at 14x14, with one way to train each federation.

    RAYDIFF_DATA=path/to/data python federation.py FOLDER WAY METHOD SEED [--split validation]

`spire-mnist14`, ten unseen clients and the first ten of its thirty clients measured, all of 2,000 local steps a client:

- mean5: 400 rounds of 5 steps of AdamW, whose moments are averaged too;
- adam1: 2,000 rounds of one plain gradient, rate 1, with which clients also train what they keep; Adam at the server,
  rate 0.002;
- half: local training at half of the chosen rate (with the other ways at that).

Nothing is stored between rounds, so that a trial takes minutes. Writes FOLDER/WAY-METHOD-SEED.json: distances of the
federation's clients and of those that join, for SPIRE with one embedding and with three; and of its clients where each
fits a fresh embedding to the last backbone, as those do that join. `python federation.py FOLDER` writes this folder's
federation.csv of all of them, and prints the table.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import raydiff as rd
from raydiff.experiment import overrides, trial
from raydiff.experiment.config import Experiment
from raydiff.federated.rounds import LocalExecutor, run_rounds
from raydiff.formats.intervals import format_interval, student
from raydiff.formats.metric_records import columns

HERE = Path(__file__).parent
MEASURED = 10  # clients of each kind
WAYS: dict[str, dict[str, Any]] = {
    "mean5": {
        "method.rounds": 400,
        "method.local.optimizer": "adamw",
        "method.local.learning_rate": 0.002,
        "method.averaging.moments": "averaged",
        "method.averaging.update": "mean",
        "method.averaging.rate": 1.0,
        "method.averaging.tau": 1e-3,
    },
    "adam1": {
        "method.rounds": 2000,
        "method.local.optimizer": "sgd",
        "method.local.learning_rate": 1.0,
        "method.averaging.moments": "reset",
        "method.averaging.update": "adam",
        "method.averaging.rate": 0.002,
        "method.averaging.tau": 1e-8,
    },
    "half": {"method.local.learning_rate": 1e-3},
}
METRICS = {"kd_cnn/all": "distance", "memorized_fraction": "copies"}


def experiment(way: str, method: str, seed: int) -> Experiment:
    """The preset's arm of this method, trained in this way."""
    study = rd.preset("spire-mnist14")
    arms = (study.experiment, *(arm.apply(study.experiment) for arm in study.beside))
    base = next(e for e in arms if type(e.method).__name__.lower() == method)
    fewer = {"unseen.clients": MEASURED, "evaluation.samplers": False, "numerics.vectorize": True, "seed": seed}
    changes = WAYS[way] if method != "localonly" or way == "half" else {}
    return overrides.override(base, {**changes, **fewer})


def one(out: Path, way: str, method: str, seed: int, split: str) -> None:
    """Train, measure, write."""
    begun = time.monotonic()
    e = experiment(way, method, seed)
    with tempfile.TemporaryDirectory() as folder:
        this = trial.open_trial(e, Path(folder))
        e = this.experiment
        trial.compute(e)
        clients = trial.make_clients(this, e.everyone)
        for client in clients:
            client.store = None
        own, late = clients[: e.clients], clients[e.clients :]
        for progress in run_rounds(e.method, LocalExecutor(own), keys=this.keys):
            server = progress.sent
            if progress.number % 100 == 99:
                print(f"round {progress.number + 1}: {time.monotonic() - begun:.0f} s", flush=True)
        trained = time.monotonic() - begun
        instruments = trial.make_instruments(this)
        assert instruments is not None
        read, row = instruments.of_client(split), {"way": way, "method": method, "seed": seed, "split": split}
        anew = [replace(client, unseen=True) for client in own[:MEASURED]] if method == "spire" else []
        for group, found in (("own", own[:MEASURED]), ("new", late), *((("own, fitted anew", anew),) if anew else ())):
            for embeddings in (1, 3) if method == "spire" and group == "new" else (1,):
                for client in found if embeddings > 1 else ():
                    client.method = overrides.override(e.method, {"embeddings": embeddings})
                evaluated = [client.evaluate(server, e.method.rounds - 1, read) for client in found]
                reports = [columns(report.metrics) for report in evaluated]
                name = f"{group}, 3 embeddings" if embeddings > 1 else group
                kept = {short: long for long, short in METRICS.items() if long in reports[0]}
                row |= {f"{name}/{k}": sum(r[long] for r in reports) / len(reports) for k, long in kept.items()}
    row |= {"training_s": trained, "seconds": time.monotonic() - begun}
    (out / f"{way}-{method}-{seed}-{split}.json").write_text(json.dumps(row))
    print(row, flush=True)


def table(rows: Sequence[dict[str, Any]]) -> None:
    """Means over the seeds of the test split, and paired differences to SPIRE's with three embeddings."""
    found = {(r["way"], r["method"], r["seed"]): r for r in rows if r["split"] == "test"}
    for way, method in sorted({(way, method) for way, method, _ in found}):
        mine = {seed: row for (w, m, seed), row in found.items() if (w, m) == (way, method)}
        spire = {seed: row for (w, m, seed), row in found.items() if (w, m) == ("adam1", "spire")}
        for group in ("own", "new", "new, 3 embeddings"):
            values = {seed: row[f"{group}/distance"] for seed, row in mine.items() if f"{group}/distance" in row}
            if not values:
                continue
            best = {
                s: row["own/distance" if group == "own" else "new, 3 embeddings/distance"] for s, row in spire.items()
            }
            paired = [best[seed] - values[seed] for seed in sorted(values) if seed in best]
            copies = [mine[seed].get(f"{group}/copies", float("nan")) for seed in values]
            difference = format_interval(*student(paired), form="+.3f")
            print(
                f"{way} {method} {group}: {sum(values.values()) / len(values):.3f} over {len(values)} seeds; "
                f"SPIRE - it {difference}; copies {sum(copies) / len(copies):.3f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("way", nargs="?", choices=WAYS)
    parser.add_argument("method", nargs="?", choices=("spire", "fedavg", "sharedrep", "perfedavg", "localonly"))
    parser.add_argument("seed", nargs="?", type=int)
    parser.add_argument("--split", default="test", choices=("test", "validation"))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.way:
        return one(given.folder, given.way, given.method, given.seed, given.split)
    rows = [json.loads(path.read_text()) for path in sorted(given.folder.glob("*.json"))]
    names = list(dict.fromkeys(name for row in rows for name in row))
    with (HERE / "federation.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return table(rows)


if __name__ == "__main__":
    main()
