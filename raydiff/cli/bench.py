"""What does the orchestration cost, and what do more clients and larger models cost?

    raydiff bench overhead [--quick] [--plot FILE.png]   raydiff beside FedAvg in plain torch (`plain_fedavg`), minutes
    raydiff bench scale [--quick]      10,000 clients, 1,000 clients of 10 MB, 2,000 rounds, ten minutes or more
    raydiff bench first-round          one round on a fresh Ray: what `overhead` times from outside

JSON lines: the machine, then what was measured; `overhead` ends with its cases as a table, and draws them with --plot.
With --quick each is short, to see that it runs: no figure counts.

`overhead`: each way of doing the work is an iterator over the server's weights after every round. Its first round is
not timed, for processes are warm and clients hosted by its end. The ways are interleaved, and the best repetition of
each counts. Compare ratios of one run only.

`scale`: seconds per round are those of a whole trial, from its data to its outcome, over its rounds; each round is
committed. Lines `scale` are training of a tiny network. `packed` trains the first of them once more without Ray, one
client after the other, and compares the server's weights bit for bit. `size` are rounds without training, so that only
weights move: down to every client, up again, and to the disk. In lines `idle` some or all of 32 clients take part, and
`floor_s` is what a plain loop takes for them. `soak` is many short rounds: by how much a hundred more of them make the
driver grow. `coordinator` is its own part of a round alone, on messages that are there already.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from raydiff import tree
from raydiff.cli.parser import Parser
from raydiff.cli.plain_fedavg import PROCESSES, floor, plain_processes, two_actors, two_processes
from raydiff.data.datasets import Data
from raydiff.data.partition import Iid
from raydiff.data.source import Source
from raydiff.experiment import trial as trials
from raydiff.experiment.config import Experiment, Runtime
from raydiff.experiment.trial import Trial, make_clients
from raydiff.federated.client import Client
from raydiff.federated.method import Upload
from raydiff.federated.rounds import LocalPool, rounds
from raydiff.federated.sums import Desk, Partial
from raydiff.methods import FedAvg
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP
from raydiff.models.training import Training
from raydiff.privacy.release import disclose
from raydiff.report import cells, plots
from raydiff.report.cells import Table
from raydiff.tree import Params

Fields = dict[str, Any]
Lines = Iterator[tuple[str, Fields]]
Way = Callable[[Trial], Iterator[Params]]

AGREEMENT = 1e-4  # of the weights after one round: the ways add floats in different orders
TINY = MLP(width=64, depth=1)
SCALE_MB = 6144.0  # what the driver and the workers may hold with 10,000 clients
DRIVER_MB = 1536.0  # what the driver may hold with 1,000 clients of 10 MB
RECEIVED_MB = 100.0  # what it may receive in a round then
GROWTH_MB = 1.0  # what the driver may grow by in a hundred rounds
IDLE = 32  # clients that do not train
IDLE_SECONDS = 0.02  # what a round with them may take
RECORDS = 10_000  # of `scale`, so that so many clients have one each


@dataclass(frozen=True, kw_only=True)
class Work:
    """One amount of work: FedAvg on digits without instruments."""

    clients: int
    steps: int
    """Training steps of each client in each round."""
    network: MLP = MLP(width=128, depth=3)  # a quarter of the digits preset's: the smaller, the more overhead shows
    vectorize: bool = False
    """Train the clients of a worker in lock-step."""
    participants: int | None = None
    """How many take part in a round; None: all."""
    data: Data = Data(train=1500, public=100, validation=0, calibration=0, test=100)
    aim: float = 1.10
    """What RayPool may take, in times of two plain processes."""

    def trial(self, rounds: int, sweep: Path) -> Trial:
        """The trial; its noise secret is given, for no noise is drawn."""
        model = DDPM(network=self.network, timesteps=100)
        experiment = Experiment(
            method=FedAvg(model=model, rounds=rounds, local=Training(steps=self.steps * rounds)),
            data=self.data,
            clients=self.clients,
            participants=self.participants,
            partition=Iid(),
            evaluation=None,
            runtime=Runtime(workers=PROCESSES, threads=1, vectorize=self.vectorize, noise_secret="00" * 16),
        )
        return Trial(trials.resolve(experiment), sweep)


CASES = (
    Work(clients=8, steps=10),
    Work(clients=32, steps=1, aim=1.25),
    Work(clients=8, steps=1, network=MLP(width=248, depth=2)),
    Work(clients=8, steps=0, network=MLP(width=768, depth=4), aim=1.05),
)
SMALL = Work(clients=4, steps=1, network=MLP(width=16, depth=1))
SQUARES = Data(name="raydiff.cli.bench:squares", train=RECORDS, public=100, validation=0, calibration=0, test=100)
MB_10, MB_100 = MLP(width=380, depth=4), MLP(width=1216, depth=4)
WAYS = {
    "floor": "plain loop",
    "local": "LocalPool",
    "two_processes": "two plain processes",
    "bare_ray": "bare Ray",
    "ray": "RayPool",
    "ray_stored": "RayPool, rounds stored",
}


def squares(folder: Path | None, labels: Sequence[str]) -> Source:
    """A data set of noise, larger than those that are embedded."""
    pixels = np.random.default_rng(0).integers(0, 256, (RECORDS + 200, 8, 8), dtype=np.uint8)
    classes = torch.arange(len(pixels)) % 10
    names = (tuple(f"class {c}" for c in range(10)),)
    return Source(
        classes[:, None],
        ("class",),
        names,
        0,
        lambda rows: ((f"square {row}", Image.fromarray(pixels[row])) for row in rows.tolist()),
        "noise",
    )


def main(argv: Sequence[str]) -> int:
    """Run a measurement."""
    parser = Parser("bench", __doc__)
    parser.add_argument("what", choices=("overhead", "scale", "first-round"), help="what to measure")
    parser.add_argument("--quick", action="store_true", help="a short run, to see that it works")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the cases of overhead")
    given = parser.parse_args(argv)
    if given.plot and given.what != "overhead":
        raise ValueError(f"--plot draws overhead, and {given.what} has no picture")
    os.environ.pop("RAY_ADDRESS", None)  # the plain processes run on this machine, so Ray does too
    torch.set_num_threads(1)
    if given.what == "first-round":
        first_round()
        return 0
    say("machine", **machine())
    cases: list[Fields] = []
    for what, fields in overhead(given.quick) if given.what == "overhead" else scale(given.quick):
        say(what, **fields)
        cases += [fields] if what == "overhead" else []
    if cases:
        print(f"\n{table(cases)}")
    if given.plot:
        draw(cases, given.plot)
        print(f"\npicture: {given.plot}")
    return 0


def table(cases: Sequence[Fields]) -> Table:
    """Seconds per round of every way, and their ratios."""
    header = ["case", *WAYS.values(), "LocalPool / plain loop", "RayPool / two plain processes", "RayPool / bare Ray"]
    rows = [
        [
            _case(found),
            *(cells.number(found[f"{way}_s"]) for way in WAYS),
            *(
                cells.number(found[ratio], 3)
                for ratio in ("local_over_floor", "ray_over_two_processes", "ray_over_bare")
            ),
        ]
        for found in cases
    ]
    return Table(header, rows, note="Seconds per round, the best repetition.")


def draw(cases: Sequence[Fields], path: Path) -> None:
    """A panel a case: seconds per round of every way."""
    columns = min(2, len(cases))
    rows = math.ceil(len(cases) / columns)
    figure, panels = plots.panels(rows, columns, size=(3.6 * columns + 1.5, 2.6 * rows + 0.6))
    for axes, found in zip(panels.flat, cases, strict=True):
        seconds = [found[f"{way}_s"] for way in WAYS]
        colours = [plots.COLOURS[0] if name.endswith(("Pool", "stored")) else "0.7" for name in WAYS.values()]
        bars = axes.barh(list(WAYS.values()), seconds, color=colours)
        axes.bar_label(bars, [cells.number(value) for value in seconds], padding=3, fontsize=8)
        axes.margins(x=0.25)
        axes.invert_yaxis()
        axes.set_title(_case(found), fontsize=8)
        axes.set_xlabel("seconds per round", fontsize=8)
        axes.locator_params(axis="x", nbins=4)
        axes.tick_params(labelsize=8, labelleft=axes in panels[:, 0])
        axes.spines[["top", "right"]].set_visible(False)
    plots.save(figure, path)


def _case(found: Fields) -> str:
    steps = f"{found['steps']} step{'s' if found['steps'] != 1 else ''}"
    return f"{found['clients']} clients x {steps}, {cells.size(4 * found['parameters'])}"


def say(what: str, **fields: Any) -> None:
    """One JSON line, floats to four digits."""
    line = json.dumps({"what": what, **fields})
    print(json.dumps(json.loads(line, parse_float=lambda text: float(f"{float(text):.4g}"))), flush=True)


def machine() -> Fields:
    """What the figures were measured on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        "python": platform.python_version(),
        "torch": version("torch"),
        "ray": version("ray"),
    }


