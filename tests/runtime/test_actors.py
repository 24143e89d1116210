"""Clients in actors: the same bits as in one process, and a worker that dies is given its clients back."""

import dataclasses
import fcntl
import os
import select
import signal
import stat

import pytest
import ray
import torch
from cases import slow_but

from raydiff import tree
from raydiff.data.partition import Iid
from raydiff.experiment import trial
from raydiff.experiment.config import Experiment, Numerics, Runtime
from raydiff.experiment.trial import Trial
from raydiff.federated.client import Failed
from raydiff.federated.rounds import run_rounds
from raydiff.federated.upload_validator import UploadValidator
from raydiff.methods._averaging import Averaging
from raydiff.methods.dpsgd import DPSGD
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.localonly import LocalOnly
from raydiff.methods.scaffold import Scaffold
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP
from raydiff.models.samplers import Sampling
from raydiff.models.training import Training
from raydiff.papers.pfdm.method import PFDM
from raydiff.papers.spire.method import SPIRE
from raydiff.privacy.client_level import ClientPrivacy
from raydiff.privacy.release import disclose
from raydiff.runtime import device_faults
from raydiff.runtime.actors import RayExecutor
from raydiff.runtime.worker_deaths import WorkerCrashLoop

pytestmark = pytest.mark.ray

MODEL = DDPM(network=MLP(width=16, depth=1), timesteps=20)
TRAINING = Training(steps=4, batch=8)
DDIM = Sampling(sampler="ddim", steps=5)
SHARED = Averaging(weights="uniform", privacy=ClientPrivacy(trust="aggregate", shares=2))
METHODS = {
    "pfdm": PFDM(
        model=MODEL, clip=6.8, local=TRAINING, server=TRAINING, server_rounds=2, sampling=DDIM, client_sampling=DDIM
    ),
    "fedavg": FedAvg(model=MODEL, rounds=2, local=TRAINING, sampling=DDIM),
    "shared noise": FedAvg(model=MODEL, rounds=2, local=TRAINING, sampling=DDIM, averaging=SHARED),
    "localonly": LocalOnly(model=MODEL, local=TRAINING, sampling=DDIM),
    "spire": SPIRE(model=MODEL, rounds=2, local=TRAINING, sampling=DDIM),
    "scaffold": Scaffold(model=MODEL, rounds=2, local=dataclasses.replace(TRAINING, optimizer="sgd"), sampling=DDIM),
    "dpsgd": DPSGD(model=MODEL, rounds=2, local=TRAINING, sampling=DDIM),
}
SECRET = "00112233445566778899aabbccddeeff"


def experiment(method, clients: int) -> Experiment:
    least = 2 if getattr(method, "averaging", None) == SHARED else 1
    return Experiment(
        method=method,
        clients=clients,
        min_clients=least,
        partition=Iid(),
        evaluation=None,
        runtime=Runtime(noise_secret=SECRET),
    )


def with_method(this: Trial, method) -> Trial:
    """The same trial with a method of a test, which workers get by value."""
    type(method).__module__ = FedAvg.__module__  # A config can name methods of raydiff only.
    return dataclasses.replace(this, experiment=dataclasses.replace(this.experiment, method=method))


def last(pool, this: Trial):
    """The run's last progress on this pool."""
    *_, end = run_rounds(this.experiment.method, pool, keys=this.keys, store=this.store)
    return end


def executor(kind: str, this: Trial, workers):
    return trial.local_executor(this) if kind == "local" else RayExecutor(workers, this)


@pytest.mark.parametrize("name", slow_but(["pfdm", "shared noise", "dpsgd"], METHODS))
def test_ray_gives_the_bits_of_one_process(tmp_path, workers, name):
    """Three clients in two workers."""
    ends = []
    for kind in ("local", "ray"):
        this = trial.open_trial(experiment(METHODS[name], 3), tmp_path / kind)
        end = last(executor(kind, this, workers), this)
        ends.append((tree.digest(end.server), end.ledger))
    assert ends[0] == ends[1]


