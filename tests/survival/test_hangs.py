"""Clients that hang, and workers that are stopped: each is killed when nothing was heard of it for
`runtime.client_timeout_s`, and the round goes on as if its worker had died."""

import ctypes
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray import cloudpickle

from raydiff import tree
from raydiff.data.partition import Iid
from raydiff.evaluation.evaluation_settings import Evaluation
from raydiff.experiment import trial
from raydiff.experiment.config import Experiment, Runtime
from raydiff.experiment.trial import Trial
from raydiff.methods.fedavg import FedAvg
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP
from raydiff.models.samplers import Sampling, denoise
from raydiff.models.training import Training, fit
from raydiff.runtime import device_faults, worker_deaths
from raydiff.runtime.actors import RayExecutor, start_workers
from raydiff.runtime.place import Slot
from raydiff.runtime.worker_deaths import WorkerCrashLoop

pytestmark = pytest.mark.survival

TIMEOUT_S = 10.0  # more than a process takes to its first step
MODEL, DDIM = DDPM(network=MLP(width=16, depth=1), timesteps=20), Sampling(sampler="ddim", steps=5)
TRAINING = Training(steps=4, batch=8)
FEDAVG = FedAvg(model=MODEL, rounds=2, local=TRAINING, sampling=DDIM)
SAYS = "no heartbeat for 10 s (runtime.client_timeout_s), at client"


def sleep() -> None:
    time.sleep(1e6)


def spin() -> None:
    """In native code, without letting go of the interpreter's lock."""
    ctypes.PyDLL(None).sleep(1_000_000)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.fixture(scope="module")
def two() -> Iterator[list[Any]]:
    """Two workers of their own on a local Ray."""
    ray.shutdown()
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield start_workers(Slot(workers=2, threads=1, gpu_per_worker=0.0, gpu_server=0.0), None)
    ray.shutdown()


def opened(folder: Path) -> Trial:
    runtime = Runtime(noise_secret="00112233445566778899aabbccddeeff", client_timeout_s=TIMEOUT_S)
    measured = Evaluation(metrics=("kernel",), dim=4, attacks=None)
    experiment = Experiment(method=FEDAVG, partition=Iid(), runtime=runtime, evaluation=measured, clients=4)
    return trial.open_trial(experiment, folder)


def final(pool: Any, this: Trial) -> tuple[dict[str, Any], str, Any]:
    """The trial's final numbers, the digest of the server's last state, and the ledger."""
    *_, end = trial.run_trial(this, pool)
    metrics = {k: v for k, v in end.items() if not k.startswith("time/")}
    return metrics, tree.digest(this.store.load_server(FEDAVG.rounds - 1)), this.store.ledger()


def doing(this: Trial, what: dict[tuple[str, int], Callable[[], None]], *, once: bool = True) -> Trial:
    """The same trial, but before a client does its part of "round 1", or before its model is "deployed", something
    else is done: the first time, or always. Workers get it by value."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    clients = {c.client_id: int(c.data.numbers[0]) for c in trial.make_clients(this, range(4))}
    folder, first = this.folder, {(at, clients[client]): do for (at, client), do in what.items()}

    class Doing(FedAvg):
        def local_update(self, server: Any, state: Any, data: Any, rnd: Any) -> Any:
            self.perhaps(f"round {rnd.number}", data)
            return super().local_update(server, state, data, rnd)

        def personalize(self, server: Any, state: Any, data: Any, rng: Any) -> Any:
            self.perhaps("deployed", data)
            return super().personalize(server, state, data, rng)

        def perhaps(self, at: str, data: Any) -> None:
            here = at, int(data.numbers[0])
            marker = folder / f"done-{at}-{here[1]}"
            if here in first and not (once and marker.exists()):
                marker.touch()
                first[here]()

    Doing.__module__ = FedAvg.__module__  # On disk it is one of raydiff's.
    method = Doing(**{f.name: getattr(FEDAVG, f.name) for f in dataclasses.fields(FedAvg)})
    return dataclasses.replace(this, experiment=dataclasses.replace(this.experiment, method=method))


def test_clients_that_hang_are_killed_and_the_trial_ends_as_if_they_had_not(tmp_path: Path, two: list[Any]) -> None:
    """Each in another way; two of them are of one worker, and one hangs again where it is measured."""
    whole = opened(tmp_path / "whole")
    hanging = {("round 1", 1): sleep, ("round 1", 2): spin, ("round 1", 3): stop, ("deployed", 3): sleep}
    this = doing(opened(tmp_path / "hung"), hanging)
    assert final(RayExecutor(two, this), this) == final(trial.local_executor(whole), whole)
    at = ("0: {} 0 or a later one", "1: {} 1 or a later one", "1: {} 3", "1: {} 3")  # Then they are asked one by one.
    assert sorted(device_faults.read_losses(this.folder)) == [f"worker {where.format(SAYS)}" for where in at]


def test_a_client_that_always_hangs_ends_the_trial_and_is_named(
    tmp_path: Path, two: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_deaths, "ATTEMPTS", 2)
    this = doing(opened(tmp_path), {("round 1", 2): sleep}, once=False)
    with pytest.raises(WorkerCrashLoop, match="worker 0 died 2 times before client 2 had its result; worker 0: ") as e:
        final(RayExecutor(two[:1], this), this)
    assert str(e.value).endswith(f"{SAYS} 2")
    assert (
        device_faults.read_losses(this.folder)[0] == f"worker 0: {SAYS} 0 or a later one"
    )  # their sum was not sent yet


def long() -> None:
    """Longer than nothing may be heard, with a step now and then."""
    images, slow = torch.zeros(4, 1, 8, 8), Training(steps=20, batch=2)
    model = dataclasses.replace(MODEL, labels=())

    def objective(params: Any, batch: Any, draws: Any, extras: Any) -> torch.Tensor:
        time.sleep(0.6)
        return model.loss(params, batch, draws, extras)

    rng = torch.Generator().manual_seed(0)
    fit(model, model.init(rng), images, images[:, 0, :0, 0].long(), training=slow, rng=rng, objective=objective)


def piecewise() -> None:
    """As long, in pieces that are no steps: a chain of samples."""

    def z_theta(x: torch.Tensor, *_: Any) -> torch.Tensor:
        time.sleep(0.6)
        return x

    rng = torch.Generator().manual_seed(0)
    denoise(
        z_theta,
        torch.zeros(1, 1, 2, 2),
        labels=torch.zeros(1, 0),
        abar=MODEL.abar,
        start=20,
        sampler="ddim",
        steps=None,
        rng=rng,
    )


def test_who_takes_long_but_goes_on_is_not_killed(tmp_path: Path, two: list[Any]) -> None:
    this = doing(opened(tmp_path), {("round 1", 1): long, ("deployed", 1): piecewise})
    final(RayExecutor(two, this), this)
    assert device_faults.read_losses(this.folder) == []
