"""Lines of `raydiff bench overhead`: plain torch, `LocalPool`, plain processes and `RayPool` do the same work.

Each way is an iterator that yields the server's weights after every round. Its first round is not timed: processes are
warm and clients hosted by then. The ways are interleaved, and the best repetition of each counts. Compare ratios of one
run only.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydiff import tree
from raydiff.cli.bench.plain import floor, plain_processes, two_processes
from raydiff.cli.bench.work import Case, in_process, memory, on_ray, per_round, ray_workers
from raydiff.experiment.trial import Trial
from raydiff.federated.rounds import rounds
from raydiff.models.networks import MLP
from raydiff.tree import Params

AGREEMENT = 1e-4  # of the weights after one round: the ways add floats in different orders

Way = Callable[[Trial], Iterator[Params]]

CASES = (
    Case(clients=8, steps=10),
    Case(clients=32, steps=1),
    Case(clients=8, steps=1, network=MLP(width=248, depth=2)),
    Case(clients=8, steps=0, network=MLP(width=768, depth=4)),
)


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How long to measure."""

    cases: Sequence[Case] = CASES
    repetitions: int = 5
    seconds: float = 2.0
    """Least duration of one timing."""


QUICK = Effort(cases=(Case(clients=4, steps=1, network=MLP(width=16, depth=1)),), repetitions=1, seconds=0.01)


def lines(effort: Effort) -> Iterator[tuple[str, dict[str, Any]]]:
    """Start of a fresh process, every case, change of trial in warm workers, memory: what each line is about, and its
    fields."""
    yield "start", start()
    with (
        tempfile.TemporaryDirectory(prefix="raydiff-bench-") as folder,
        ray_workers() as workers,
        plain_processes() as pipes,
    ):
        ways: dict[str, Way] = {
            "floor": floor,
            "local": in_process,
            "ray": lambda trial: on_ray(trial, workers),
            "ray_stored": lambda trial: on_ray(trial, workers, stored=True),
            "two_processes": lambda trial: two_processes(trial, pipes),
        }
        for number, case in enumerate(effort.cases):
            yield "overhead", compare(case, ways, effort, Path(folder) / f"case-{number}")
        yield "switch", switch(workers, effort, Path(folder))
        yield "memory", {"after": "all cases", **memory(workers)}


def compare(case: Case, ways: dict[str, Way], effort: Effort, folder: Path) -> dict[str, Any]:
    """Seconds per round of every way, best of the repetitions, interleaved after one warm-up of each."""
    after_one = {name: next(way(case.trial(1, folder / f"{name}-first"))) for name, way in ways.items()}
    warm = min(per_round(way(case.trial(3, folder / f"{name}-warm"))) for name, way in ways.items())
    count = 1 + max(2, math.ceil(effort.seconds / warm))
    seconds: dict[str, float] = dict.fromkeys(ways, math.inf)
    for repetition in range(effort.repetitions):
        for name, way in ways.items():
            took = per_round(way(case.trial(count, folder / f"{name}-{repetition}")))
            seconds[name] = min(seconds[name], took)
    ratios = {
        "local_over_floor": seconds["local"] / seconds["floor"],
        "ray_over_two_processes": seconds["ray"] / seconds["two_processes"],
    }
    return {
        "clients": case.clients,
        "steps": case.steps,
        "parameters": sum(v.numel() for v in after_one["floor"].values()),
        "rounds": count - 1,
        "repetitions": effort.repetitions,
        **{f"{name}_s": s for name, s in seconds.items()},
        **ratios,
        "targets": case.targets,
        "met": {name: ratios[name] <= target for name, target in case.targets.items()},
        "agree": all(difference(w, after_one["floor"]) <= AGREEMENT for w in after_one.values()),
    }


def difference(a: Params, b: Params) -> float:
    """The largest between two sets of weights."""
    return max(float(v.abs().max()) for v in tree.sub(a, b).values())


def switch(workers: Sequence[Any], effort: Effort, folder: Path) -> dict[str, float]:
    """From one trial's end to the end of the next one's first round, in the same workers.

    `switch_s` is what hosting the next trial's clients takes of it.
    """
    from raydiff.runtime.actors import RayPool

    case, hosting, whole = Case(clients=8, steps=1), math.inf, math.inf
    steady = per_round(on_ray(case.trial(20, folder / "before"), workers))
    for repetition in range(effort.repetitions):
        started = time.perf_counter()
        trial = case.trial(2 + repetition, folder / f"after-{repetition}")  # other rounds: another trial
        before = time.perf_counter()
        pool = RayPool(workers, trial)
        hosting = min(hosting, time.perf_counter() - before)
        next(rounds(trial.experiment.method, pool, keys=trial.keys))
        whole = min(whole, time.perf_counter() - started)
    return {"switch_s": hosting, "to_end_of_first_round_s": whole, "steady_round_s": steady}


def start() -> dict[str, Any]:
    """Seconds from the start of a fresh process to the end of its first round on Ray, and its memory then."""
    started = time.perf_counter()
    fresh = [sys.executable, "-m", "raydiff", "bench", "first-round"]
    with subprocess.Popen(fresh, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - started
    if process.returncode:
        raise OSError(f"the fresh process ended with code {process.returncode}")
    return {"to_end_of_first_round_s": seconds, **json.loads(line)}


def first_round() -> None:
    """A fresh Ray, fresh workers, one round; then prints the memory that it took."""
    with tempfile.TemporaryDirectory(prefix="raydiff-bench-") as folder, ray_workers() as workers:
        next(on_ray(Case(clients=8, steps=1).trial(1, Path(folder)), workers))
        print(json.dumps(memory(workers)), flush=True)
