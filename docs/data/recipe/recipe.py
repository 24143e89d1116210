"""Which recipe trains a denoiser of pictures best in the same time? All but the recipe is as in the presets.

    python recipe.py search OUT.csv     # digits, training alone, two seeds, validation records
    python recipe.py compare OUT.csv    # before and now: digits and MNIST at 14x14, alone and FedAvg, five seeds, test

The second writes OUT-paired.csv too: now minus before, with 95 % Student intervals over seeds. Every trial takes the
same steps; `cpu_s` is the process's CPU time, sampling and measuring included.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

import raydiff as rd
from raydiff.experiment.overrides import override
from raydiff.formats.intervals import interval

BEFORE = {"method.model.prediction": "v", "method.model.levels": "uniform"}
EDM = {"method.model.prediction": "edm", "method.model.levels": "uniform"}
RECIPES: dict[str, dict[str, Any]] = {
    "v, uniform": BEFORE,
    "v, lognormal": {"method.model.prediction": "v"},
    "v, uniform, min-SNR 5": {**BEFORE, "method.model.snr_cap": 5.0},
    "edm, uniform": EDM,
    "edm, uniform, min-SNR 5": {**EDM, "method.model.snr_cap": 5.0},
    "edm, lognormal": {},
    "edm, lognormal, sigma_data 0.7": {"method.model.sigma_data": 0.7},
    "edm, lognormal, average 0.1": {"method.local.ema": 0.1},
    "edm, lognormal, average 0.1, constant rate": {"method.local.ema": 0.1, "method.local.decay": "constant"},
}
DATA = {
    "digits": ("digits", {"data.validation": 400, "data.test": 100}, {"data.validation": 0, "data.test": 500}),
    "mnist14": ("mnist-cpu", {"data.test": 100}, {"data.validation": 0, "method.local.steps": 1000}),
}
"""Name -> (preset, changes of a search, changes of a comparison)."""


def experiments(what: str) -> Iterator[tuple[dict[str, Any], rd.Experiment]]:
    """(its row's first columns, the experiment)."""
    for data in ("digits",) if what == "search" else DATA:
        preset, *both = DATA[data]
        recipes = RECIPES if what == "search" else {"before": BEFORE, "now": {}}
        for method in (rd.LocalOnly,) if what == "search" else (rd.LocalOnly, rd.FedAvg):
            for name, changes in recipes.items():
                for seed in range(2 if what == "search" else 5):
                    start = override(rd.preset(preset).experiment, {"method": method, **both[what != "search"]})
                    row = {"data": data, "method": method.__name__, "recipe": name, "seed": seed}
                    yield row, override(start, {**changes, "seed": seed})


def measured(experiment: rd.Experiment, *, split: str) -> dict[str, float]:
    """Distances, and the CPU seconds of the run."""
    with tempfile.TemporaryDirectory() as folder:
        fixed = {"runtime.pool": "local", "runtime.storage": folder, "numerics.vectorize": True}
        quick = {"evaluation.attacks": None, "evaluation.samplers": False, "evaluation.split": split}
        before = time.process_time()
        run = rd.run(override(experiment, {**fixed, **quick}))
        names = {
            "distance_all": "eval/fd_cnn/all",
            "distance_minor": "eval/fd_cnn/minor",
            "floor": "eval/fd_cnn/all_floor",
        }
        return {k: run.all_metrics[v] for k, v in names.items()} | {"cpu_s": time.process_time() - before}


def main(what: str, out: str) -> None:
    """Run what is not in OUT.csv yet, and write it after each run."""
    rows = pd.read_csv(out).to_dict("records") if Path(out).exists() else []
    for row, experiment in experiments(what):
        if not any(all(done[k] == v for k, v in row.items()) for done in rows):
            split = "validation" if what == "search" else "test"
            rows.append({**row, **measured(experiment, split=split)})
            pd.DataFrame(rows).round(4).to_csv(out, index=False)
    if what == "compare":
        paired(pd.DataFrame(rows)).round(3).to_csv(out.replace(".csv", "-paired.csv"), index=False)


def paired(rows: pd.DataFrame) -> pd.DataFrame:
    """Means of both recipes, and their difference seed by seed, of each data set and method."""
    wide = rows.pivot_table(index=["data", "method", "seed"], columns="recipe")
    out = []
    for (data, method), own in wide.groupby(level=["data", "method"]):
        row = {"data": data, "method": method, "n": len(own)}
        for name in ("distance_all", "distance_minor", "cpu_s"):
            row |= {f"{name}_{recipe}": own[name, recipe].mean() for recipe in ("before", "now")}
            row |= interval(own[name, "now"] - own[name, "before"], f"{name}_difference", f"{name}_")
        out.append(row)
    return pd.DataFrame(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