# --- raydiff's ways of doing the work, and their cost ---


def in_process(trial: Trial) -> Iterator[Params]:
    """The round loop over clients in this process, without a store."""
    method, keys = trial.experiment.method, trial.keys
    hosted = make_clients(trial, range(trial.experiment.clients))
    pool = LocalPool([Client(c.number, method, c.data, keys=keys) for c in hosted])
    for progress in rounds(method, pool, keys=keys):
        yield progress.server


def on_ray(trial: Trial, workers: Sequence[Any], *, stored: bool = False) -> Iterator[Params]:
    """The round loop over worker actors; `stored` commits every round, as a trial does."""
    from raydiff.runtime.actors import RayPool

    store = trial.store if stored else None
    for progress in rounds(trial.experiment.method, RayPool(workers, trial), keys=trial.keys, store=store):
        yield progress.server


@contextlib.contextmanager
def ray_workers() -> Iterator[list[Any]]:
    """Workers on a Ray of our own, which ends with the block."""
    from raydiff.runtime.actors import start_workers
    from raydiff.runtime.slots import Slot, fitting
    from raydiff.runtime.tuner import cluster

    slot = Slot(workers=PROCESSES, threads=1, gpu_per_worker=0.0, gpu_server=0.0)
    with cluster() as nodes:
        fitting(slot, nodes)
        yield start_workers(slot, None)


