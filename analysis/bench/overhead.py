"""`python -m analysis.bench overhead`: raydiff beside FedAvg in plain torch, on bare Ray and by other frameworks."""

from __future__ import annotations

import functools
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from analysis.bench.peers import run
from analysis.bench.plain_fedavg import Stacked, floor, plain_processes, two_actors, two_processes
from analysis.bench.ways import Fields, Lines, Way, Work, in_process, lockstep, memory, on_ray, per_round, ray_workers
from raydiff import tree
from raydiff.experiment.trial import Trial
from raydiff.federated.rounds import run_rounds
from raydiff.formats import plots, tables as cells
from raydiff.formats.tables import Table
from raydiff.models.networks import MLP
from raydiff.tree import Params

AGREEMENT = 1e-4  # of the weights after one round: the ways add floats in different orders
TINY = MLP(width=14, depth=1)
CASES = (
    Work(clients=8, steps=10, network=TINY),
    Work(clients=32, steps=1, network=TINY),
    Work(clients=8, steps=10),
    Work(clients=8, steps=1, network=MLP(width=248, depth=2)),
    Work(clients=8, steps=0, network=MLP(width=768, depth=4), aim=1.10),
)
PEER_ROUNDS = 20  # of another framework, at most: Flower takes a quarter of a second for each
SMALL = Work(clients=4, steps=1, network=MLP(width=16, depth=1))
WAYS = {
    "floor": "plain loop",
    "stacked": "plain loop, stacked",
    "fedjax": "fedjax",
    "local": "LocalExecutor",
    "local_lockstep": "LocalExecutor, lock-step",
    "two_processes": "two plain processes",
    "bare_ray": "bare Ray",
    "pfl": "pfl",
    "flower": "Flower",
    "ray": "RayExecutor",
    "ray_stored": "RayExecutor, rounds stored",
    "ray_lockstep": "RayExecutor, lock-step",
}
"""The first five are one process, the others two."""
RATIOS = {
    "local_over_floor": ("local", ("floor",)),
    "lockstep_over_stacked": ("local_lockstep", ("stacked",)),
    "lockstep_over_fedjax": ("local_lockstep", ("fedjax",)),
    "ray_over_two_processes": ("ray", ("two_processes",)),
    "ray_over_peer": ("ray", ("bare_ray", "pfl")),
    "ray_lockstep_over_peer": ("ray_lockstep", ("bare_ray", "pfl")),
}
"""name -> (way, those of whose fastest its seconds are a multiple)."""
Timed = Callable[[Trial, Path], float]
"""(trial, where its work is written) -> seconds per round."""


def overhead(quick: bool, peers: Path | None = None) -> Lines:
    """Start of a fresh process, every case, change of trial in warm workers, memory."""
    repetitions = 1 if quick else 3
    pythons = run.found(peers)
    yield "start", start()
    with (
        tempfile.TemporaryDirectory(prefix="raydiff-bench-") as folder,
        ray_workers() as workers,
        plain_processes() as pipes,
    ):
        ways: dict[str, Way] = {
            "floor": floor,
            "stacked": lambda trial: floor(trial, Stacked),
            "local": in_process,
            "local_lockstep": lambda trial: in_process(lockstep(trial)),
            "two_processes": lambda trial: two_processes(trial, pipes),
            "bare_ray": lambda trial: two_actors(trial, workers),
            "ray": lambda trial: on_ray(trial, workers),
            "ray_stored": lambda trial: on_ray(trial, workers, stored=True),
            "ray_lockstep": lambda trial: on_ray(lockstep(trial), workers),
        }
        others: dict[str, Timed] = {
            name: functools.partial(run.seconds, name, python) for name, python in pythons.items()
        }
        for number, case in enumerate((SMALL,) if quick else CASES):
            seconds = 0.01 if quick else 2.0
            yield "overhead", compare(case, ways, Path(folder) / f"{number}", others, repetitions, seconds)
        yield "switch", switch(workers, repetitions, Path(folder))
        yield "memory", {"after": "all cases", **memory(workers)}


def compare(
    case: Work, ways: dict[str, Way], folder: Path, peers: dict[str, Timed], repetitions: int, seconds: float
) -> Fields:
    """Seconds per round of every way, the best repetition; each lasts `seconds` at least, after one warm-up.

    A peer starts anew each time, and takes up to PEER_ROUNDS.
    """
    after_one = {name: next(way(case.trial(1, folder / f"{name}-first"))) for name, way in ways.items()}
    warm = {name: per_round(way(case.trial(3, folder / f"{name}-warm"))) for name, way in ways.items()}
    counts = {name: 1 + max(2, math.ceil(seconds / one)) for name, one in warm.items()}
    best: dict[str, float] = dict.fromkeys((*ways, *peers), math.inf)
    for repetition in range(repetitions):
        for name, way in ways.items():
            best[name] = min(best[name], per_round(way(case.trial(counts[name], folder / f"{name}-{repetition}"))))
        for name, peer in peers.items():
            trial = case.trial(min(counts["floor"], PEER_ROUNDS), folder / name)
            best[name] = min(best[name], peer(trial, folder / f"{name}.npz"))
    ratios = {
        name: best[way] / min(best[other] for other in of if other in best)
        for name, (way, of) in RATIOS.items()
        if way in best and any(other in best for other in of)
    }
    targets = {"ray_lockstep_over_peer": case.aim, "lockstep_over_stacked": 1.15}
    return {
        "clients": case.clients,
        "steps": case.steps,
        "parameters": sum(v.numel() for v in after_one["floor"].values()),
        "rounds": {name: count - 1 for name, count in counts.items()},
        "repetitions": repetitions,
        **{f"{name}_s": s for name, s in best.items()},
        **ratios,
        "targets": targets,
        "met": {name: ratios[name] <= target for name, target in targets.items() if name in ratios},
        "agree": all(difference(w, after_one["floor"]) <= AGREEMENT for w in after_one.values()),
    }


