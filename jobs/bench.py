"""What does the orchestration cost? Plain torch, `LocalPool`, plain processes and `RayPool` do the same work.
And what do more clients cost, larger models, whole sweeps, the audit of a table; what is gained by training in
lock-step?

    python jobs/bench.py overhead             JSON lines, minutes
    python jobs/bench.py overhead --quick     one short repetition of each, to see that it runs: no ratio counts
    python jobs/bench.py first-round          one round on a fresh Ray: what `overhead` times from outside
    python jobs/bench.py scale [--quick]      1,000 clients on two workers, models of 100 MB (`bench_scale`), minutes
    python jobs/bench.py sweep [--quick]      sweeps of 4 and 16 trials (`bench_sweep`), minutes
    python jobs/bench.py cohort [--quick]     clients in lock-step (`bench_cohort`), a minute
    python jobs/bench.py options [--quick]    bfloat16, channels last, torch.compile (`bench_options`), minutes
    python jobs/bench.py audit [--quick]      per-instance bounds (`bench_audit`), minutes, most of them the reference

`python analysis/bench.py FILE...` draws what they print. Here is `overhead`:

Each way is an iterator that yields the server's weights after every round. Its first round is not timed:
processes are warm and clients hosted by then. The ways are interleaved, and the best repetition of each counts.
Compare ratios of one run only.
"""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing as mp
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import bench_audit
import bench_cohort
import bench_options
import bench_scale
import bench_sweep
import command
import torch
from bench_work import PROCESSES, Case, in_process, memory, on_ray, ray_workers
from torch import Tensor, nn

from raydiff import seeding, tree
from raydiff.data.datasets import Records
from raydiff.diffusion.gaussian import DDPM
from raydiff.diffusion.networks import MLP
from raydiff.federation import rounds
from raydiff.methods import FedAvg
from raydiff.tree import Params
from raydiff.trial import Trial, make_clients

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
    seconds: float = 0.5
    """Least duration of one timing."""


QUICK = Effort(cases=(Case(clients=4, steps=1, network=MLP(width=16, depth=1)),), repetitions=1, seconds=0.01)


def main(argv: Sequence[str]) -> int:
    """Run a measurement."""
    known = ("overhead", "first-round", *OTHERS)
    if not argv or argv[0] not in known or set(argv[1:]) - {"--quick"}:
        raise ValueError(
            f"say what to measure: python jobs/bench.py overhead, {', '.join(OTHERS)} [--quick]; got {' '.join(argv)!r}"
        )
    os.environ.pop("RAY_ADDRESS", None)  # the plain processes run on this machine, so Ray does too
    torch.set_num_threads(1)
    if argv[0] == "first-round":
        first_round()
    elif argv[0] == "overhead":
        overhead(QUICK if "--quick" in argv else Effort())
    else:
        say("machine", **machine())
        for what, fields in OTHERS[argv[0]]("--quick" in argv):
            say(what, **fields)
    return 0


Lines = Iterator[tuple[str, dict[str, Any]]]
OTHERS: dict[str, Callable[[bool], Lines]] = {
    "scale": lambda quick: bench_scale.lines(bench_scale.QUICK if quick else bench_scale.Effort()),
    "sweep": lambda quick: bench_sweep.lines(bench_sweep.QUICK if quick else bench_sweep.Effort()),
    "cohort": lambda quick: bench_cohort.lines(bench_cohort.QUICK if quick else bench_cohort.Effort()),
    "options": lambda quick: bench_options.lines(bench_options.QUICK if quick else bench_options.Effort()),
    "audit": lambda quick: bench_audit.lines(bench_audit.QUICK if quick else bench_audit.Effort()),
}
"""What to measure beside the overhead -> its lines."""


def overhead(effort: Effort) -> None:
    """Machine, start of a fresh process, every case, change of trial in warm workers, memory."""
    say("machine", **machine())
    say("start", **start())
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
            say("overhead", **compare(case, ways, effort, Path(folder) / f"case-{number}"))
        say("switch", **switch(workers, effort, Path(folder)))
        say("memory", after="all cases", **memory(workers))


def say(what: str, **fields: Any) -> None:
    """One JSON line, floats to four digits."""
    print(json.dumps(short({"what": what, **fields})), flush=True)


