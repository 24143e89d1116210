"""Lines of `raydiff bench scale`: what more clients cost, and larger models.

Clients are packed into two workers. Seconds per round are those of a whole trial, from its data to its outcome, over
its rounds: each round has its share of start and end. `scale` is training of a tiny network, at the largest number also
in lock-step. `idle` and `size` are rounds without training, so that only weights move: down to every client, up again,
and to the disk; in the second `idle` line two clients take part, and the others sit out. `floor_s` is what a plain loop
takes for as many as take part. `packed` trains the largest number once more without Ray, one client after the other,
and compares the server's weights bit for bit.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydiff import tree
from raydiff.cli.bench.plain import floor
from raydiff.cli.bench.work import PROCESSES, Case, in_process, memory, peak_mb, per_round, ray_workers
from raydiff.experiment import trial as trials
from raydiff.models.networks import MLP
from raydiff.tree import Params

TINY = MLP(width=64, depth=1)
SCALE_MB = 6144.0  # what the driver and the workers may hold with 1,000 clients
NOISE_MB = 16.0  # what a process grows by anyway
IDLE = 32  # clients that do not train
IDLE_SECONDS = 0.02  # what a round with them may take


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much to measure."""

    clients: Sequence[int] = (8, 32, 128, 1000)
    """Of the tiny network; the last also in lock-step."""
    networks: Sequence[MLP] = (
        MLP(width=16, depth=1),
        MLP(width=128, depth=3),
        MLP(width=768, depth=4),
        MLP(width=1216, depth=4),
    )
    """From 20 kB to 100 MB of weights."""
    rounds: int = 5


QUICK = Effort(clients=(4, 20), networks=(MLP(width=8, depth=1),), rounds=2)


def lines(effort: Effort) -> Iterator[tuple[str, dict[str, Any]]]:
    """What each line is about, and its fields."""
    with tempfile.TemporaryDirectory(prefix="raydiff-bench-") as folder, ray_workers() as workers:
        warm = Case(clients=2, steps=2, network=TINY)
        _measured(warm, 2, Path(folder) / "warm", workers)
        ways = [(count, False) for count in effort.clients] + [(effort.clients[-1], True)]
        for number, (clients, vectorize) in enumerate(ways):
            case = Case(clients=clients, steps=2, network=TINY, vectorize=vectorize)
            found, server = _measured(case, effort.rounds, Path(folder) / f"scale-{number}", workers)
            if not vectorize:  # which adds in another order
                packed = case, server
            yield "scale", {**found, **_judged(found)}
        rounds = 10 * effort.rounds
        for participants in (IDLE, PROCESSES):
            case = Case(clients=IDLE, steps=0, network=TINY, participants=participants)
            found, _ = _measured(case, rounds, Path(folder) / f"idle-{participants}", workers)
            met = {"seconds_per_round": found["seconds_per_round"] <= IDLE_SECONDS}
            alone = Case(clients=participants, steps=0, network=TINY)
            plain = per_round(floor(alone.trial(rounds, Path(folder) / f"floor-{participants}")))
            found |= {"participants": participants, "floor_s": plain}
            yield "idle", {**found, "targets": {"seconds_per_round": IDLE_SECONDS}, "met": met}
        for number, network in enumerate(effort.networks):
            case = Case(clients=8, steps=0, network=network)
            found, _ = _measured(case, effort.rounds, Path(folder) / f"size-{number}", workers)
            yield "size", found
        case, server = packed  # last, for its clients would count as the driver's memory
        *_, here = in_process(case.trial(effort.rounds, Path(folder) / "here"))
        same = tree.digest(here) == tree.digest(server)
        yield "packed", {"clients": case.clients, "rounds": effort.rounds, "same_bits": same}


def _measured(case: Case, rounds: int, folder: Path, workers: Sequence[Any]) -> tuple[dict[str, Any], Params]:
    """One case: seconds, and peak memory so far; and the server's last weights."""
    from raydiff.runtime.actors import RayPool

    before, started = peak_mb(), time.perf_counter()
    trial = trials.open_trial(case.trial(rounds, folder).experiment, folder)
    *_, last = trials.run(trial, RayPool(workers, trial))
    assert last["finished"]
    seconds, held = time.perf_counter() - started, memory(workers)
    server = trial.store.load_server(rounds - 1)
    total, grown = held["driver_mb"] + sum(held["workers_mb"]), held["driver_mb"] - before
    uploads = (case.participants or case.clients) * tree.nbytes(server) / 2**20
    fields = {
        "clients": case.clients,
        "steps": case.steps,
        "vectorize": case.vectorize,
        "parameters": sum(v.numel() for v in server.values()),
        "rounds": rounds,
        "seconds_per_round": seconds / rounds,
        **held,
        "total_mb": total,
        "uploads_mb": uploads,
        "driver_grown_mb": grown,
    }
    return fields, server


def _judged(found: dict[str, Any]) -> dict[str, Any]:
    """A coordinator that kept the uploads of a round would hold `uploads_mb`; its peak must grow by less."""
    targets = {"total_mb": SCALE_MB, "driver_grown_mb": max(found["uploads_mb"], NOISE_MB)}
    return {"targets": targets, "met": {name: found[name] <= target for name, target in targets.items()}}