def difference(a: Params, b: Params) -> float:
    """The largest between two sets of weights."""
    return max(float(v.abs().max()) for v in tree.sub(a, b).values())


def switch(workers: Sequence[Any], repetitions: int, folder: Path) -> Fields:
    """From one trial's end to the end of the next one's first round, in the same workers.

    `switch_s` is what hosting the next trial's clients takes of it.
    """
    from raydiff.runtime.actors import RayExecutor

    case = Work(clients=8, steps=1)
    hosting = math.inf
    whole = math.inf
    steady = per_round(on_ray(case.trial(20, folder / "before"), workers))
    for repetition in range(repetitions):
        started = time.perf_counter()
        trial = case.trial(2 + repetition, folder / f"after-{repetition}")  # other rounds: another trial
        before = time.perf_counter()
        pool = RayExecutor(workers, trial)
        hosting = min(hosting, time.perf_counter() - before)
        next(run_rounds(trial.experiment.method, pool, keys=trial.keys))
        whole = min(whole, time.perf_counter() - started)
    return {"switch_s": hosting, "to_end_of_first_round_s": whole, "steady_round_s": steady}


def start() -> Fields:
    """Seconds from the start of a fresh process to the end of its first round on Ray, and its memory then."""
    started = time.perf_counter()
    fresh = [sys.executable, "-m", "analysis.bench", "first-round"]
    with subprocess.Popen(fresh, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("{"))  # Others say what it waits for.
        seconds = time.perf_counter() - started
    if process.returncode:
        raise OSError(f"the fresh process ended with code {process.returncode}")
    return {"to_end_of_first_round_s": seconds, **json.loads(line)}


def first_round() -> None:
    """A fresh Ray, fresh workers, one round; then prints the memory that it took."""
    with tempfile.TemporaryDirectory(prefix="raydiff-bench-") as folder, ray_workers() as workers:
        next(on_ray(Work(clients=8, steps=1).trial(1, Path(folder)), workers))
        print(json.dumps(memory(workers)), flush=True)


def table(cases: Sequence[Fields]) -> Table:
    """A row a case: seconds per round of every way, and their ratios."""
    ways = [way for way in WAYS if f"{way}_s" in cases[0]]
    ratios = [name for name in RATIOS if name in cases[0]]
    header = ["case", *(WAYS[way] for way in ways), *(name.replace("_", " ") for name in ratios)]
    rows = [
        [
            _case(found),
            *(cells.number(found[f"{way}_s"]) for way in ways),
            *(cells.number(found[name], 3) for name in ratios),
        ]
        for found in cases
    ]
    return Table(header, rows, note="Seconds per round, the best repetition; a peer is the faster of bare Ray and pfl.")


def draw(cases: Sequence[Fields], path: Path) -> None:
    """A panel a case: seconds per round of every way."""
    columns = min(2, len(cases))
    rows = math.ceil(len(cases) / columns)
    figure, panels = plots.panels(rows, columns, size=(3.6 * columns + 1.5, 3.4 * rows + 0.6))
    for axes in list(panels.flat)[len(cases) :]:
        axes.set_visible(False)
    for axes, found in zip(panels.flat, cases, strict=False):
        ways = [way for way in WAYS if f"{way}_s" in found]
        seconds = [found[f"{way}_s"] for way in ways]
        colours = [plots.COLOURS[0] if "Executor" in WAYS[way] else "0.7" for way in ways]
        bars = axes.barh([WAYS[way] for way in ways], seconds, color=colours)
        axes.bar_label(bars, [cells.number(value) for value in seconds], padding=3, fontsize=8)
        axes.margins(x=0.25)
        axes.invert_yaxis()
        axes.set_title(_case(found), fontsize=8)
        axes.set_xlabel("seconds per round", fontsize=8)
        axes.locator_params(axis="x", nbins=4)
        axes.tick_params(labelsize=8, labelleft=axes in panels[:, 0])
        axes.spines[["top", "right"]].set_visible(False)
    plots.save_figure(figure, path)


def _case(found: Fields) -> str:
    steps = f"{found['steps']} step{'s' if found['steps'] != 1 else ''}"
    return f"{found['clients']} clients x {steps}, {cells.size(4 * found['parameters'])}"