def test_clients_in_lock_step_share_a_worker(tmp_path, workers):
    """The same cohort has the same bits in an actor as in one process. Halved over two it is equal to rounding."""
    ends = []
    for name, share in (("local", None), ("ray", 1), ("both", 2)):
        vectorized = experiment(METHODS["fedavg"], 4)
        numerics = Numerics(vectorize=True)
        this = trial.open_trial(dataclasses.replace(vectorized, numerics=numerics), tmp_path / name)
        ends.append(last(trial.local_executor(this) if share is None else RayExecutor(workers[:share], this), this))
    assert [end.metrics["cohort/size"] for end in ends] == [4, 4, 2]
    assert tree.digest(ends[0].server) == tree.digest(ends[1].server)
    assert tree.norm(tree.sub(ends[0].server, ends[2].server)) < 1e-5


def test_a_killed_worker_is_hosted_again_and_resends_its_stored_bytes(tmp_path, workers):
    this = trial.open_trial(experiment(METHODS["pfdm"], 4), tmp_path)
    pool = RayExecutor(workers, this)
    stream = pool.run(pool.clients, {}, 0)
    uploads = [next(stream)]
    ray.kill(workers[1], no_restart=False)  # it hosts clients 1 and 3
    uploads += list(stream)
    assert [u.client for u, _ in uploads] == [0, 1, 2, 3]

    again = list(RayExecutor(workers, this).run(pool.clients, {}, 0))
    assert all(metrics["upload/resent"] == 1.0 for _, metrics in again)
    for (before, _), (after, _) in zip(uploads, again, strict=True):
        assert tree.digest(before.release.value) == tree.digest(after.release.value)
        assert before.release.event == after.release.event


def test_what_clients_in_actors_keep_is_their_users_alone(tmp_path, workers):
    """Ray's processes, which an administrator may have started, have another umask than a job sets."""
    this = trial.open_trial(experiment(METHODS["spire"], 2), tmp_path)
    last(RayExecutor(workers, this), this)
    kept = list((this.folder / "clients").iterdir())
    assert kept and {stat.S_IMODE(p.stat().st_mode) for p in kept} == {0o600}


@pytest.mark.survival
def test_workers_that_die_between_rounds_and_between_trials_are_hosted_again(tmp_path, workers):
    this = trial.open_trial(experiment(METHODS["fedavg"], 2), tmp_path / "killed")
    results = run_rounds(this.experiment.method, RayExecutor(workers, this), keys=this.keys, store=this.store)
    next(results)
    ray.kill(workers[0], no_restart=False)
    *_, end = results
    whole = trial.open_trial(experiment(METHODS["fedavg"], 2), tmp_path / "whole")
    assert tree.digest(end.server) == tree.digest(last(trial.local_executor(whole), whole).server)
    ray.kill(workers[1], no_restart=False)
    this = trial.open_trial(experiment(METHODS["localonly"], 2), tmp_path / "next")
    assert [u.client for u, _ in RayExecutor(workers, this).run((0, 1), {}, 0)] == [0, 1]


def test_a_diverging_client_is_named(tmp_path, workers):
    """Both of them diverge; whoever is first to say so is named."""
    wild = dataclasses.replace(METHODS["fedavg"], local=Training(steps=4, batch=8, learning_rate=1e30))
    this = trial.open_trial(experiment(wild, 2), tmp_path)
    with pytest.raises(Failed, match=r"client [01], in round \d: the loss became (nan|inf) at step \d"):
        last(RayExecutor(workers, this), this)


def test_bad_clients_are_rejected_as_in_one_process(tmp_path, workers):
    class Betrayed(FedAvg):
        def local_update(self, server, state, data, rnd):
            result = super().local_update(server, state, data, rnd)
            lost = disclose(tree.scale(server, float("nan")), "it")
            sends = dict(zip(firsts, [result.release.value, lost], strict=False))
            return dataclasses.replace(result, release=sends.get(int(data.numbers[0]), result.release))

    results = []
    for kind in ("local", "ray"):
        this = trial.open_trial(experiment(METHODS["fedavg"], 4), tmp_path / kind)
        firsts = [int(client.data.numbers[0]) for client in trial.make_clients(this, (0, 1))]
        this = with_method(this, Betrayed(model=MODEL, rounds=2, local=TRAINING))
        end = last(executor(kind, this, workers), this)
        results.append((tree.digest(end.server), end.ledger, end.rejected, end.metrics))
    assert results[0] == results[1]
    assert results[0][2] == {0: "it sent what is no release of local trust", 1: "it is not finite"}


