"""What the benchmarks of the round loop share: an amount of work, and raydiff on Ray doing it."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydiff.data.datasets import Data
from raydiff.data.partition import Iid
from raydiff.experiment import trial as trials
from raydiff.experiment.config import Experiment, Runtime
from raydiff.experiment.trial import Trial, make_clients
from raydiff.federated.client import Client
from raydiff.federated.rounds import LocalPool, rounds
from raydiff.methods import FedAvg
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP
from raydiff.models.training import Training
from raydiff.tree import Params

PROCESSES = 2  # Ray workers, and plain processes
SMALL = MLP(width=128, depth=3)  # a quarter of the digits preset's: the smaller, the more overhead shows


@dataclass(frozen=True, kw_only=True)
class Case:
    """One amount of work."""

    clients: int
    """How many there are."""
    steps: int
    """Training steps of each client in each round."""
    network: MLP = SMALL
    """The denoiser."""
    vectorize: bool = False
    """Train the clients of a worker in lock-step."""
    participants: int | None = None
    """How many take part in a round; None: all."""

    def trial(self, rounds: int, sweep: Path) -> Trial:
        """FedAvg on digits without instruments."""
        model = DDPM(network=self.network, timesteps=100)
        method = FedAvg(model=model, rounds=rounds, local=Training(steps=self.steps * rounds))
        secret = "00" * 16  # no noise is drawn
        runtime = Runtime(workers=PROCESSES, threads=1, vectorize=self.vectorize, noise_secret=secret)
        data = Data(train=1500, public=100, validation=0, calibration=0, test=100)  # for 1,000 clients, one each
        experiment = Experiment(
            method=method,
            data=data,
            clients=self.clients,
            participants=self.participants,
            partition=Iid(),
            evaluation=None,
            runtime=runtime,
        )
        return Trial(trials.resolve(experiment), sweep)

    @property
    def targets(self) -> dict[str, float]:
        """What the ratios should stay below. Without training, only copies of weights are timed."""
        return {"local_over_floor": 1.05, "ray_over_two_processes": 1.15 if self.steps else 1.5}


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

    pool = RayPool(workers, trial)
    store = trial.store if stored else None
    for progress in rounds(trial.experiment.method, pool, keys=trial.keys, store=store):
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


def memory(workers: Sequence[Any]) -> dict[str, Any]:
    """Peak resident MB of this process and of the workers."""
    references = [w.__ray_call__.remote(lambda _: peak_mb()) for w in workers]
    return {"driver_mb": peak_mb(), "workers_mb": [r.future().result() for r in references]}


def peak_mb() -> float:
    """Peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KB on Linux