def per_round(way: Iterator[Params]) -> float:
    """Seconds per round after the first."""
    next(way)
    started = time.perf_counter()
    count = sum(1 for _ in way)
    return (time.perf_counter() - started) / count


def memory(workers: Sequence[Any]) -> Fields:
    """Peak resident MB of this process and of the workers."""
    references = [w.__ray_call__.remote(lambda _: peak_mb()) for w in workers]
    return {"driver_mb": peak_mb(), "workers_mb": [r.future().result() for r in references]}


def resident_mb() -> float:
    """Memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def peak_mb() -> float:
    """Peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KB on Linux


# --- overhead ---


def overhead(quick: bool) -> Lines:
    """Start of a fresh process, every case, change of trial in warm workers, memory."""
    repetitions = 1 if quick else 5
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
            "bare_ray": lambda trial: two_actors(trial, workers),
        }
        for number, case in enumerate((SMALL,) if quick else CASES):
            seconds = 0.01 if quick else 2.0
            yield "overhead", compare(case, ways, Path(folder) / f"{number}", repetitions=repetitions, seconds=seconds)
        yield "switch", switch(workers, repetitions, Path(folder))
        yield "memory", {"after": "all cases", **memory(workers)}


def compare(case: Work, ways: dict[str, Way], folder: Path, *, repetitions: int, seconds: float) -> Fields:
    """Seconds per round of every way, the best repetition; each lasts `seconds` at least, after one warm-up."""
    after_one = {name: next(way(case.trial(1, folder / f"{name}-first"))) for name, way in ways.items()}
    warm = min(per_round(way(case.trial(3, folder / f"{name}-warm"))) for name, way in ways.items())
    count = 1 + max(2, math.ceil(seconds / warm))
    best: dict[str, float] = dict.fromkeys(ways, math.inf)
    for repetition in range(repetitions):
        for name, way in ways.items():
            best[name] = min(best[name], per_round(way(case.trial(count, folder / f"{name}-{repetition}"))))
    ratios = {
        "local_over_floor": best["local"] / best["floor"],
        "ray_over_two_processes": best["ray"] / best["two_processes"],
        "ray_over_bare": best["ray"] / best["bare_ray"],
    }
    targets = {"local_over_floor": 1.05, "ray_over_two_processes": case.aim}
    return {
        "clients": case.clients,
        "steps": case.steps,
        "parameters": sum(v.numel() for v in after_one["floor"].values()),
        "rounds": count - 1,
        "repetitions": repetitions,
        **{f"{name}_s": s for name, s in best.items()},
        **ratios,
        "targets": targets,
        "met": {name: ratios[name] <= target for name, target in targets.items()},
        "agree": all(difference(w, after_one["floor"]) <= AGREEMENT for w in after_one.values()),
    }