def short(value: Any) -> Any:
    """The same, with floats to four digits."""
    if isinstance(value, dict):
        return {k: short(v) for k, v in value.items()}
    if isinstance(value, list):
        return [short(v) for v in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


# --- by hand ---


class Plain:
    """FedAvg's client as one writes it without a framework: a module, an optimiser, a loop."""

    def __init__(self, trial: Trial, ids: Sequence[int]) -> None:
        method = trial.experiment.method
        assert isinstance(method, FedAvg) and isinstance(method.model, DDPM)
        self.method, self.model, self.seed = method, method.model, trial.experiment.seed
        self.records = {c.number: c.data for c in make_clients(trial, ids)}
        model = self.model
        self.net: nn.Module = model.network.build(model.shape, model.labels, model.timesteps)
        self.abar = model.abar.float()

    def train(self, client: int, server: Params, number: int) -> tuple[int, float]:
        """Leave the client's weights in `net`; gives its number of records and its mean loss."""
        training, data = self.method.local, self.records[client]
        steps = training.steps // self.method.rounds
        rng = seeding.generator(self.seed, "client", client, "round", number)  # the same draws in all ways
        self.net.load_state_dict(server)
        optimizer = torch.optim.AdamW(
            self.net.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay, fused=True
        )
        total = torch.zeros(())
        for step in range(steps * number, steps * (number + 1)):
            rate = training.learning_rate * 0.5 * (1 + math.cos(math.pi * step / training.steps))
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = self.loss(data, training.batch, rng)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        return len(data), float(total) / max(steps, 1)

    def loss(self, data: Records, batch: int, rng: torch.Generator) -> Tensor:
        """The denoising loss on a batch."""
        model = self.model
        rows = torch.randint(len(data.images), (batch,), generator=rng)
        t = torch.randint(1, model.timesteps + 1, (batch,), generator=rng)
        z = torch.randn(batch, *model.shape, generator=rng)
        abar = self.abar[t].view(-1, 1, 1, 1)
        x_t = abar.sqrt() * data.images[rows] + (1 - abar).sqrt() * z
        out: Tensor = (z - self.net(x_t, t, data.labels[rows])).square().mean()
        return out


def first_weights(trial: Trial) -> Params:
    """The server's weights before round 0, as `rounds()` makes them."""
    return trial.experiment.method.init_server(None, seeding.generator(trial.experiment.seed, "server", "init"))


def add(total: Params, weights: Params, examples: int) -> None:
    """Add a client's weights to the running sum."""
    for name, value in weights.items():
        total[name].add_(value, alpha=examples)


def floor(trial: Trial) -> Iterator[Params]:
    """A plain loop in this process."""
    plain = Plain(trial, range(trial.experiment.clients))
    server = first_weights(trial)
    for number in range(trial.experiment.method.rounds):
        total, weight = {k: torch.zeros_like(v) for k, v in server.items()}, 0
        for client in plain.records:
            examples, _ = plain.train(client, server, number)
            add(total, plain.net.state_dict(), examples)
            weight += examples
        server = {k: v.div_(weight) for k, v in total.items()}
        yield server


def two_processes(trial: Trial, pipes: Sequence[Connection]) -> Iterator[Params]:
    """Half of the clients in each of two processes; weights go through pipes."""
    server = first_weights(trial)  # before the others begin: in tests they are threads, and share torch's generator
    for pipe in pipes:
        pipe.send(trial)
    for number in range(trial.experiment.method.rounds):
        for pipe in pipes:
            pipe.send((number, {k: v.numpy() for k, v in server.items()}))
        total, weight = {k: torch.zeros_like(v) for k, v in server.items()}, 0
        for client in range(trial.experiment.clients):
            weights, examples, _ = pipes[client % len(pipes)].recv()
            add(total, {k: torch.from_numpy(v) for k, v in weights.items()}, examples)
            weight += examples
        server = {k: v.div_(weight) for k, v in total.items()}
        yield server


def serve(pipe: Connection, index: int) -> None:
    """A plain process: a trial, then rounds of it; None ends it."""
    torch.set_num_threads(1)
    with pipe:  # closed if this fails, so that the other end does not wait for ever
        while (message := pipe.recv()) is not None:
            if isinstance(message, Trial):
                plain = Plain(message, range(index, message.experiment.clients, PROCESSES))
                continue
            number, weights = message
            server = {k: torch.from_numpy(v) for k, v in weights.items()}
            for client in plain.records:
                examples, loss = plain.train(client, server, number)
                pipe.send(({k: v.numpy() for k, v in plain.net.state_dict().items()}, examples, loss))


@contextlib.contextmanager
def plain_processes() -> Iterator[list[Connection]]:
    """Pipes to persistent processes that `serve`."""
    context, pipes, processes = mp.get_context("spawn"), [], []
    try:
        for index in range(PROCESSES):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, index), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        yield pipes
    finally:
        for process in processes:
            process.terminate()
            process.join()


# --- measuring ---


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


def per_round(way: Iterator[Params]) -> float:
    """Seconds per round after the first."""
    next(way)
    started = time.perf_counter()
    count = sum(1 for _ in way)
    return (time.perf_counter() - started) / count


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
    fresh = [sys.executable, str(Path(__file__).resolve()), "first-round"]
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


def machine() -> dict[str, Any]:
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


if __name__ == "__main__":
    command.one_sentence(main)
