"""What is it that fails in SPIRE's federation on MNIST at 14x14: the embeddings, or the way in which it is optimised?

    RAYDIFF_DATA=path/to/data python optimiser.py FOLDER WAY METHOD SEED [--split validation]

`spire-mnist14`, trained in one of these ways, all of 2,000 local steps a client:

- every5: AdamW at the clients, begun anew in each round; the mean of 5 steps in each of 400 rounds (the preset's);
- every1: the same after every step, in 2,000 rounds;
- adam:   plain gradients at the clients, rate 1, with which they train their embeddings; Adam at the server, rate
  0.002: 2,000 rounds;
- central: no federation: all records in one place, batches of 600, AdamW; the clients' numbers are a condition (SPIRE
  alone).

Nothing is stored between rounds, so that a trial takes minutes. Writes FOLDER/WAY-METHOD-SEED.json: distances of the
federation's clients and of those that join, for SPIRE with one embedding and with three. `python optimiser.py FOLDER
--sweep SWEEP` writes this folder's optimiser.csv of all of them and of a sweep of the preset.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import raydiff as rd
from raydiff.experiment import overrides, trial
from raydiff.experiment.config import Experiment
from raydiff.federated.client import Client
from raydiff.federated.rounds import LocalExecutor, rounds
from raydiff.models.networks import CLIENT, table
from raydiff.models.training import Training, fit
from raydiff.seeding import generator

HERE = Path(__file__).parent
STEPS = 2000
WAYS: dict[str, dict[str, Any]] = {
    "central": {},
    "every5": {},
    "every1": {"method.rounds": STEPS},
    "adam": {
        "method.rounds": STEPS,
        "method.local.optimizer": "sgd",
        "method.local.learning_rate": 1.0,
        "method.averaging.update": "adam",
        "method.averaging.rate": 0.002,
        "method.averaging.tau": 1e-8,
    },
}
METRICS = ("kd_cnn/all", "own_classes", "ancestral/kd_cnn/all")
DISTANCE = "kd_cnn/all"
RECIPE = {"method.model.prediction": "epsilon", "method.model.levels": "uniform"}  # with which optimiser.csv was made


def experiment(way: str, method: str, seed: int) -> Experiment:
    """The preset's arm of this method, trained in this way."""
    study = rd.preset("spire-mnist14")
    arms = (study.experiment, *(arm.apply(study.experiment) for arm in study.beside))
    base = next(e for e in arms if type(e.method).__name__.lower() == method)
    return overrides.override(base, {**RECIPE, **WAYS[way], "seed": seed, "numerics.vectorize": True})


def centrally(e: Experiment, own: Sequence[Client]) -> Any:
    """A backbone and an embedding of each client, which it gets as if it had come to it in the last round."""
    method: Any = e.method
    images = torch.cat([client.data.images for client in own])
    whose = torch.arange(len(own)).repeat_interleave(torch.tensor([len(client.data) for client in own]))[:, None]
    model, rng = replace(method.model, labels=(len(own),), conditional=True), generator(e.seed, "central")
    start = model.init(rng)
    start[table(0)] = method.embedding_std * torch.randn(start[table(0)].shape, generator=rng)
    training = Training(steps=STEPS, batch=600, learning_rate=0.002, decay="cosine")
    found = dict(fit(model, start, images, whose, training=training, rng=rng)[0])
    for client, embedding in zip(own, found.pop(table(0)), strict=True):
        client._keep(method.rounds - 1, {CLIENT: embedding})
    return found


def mean(reports: Sequence[dict[str, float]], metric: str) -> float:
    return sum(report[metric] for report in reports) / len(reports)


def one(out: Path, way: str, method: str, seed: int, split: str) -> None:
    """Train, measure, write."""
    begun = time.monotonic()
    e = experiment(way, method, seed)
    with tempfile.TemporaryDirectory() as folder:
        e = trial.resolve(e, bytes(32), Path(folder))
        this = trial.open_trial(e, Path(folder))
        clients = trial.make_clients(this, e.everyone)
        for client in clients:
            client.store = None
        own, late = clients[: e.clients], clients[e.clients :]
        if way == "central":
            server = centrally(e, own)
        else:
            for progress in rounds(e.method, LocalExecutor(own), keys=this.keys):
                server = progress.sent
                if progress.number % 100 == 99:
                    print(f"round {progress.number + 1}: {time.monotonic() - begun:.0f} s", flush=True)
        instruments = trial.make_instruments(this)
        assert instruments is not None
        read, row = instruments.of_client(split), {"way": way, "method": method, "seed": seed, "split": split}
        for group, found in (("clients", own), ("newcomers", late)):
            for embeddings in (1, 3) if method == "spire" and group == "newcomers" else (1,):
                for client in found if embeddings > 1 else ():
                    client.method = overrides.override(e.method, {"embeddings": embeddings})
                reports = [client.evaluate(server, e.method.rounds - 1, read).metrics for client in found]
                name = f"{group}, 3 embeddings" if embeddings > 1 else group
                row |= {f"{name}/{metric}": mean(reports, metric) for metric in METRICS}
    row["seconds"] = time.monotonic() - begun
    (out / f"{way}-{method}-{seed}.json").write_text(json.dumps(row))


def of_sweep(sweep: Path) -> Iterator[dict[str, Any]]:
    """The rows of the preset's own trials."""
    by_key: dict[tuple[str, int], dict[str, Any]] = {}
    for run in rd.open(sweep).trials:
        method, seed = type(run.experiment.method).__name__.lower(), run.experiment.seed
        row = by_key.setdefault((method, seed), {"way": "every5", "method": method, "seed": seed, "split": "test"})
        three = getattr(run.experiment.method, "embeddings", 1) > 1
        for metric in METRICS:
            row[f"clients/{metric}"] = run.metrics[f"eval/{metric}"]
            row[f"newcomers{', 3 embeddings' * three}/{metric}"] = run.metrics[f"new/{metric}"]
    yield from (by_key[key] for key in sorted(by_key))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("way", nargs="?", choices=WAYS)
    parser.add_argument("method", nargs="?", choices=("spire", "fedavg", "sharedrep", "perfedavg"))
    parser.add_argument("seed", nargs="?", type=int)
    parser.add_argument("--sweep", type=Path)
    parser.add_argument("--split", default="test", choices=("test", "validation"))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.way:
        return one(given.folder, given.way, given.method, given.seed, given.split)
    rows = [json.loads(path.read_text()) for path in sorted(given.folder.glob("*.json"))]
    rows += of_sweep(given.sweep) if given.sweep else ()
    names = list(dict.fromkeys(name for row in rows for name in row))
    with (HERE / "optimiser.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
