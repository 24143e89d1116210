"""What `python -m analysis.bench` times: an amount of work, raydiff's ways of doing it, and what they cost."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from analysis.bench.plain_fedavg import PROCESSES
from raydiff.data.datasets import Data
from raydiff.data.partition import Iid
from raydiff.experiment import trial as trials
from raydiff.experiment.config import Experiment, Numerics, Runtime
from raydiff.experiment.trial import Trial, make_clients
from raydiff.federated.client import Client
from raydiff.federated.rounds import LocalExecutor, run_rounds
from raydiff.methods.fedavg import FedAvg
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP
from raydiff.models.training import Training
from raydiff.tree import Params

Fields = dict[str, Any]
Lines = Iterator[tuple[str, Fields]]
Way = Callable[[Trial], Iterator[Params]]


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
    aim: float = 1.00
    """What RayExecutor may take in lock-step, in times of the fastest peer."""

    def trial(self, rounds: int, sweep: Path) -> Trial:
        """The trial; its noise secret is given, for no noise is drawn."""
        model = DDPM(network=self.network, timesteps=100, prediction="epsilon", levels="uniform")
        experiment = Experiment(
            method=FedAvg(model=model, rounds=rounds, local=Training(steps=self.steps * rounds)),
            data=self.data,
            clients=self.clients,
            participants=self.participants,
            partition=Iid(),
            evaluation=None,
            numerics=Numerics(vectorize=self.vectorize),
            runtime=Runtime(workers=PROCESSES, noise_secret="00" * 16),
        )
        return Trial(trials.resolve_on_data(experiment), sweep)


def lockstep(trial: Trial) -> Trial:
    """The same work by clients that train in lock-step."""
    return replace(trial, experiment=replace(trial.experiment, numerics=Numerics(vectorize=True)))


def in_process(trial: Trial) -> Iterator[Params]:
    """The round loop over clients in this process, without a store."""
    trials.compute(trial.experiment)
    method = trial.experiment.method
    keys = trial.keys
    hosted = make_clients(trial, range(trial.experiment.clients))
    vectorize = trial.experiment.numerics.vectorize
    pool = LocalExecutor([Client(c.client_id, method, c.data, keys=keys, vectorize=vectorize) for c in hosted])
    for progress in run_rounds(method, pool, keys=keys):
        yield progress.server


def on_ray(trial: Trial, workers: Sequence[Any], *, stored: bool = False) -> Iterator[Params]:
    """The round loop over worker actors; `stored` commits every round, as a trial does."""
    from raydiff.runtime.actors import RayExecutor

    trials.compute(trial.experiment)
    store = trial.store if stored else None
    for progress in run_rounds(trial.experiment.method, RayExecutor(workers, trial), keys=trial.keys, store=store):
        yield progress.server


@contextlib.contextmanager
def ray_workers() -> Iterator[list[Any]]:
    """Workers on a Ray of our own, which ends with the block."""
    from raydiff.runtime.actors import start_workers
    from raydiff.runtime.cluster import join_cluster
    from raydiff.runtime.place import Slot, check_bundles_fit

    slot = Slot(workers=PROCESSES, threads=1, gpu_per_worker=0.0, gpu_server=0.0)
    with join_cluster() as nodes:
        check_bundles_fit(slot.bundles, slot.total, nodes)
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


def resident_mb(process: int | str = "self") -> float:
    """Memory that a process has now."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def peak_mb() -> float:
    """Peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KB on Linux