def summed(pool, this, server):
    """The digest of the mean that round 0 gives, and whose uploads are in it."""
    validator = UploadValidator(this.experiment.method, server, 0, 4)
    whole = validator.partial()
    for part in pool.sums(pool.clients, validator):
        whole.merge(part)
    return tree.digest(whole.mean.value), sorted(sent.client for sent in whole.sent)


@pytest.mark.survival
def test_a_worker_that_dies_in_a_sum_is_asked_again(tmp_path, workers, monkeypatch):
    class Waiting(FedAvg):
        def local_update(self, server, state, data, rnd):
            if int(data.numbers[0]) == first:
                fcntl.flock((tmp_path / "gate").open(), fcntl.LOCK_SH)
            return super().local_update(server, state, data, rnd)

    sound = trial.open_trial(experiment(METHODS["fedavg"], 4), tmp_path)
    first = int(trial.make_clients(sound, [1])[0].data.numbers[0])
    method = Waiting(model=MODEL, rounds=2, local=TRAINING)
    this = with_method(sound, method)
    gate, killed, wait = (tmp_path / "gate").open("w"), [], ray.wait
    fcntl.flock(gate, fcntl.LOCK_EX)
    pool, server = RayExecutor(workers, this), method.init_server(None, torch.Generator().manual_seed(0))

    pid = ray.get(workers[1].__ray_call__.remote(lambda worker: os.getpid()))
    ended = os.pidfd_open(pid)

    def killing(streams, timeout):
        ready = wait(streams, timeout=timeout)  # of worker 0
        if not killed:
            killed.append(os.kill(pid, signal.SIGKILL))
            select.select([ended], [], [])  # It is gone before the gate opens, so it sends nothing any more.
            gate.close()
        return ready

    monkeypatch.setattr(ray, "wait", killing)
    result = summed(pool, this, server)
    assert killed and result == summed(trial.local_executor(sound), sound, server)
    [says] = device_faults.read_losses(this.folder)
    assert says.startswith("worker 1: it died without a reason")


@pytest.mark.parametrize("how", ["run", "sums"])
def test_an_upload_that_is_lost_with_its_node_is_asked_for_again(tmp_path, workers, monkeypatch, how):
    this, get, losses = trial.open_trial(experiment(METHODS["fedavg"], 4), tmp_path), ray.get, []
    pool, server = RayExecutor(workers, this), METHODS["fedavg"].init_server(None, torch.Generator().manual_seed(0))

    def losing(ref, **more):
        if not losses:
            losses.append(ref)
            raise ray.exceptions.ObjectLostError(ref.hex(), None, "")
        return get(ref, **more)

    def sent(pool):
        if how == "sums":
            return summed(pool, this, server)
        return [(u.client, tree.digest(u.release.value)) for u, _ in pool.run(pool.clients, server, 0)]

    monkeypatch.setattr(ray, "get", losing)
    result = sent(pool)
    assert losses
    assert result == sent(trial.local_executor(this))


@pytest.mark.survival
def test_a_client_that_kills_its_worker_each_time_ends_the_trial(tmp_path, workers):
    class Poison(FedAvg):
        def local_update(self, server, state, data, rnd):
            os._exit(1)

    this = trial.open_trial(experiment(METHODS["fedavg"], 2), tmp_path)
    poisoned = Poison(model=MODEL, rounds=2, local=TRAINING)
    this = with_method(this, poisoned)
    this.folder.mkdir(parents=True)
    pool = RayExecutor(workers[:1], this)
    with pytest.raises(WorkerCrashLoop, match="worker 0 died 4 times before client 0 had its result"):
        list(pool.run((0, 1), poisoned.init_server(None, torch.Generator()), 0))
    assert len(device_faults.read_losses(this.folder)) == 4
