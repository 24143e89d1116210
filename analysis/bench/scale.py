"""`python -m analysis.bench scale`: more clients, clients that do not train, larger models, and many rounds."""

from __future__ import annotations

import pickle
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from analysis.bench.plain_fedavg import PROCESSES, floor
from analysis.bench.ways import Fields, Lines, Work, in_process, memory, peak_mb, per_round, ray_workers, resident_mb
from raydiff import tree
from raydiff.data.datasets import Data
from raydiff.data.source import Source
from raydiff.experiment import trial as trials
from raydiff.experiment.trial import Trial
from raydiff.federated.method import Upload
from raydiff.federated.rounds import LocalExecutor, run_rounds
from raydiff.federated.upload_validator import Partial, UploadValidator
from raydiff.models.networks import MLP
from raydiff.privacy.release import disclose
from raydiff.tree import Params

TINY = MLP(width=64, depth=1)
SCALE_MB = 6144.0  # what the driver and the workers may hold with 10,000 clients
DRIVER_MB = 1536.0  # what the driver may hold with 1,000 clients of 10 MB
RECEIVED_MB = 100.0  # what it may receive in a round then
GROWTH_MB = 1.0  # what the driver may grow by in a hundred rounds
IDLE = 32  # clients that do not train
IDLE_SECONDS = 0.02  # what a round with them may take
RECORDS = 10_000  # of `scale`, so that so many clients have one each
SQUARES = Data(name="analysis.bench.scale:squares", train=RECORDS, public=100, validation=0, calibration=0, test=100)
MB_10, MB_100 = MLP(width=380, depth=4), MLP(width=1216, depth=4)


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


def scale(quick: bool) -> Lines:
    """More clients, clients that do not train, larger models, and many rounds."""
    few, many, count, long = (4, 20, 2, 20) if quick else (1000, 10_000, 10, 2000)  # clients, then rounds
    data = replace(SQUARES, train=200) if quick else SQUARES
    with tempfile.TemporaryDirectory(prefix="raydiff-bench-") as name, ray_workers() as workers:
        folder = Path(name)
        _whole(Work(clients=2, steps=2, network=TINY, data=data), 2, folder / "warm", workers)
        yield "soak", _soak(Work(clients=8, steps=1, network=TINY, data=data), long, folder / "soak", workers)
        for participants in (IDLE, PROCESSES):
            case = Work(clients=IDLE, steps=0, network=TINY, participants=participants)
            found, _ = _whole(case, 5 * count, folder / f"idle-{participants}", workers)
            alone = Work(clients=participants, steps=0, network=TINY).trial(5 * count, folder / f"floor-{participants}")
            found |= {"participants": participants, "floor_s": per_round(floor(alone))}
            yield "idle", {**found, **_judged(found, {"seconds_per_round": IDLE_SECONDS})}
        tiny = Work(clients=few, steps=2, network=TINY, data=data)
        found, server = _whole(tiny, count, folder / "few", workers)
        yield "scale", {**found, **_judged(found, {"total_mb": SCALE_MB})}
        yield "scale", _whole(replace(tiny, vectorize=True), count, folder / "lock-step", workers)[0]
        found, _ = _whole(replace(tiny, clients=many), count, folder / "many", workers)
        yield "scale", {**found, **_judged(found, {"total_mb": SCALE_MB})}
        network = MLP(width=8, depth=1) if quick else MB_10
        found, _ = _whole(Work(clients=few, steps=0, network=network, data=data), 5, folder / "size", workers)
        yield "size", {**found, **_judged(found, {"driver_mb": DRIVER_MB, "received_mb": RECEIVED_MB})}
        network = MLP(width=8, depth=1) if quick else MB_100
        yield "size", _whole(Work(clients=8, steps=0, network=network), 5, folder / "large", workers)[0]
        for clients, senders, network in ((10 * many, 2, TINY), (100, 100, TINY if quick else MB_10)):
            yield "coordinator", _coordinator(clients, senders, network, folder / f"alone-{clients}")
        *_, here = in_process(tiny.trial(count, folder / "here"))  # It is last: its clients are this process's memory.
        yield "packed", {"clients": few, "rounds": count, "same_bits": tree.digest(here) == tree.digest(server)}


def _whole(case: Work, rounds: int, folder: Path, workers: Sequence[Any]) -> tuple[Fields, Params]:
    """Run a whole trial.

    Returns seconds, bytes that the coordinator received in a round, peak memory so far, and the server's last weights.
    """
    before = peak_mb()
    started = time.perf_counter()
    trial, pool = _opened(case, rounds, folder, workers)
    *_, last = trials.run_trial(trial, pool)
    assert last["finished"]
    seconds = time.perf_counter() - started
    held = memory(workers)
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
    clock = [time.perf_counter()]
    held = []
    for _ in trials.run_trial(trial, pool):
        clock.append(time.perf_counter())
        held.append(resident_mb())
    half = rounds // 2
    tenth = rounds // 10
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

    class SilenceTimer(LocalExecutor):
        @property
        def clients(self) -> Sequence[int]:
            return range(clients)

        def sums(self, ids: Sequence[int], validator: UploadValidator) -> Iterator[Partial]:
            for own in () if messages else np.array_split(list(ids), senders):
                part = validator.partial()
                nothing = disclose(tree.sub(validator.server, validator.server), "")
                validator.add(part, Upload(0, 1, nothing), {"train/loss": 0.0})
                part.sent = [replace(part.sent[0], client=i) for i in own.tolist()]
                buffers: list[pickle.PickleBuffer] = []
                messages.append((pickle.dumps(part, protocol=5, buffer_callback=buffers.append), buffers))
            yield from (pickle.loads(message, buffers=buffers) for message, buffers in messages)

    trial = trials.open_trial(Work(clients=1, steps=0, network=network).trial(4, folder).experiment, folder)
    done = run_rounds(trial.experiment.method, SilenceTimer([]), keys=trial.keys, store=trial.store)
    return {"clients": clients, "workers": senders, "seconds_per_round": per_round(p.server for p in done)}


def _opened(case: Work, rounds: int, folder: Path, workers: Sequence[Any]) -> tuple[Trial, Any]:
    """A new trial, and its pool, which counts the bytes of the sums that come."""
    from raydiff.runtime.actors import RayExecutor

    class Counting(RayExecutor):
        received = 0

        def sums(self, *asked: Any) -> Iterator[Any]:
            for part in super().sums(*asked):
                layout = part.total.layout if isinstance(part, Partial) else None
                self.received += 8 * layout.size if layout else 0  # int64 on the wire, headers apart
                yield part

    trial = trials.open_trial(case.trial(rounds, folder).experiment, folder)
    return trial, Counting(workers, trial)


def _judged(found: Fields, targets: dict[str, float]) -> Fields:
    return {"targets": targets, "met": {name: found[name] <= target for name, target in targets.items()}}