def difference(a: Params, b: Params) -> float:
    """The largest between two sets of weights."""
    return max(float(v.abs().max()) for v in tree.sub(a, b).values())


def switch(workers: Sequence[Any], repetitions: int, folder: Path) -> Fields:
    """From one trial's end to the end of the next one's first round, in the same workers.

    `switch_s` is what hosting the next trial's clients takes of it.
    """
    from raydiff.runtime.actors import RayPool

    case, hosting, whole = Work(clients=8, steps=1), math.inf, math.inf
    steady = per_round(on_ray(case.trial(20, folder / "before"), workers))
    for repetition in range(repetitions):
        started = time.perf_counter()
        trial = case.trial(2 + repetition, folder / f"after-{repetition}")  # other rounds: another trial
        before = time.perf_counter()
        pool = RayPool(workers, trial)
        hosting = min(hosting, time.perf_counter() - before)
        next(rounds(trial.experiment.method, pool, keys=trial.keys))
        whole = min(whole, time.perf_counter() - started)
    return {"switch_s": hosting, "to_end_of_first_round_s": whole, "steady_round_s": steady}


def start() -> Fields:
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
        next(on_ray(Work(clients=8, steps=1).trial(1, Path(folder)), workers))
        print(json.dumps(memory(workers)), flush=True)


# --- scale ---


def scale(quick: bool) -> Lines:
    """More clients, clients that do not train, larger models, and many rounds."""
    few, many, count, long = (4, 20, 2, 20) if quick else (1000, 10_000, 10, 2000)  # clients, then rounds
    with tempfile.TemporaryDirectory(prefix="raydiff-bench-") as name, ray_workers() as workers:
        folder = Path(name)
        _whole(Work(clients=2, steps=2, network=TINY, data=SQUARES), 2, folder / "warm", workers)
        yield "soak", _soak(Work(clients=8, steps=1, network=TINY, data=SQUARES), long, folder / "soak", workers)
        for participants in (IDLE, PROCESSES):
            case = Work(clients=IDLE, steps=0, network=TINY, participants=participants)
            found, _ = _whole(case, 5 * count, folder / f"idle-{participants}", workers)
            alone = Work(clients=participants, steps=0, network=TINY).trial(5 * count, folder / f"floor-{participants}")
            found |= {"participants": participants, "floor_s": per_round(floor(alone))}
            yield "idle", {**found, **_judged(found, {"seconds_per_round": IDLE_SECONDS})}
        tiny = Work(clients=few, steps=2, network=TINY, data=SQUARES)
        found, server = _whole(tiny, count, folder / "few", workers)
        yield "scale", {**found, **_judged(found, {"total_mb": SCALE_MB})}
        yield "scale", _whole(replace(tiny, vectorize=True), count, folder / "lock-step", workers)[0]
        found, _ = _whole(replace(tiny, clients=many), count, folder / "many", workers)
        yield "scale", {**found, **_judged(found, {"total_mb": SCALE_MB})}
        network = MLP(width=8, depth=1) if quick else MB_10
        found, _ = _whole(Work(clients=few, steps=0, network=network, data=SQUARES), 5, folder / "size", workers)
        yield "size", {**found, **_judged(found, {"driver_mb": DRIVER_MB, "received_mb": RECEIVED_MB})}
        network = MLP(width=8, depth=1) if quick else MB_100
        yield "size", _whole(Work(clients=8, steps=0, network=network), 5, folder / "large", workers)[0]
        for clients, senders, network in ((10 * many, 2, TINY), (100, 100, TINY if quick else MB_10)):
            yield "coordinator", _coordinator(clients, senders, network, folder / f"alone-{clients}")
        *_, here = in_process(tiny.trial(count, folder / "here"))  # It is last: its clients are this process's memory.
        yield "packed", {"clients": few, "rounds": count, "same_bits": tree.digest(here) == tree.digest(server)}


def _whole(case: Work, rounds: int, folder: Path, workers: Sequence[Any]) -> tuple[Fields, Params]:
    """A whole trial: seconds, what the coordinator received in a round, and peak memory so far; and the server's last
    weights."""
    before, started = peak_mb(), time.perf_counter()
    trial, pool = _opened(case, rounds, folder, workers)
    *_, last = trials.run(trial, pool)
    assert last["finished"]
    seconds, held = time.perf_counter() - started, memory(workers)
    server = trial.store.load_server(rounds - 1)
    fields = {
        "clients": case.clients,
        "steps": case.steps,
        "vectorize": case.vectorize,
        "parameters": sum(v.numel() for v in server.values()),
        "rounds": rounds,
        "seconds_per_round": seconds / rounds,
        **held,
        "total_mb": held["driver_mb"] + sum(held["workers_mb"]),
        "uploads_mb": (case.participants or case.clients) * tree.nbytes(server) / 2**20,
        "received_mb": pool.received / rounds / 2**20,
        "driver_grown_mb": held["driver_mb"] - before,
    }
    return fields, server


def _soak(case: Work, rounds: int, folder: Path, workers: Sequence[Any]) -> Fields:
    """Many rounds: seconds of one, early and late, and the driver's growth in the second half."""
    trial, pool = _opened(case, rounds, folder, workers)
    clock, held = [time.perf_counter()], []
    for _ in trials.run(trial, pool):
        clock.append(time.perf_counter())
        held.append(resident_mb())
    half, tenth = rounds // 2, rounds // 10
    slope = float(np.polyfit(np.arange(half, rounds), held[half:rounds], 1)[0])
    found = {
        "clients": case.clients,
        "rounds": rounds,
        "early_seconds_per_round": (clock[2 * tenth] - clock[tenth]) / tenth,
        "late_seconds_per_round": (clock[rounds] - clock[rounds - tenth]) / tenth,
        "growth_mb": 100 * slope,
    }
    return {**found, **_judged(found, {"growth_mb": GROWTH_MB})}


def _coordinator(clients: int, senders: int, network: MLP, folder: Path) -> Fields:
    """The driver's time alone: a round's messages of so many clients, from so many workers, are made before it."""
    messages: list[tuple[bytes, list[pickle.PickleBuffer]]] = []

    class Heard(LocalPool):
        @property
        def clients(self) -> Sequence[int]:
            return range(clients)

        def sums(self, ids: Sequence[int], desk: Desk, closing: Any) -> Iterator[Partial]:
            for own in () if messages else np.array_split(list(ids), senders):
                part, nothing = desk.partial(), disclose(tree.sub(desk.server, desk.server), "")
                desk.add(part, Upload(0, 1, nothing), {"train/loss": 0.0})
                part.sent = [replace(part.sent[0], client=i) for i in own.tolist()]
                buffers: list[pickle.PickleBuffer] = []
                messages.append((pickle.dumps(part, protocol=5, buffer_callback=buffers.append), buffers))
            yield from (pickle.loads(message, buffers=buffers) for message, buffers in messages)

    trial = trials.open_trial(Work(clients=1, steps=0, network=network).trial(4, folder).experiment, folder)
    done = rounds(trial.experiment.method, Heard([]), keys=trial.keys, store=trial.store)
    return {"clients": clients, "workers": senders, "seconds_per_round": per_round(p.server for p in done)}


def _opened(case: Work, rounds: int, folder: Path, workers: Sequence[Any]) -> tuple[Trial, Any]:
    """A new trial, and its pool, which counts the bytes of the sums that come."""
    from raydiff.runtime.actors import RayPool

    class Counting(RayPool):
        received = 0

        def sums(self, *asked: Any) -> Iterator[Any]:
            for part in super().sums(*asked):
                self.received += part.total.nbytes if isinstance(part, Partial) else 0
                yield part

    trial = trials.open_trial(case.trial(rounds, folder).experiment, folder)
    return trial, Counting(workers, trial)


def _judged(found: Fields, targets: dict[str, float]) -> Fields:
    return {"targets": targets, "met": {name: found[name] <= target for name, target in targets.items()}}
