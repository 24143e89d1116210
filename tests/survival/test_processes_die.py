"""Workers, coordinators and nodes die in the middle of a round; the sweep goes on, and ends as if nothing had been."""

import dataclasses
import os
import signal
import sys
import time

import pytest
import torch
from conftest import wait_until
from nodes import CLIENTS, COORDINATOR, ROUNDS, WORKER, Federated, check_unharmed, faulty
from ray import cloudpickle
from toys import mean_upload

from raydiff import tree
from raydiff.experiment import trial
from raydiff.federated.method import Upload
from raydiff.federated.upload_validator import UploadValidator
from raydiff.privacy.release import already_private
from raydiff.results.finished import open_finished
from raydiff.runtime import tuner
from raydiff.storage.checksums import load_tensors

pytestmark = pytest.mark.survival


def in_round(sweep: Federated, number: int, *clients: int) -> None:
    """Wait until these clients have stored what they send in this round, which then has no commit yet."""
    wait_until(lambda: sweep.sent(number, *clients), f"round {number}", every=0.002, progress=sweep.progress)


def test_workers_are_killed_and_in_the_next_trial_its_coordinator_twice(tmp_path, nodes, expected):
    """Workers in the first round and in the last. What all clients have sent when the coordinator dies is sent again,
    not made again. It dies more often than `runtime.failures`, which counts losses without a round between them; no
    round that was committed is run again."""
    sweep, written = Federated(tmp_path), {}

    def kill():
        for number in (0, ROUNDS - 1):
            in_round(sweep, number, 0)
            nodes.one(WORKER)
            assert sweep.progress() == (number, 0)
        wait_until(lambda: sweep.progress() == (ROUNDS + 1, 1), "the next trial", every=0.002)
        written.update({path: path.stat().st_mtime_ns for path in sweep.folder.glob("trials/*/commit-*.json")})
        in_round(sweep, 1, 0)
        pid, _ = nodes.only(COORDINATOR)
        os.kill(pid, signal.SIGSTOP)  # so that it cannot commit while the others store
        in_round(sweep, 1, *range(CLIENTS))
        resent = sweep.resent()
        os.kill(pid, signal.SIGKILL)
        in_round(sweep, 2, 0)
        nodes.one(COORDINATOR)
        assert sweep.progress() == (ROUNDS + 2, 1) and sweep.resent() - resent == CLIENTS

    assert sweep.run("--runtime.failures=1", meanwhile=kill) == 0
    assert len(written) == ROUNDS + 1 and written == {path: path.stat().st_mtime_ns for path in written}
    check_unharmed(sweep, expected)


def test_nodes_are_killed_and_what_is_left_has_no_room_for_as_many_workers(tmp_path, nodes, expected, capsys):
    """Three workers are on two nodes; on one there is room for two. What the node had ready is lost with it. Then
    another node joins, and the one with the next trial is killed."""
    sweep = Federated(tmp_path)

    def kill():
        in_round(sweep, 1, 0)
        coordinator, node = nodes.only(COORDINATOR)
        os.kill(coordinator, signal.SIGSTOP)  # so that it fetches nothing
        in_round(sweep, 1, *range(CLIENTS))
        (other,) = {of for _, of in nodes.processes(WORKER)} - {node}
        nodes.kill(other)
        os.kill(coordinator, signal.SIGCONT)
        wait_until(lambda: sweep.progress() == (ROUNDS + 1, 1), "the next trial", every=0.002)
        coordinator, node = nodes.only(COORDINATOR)
        os.kill(coordinator, signal.SIGSTOP)  # so that the sweep has not ended when the other node has joined
        nodes.complete()
        assert {of for _, of in nodes.processes(WORKER)} == {node}
        nodes.kill(node)

    assert sweep.run("--runtime.workers=3", "--runtime.revive-s=5", meanwhile=kill) == 0
    output = capsys.readouterr().out
    assert "nodes were lost: going on with 2 worker(s) per trial" in output
    assert all(f"seed={seed}: its processes were lost; it goes on after round" in output for seed in (0, 1))
    check_unharmed(sweep, expected)


def unsteady(client, trial) -> None:
    """Other batches each time that the client is hosted, and the same noise."""
    client.keys = dataclasses.replace(client.keys, seed=int.from_bytes(os.urandom(4), "big"))


def test_where_training_is_not_deterministic_the_stored_bytes_are_resent(tmp_path, nodes, expected, monkeypatch):
    """The same noise on another value would reveal the difference."""
    monkeypatch.setattr(tuner, "Coordinator", faulty(tuner, unsteady))
    sweep = Federated(tmp_path, "--grid", "seed=0")
    before, sent = {}, {}

    def kill():
        last = ROUNDS - 1
        in_round(sweep, last, 0)
        coordinator, _ = nodes.only(COORDINATOR)
        os.kill(coordinator, signal.SIGSTOP)
        in_round(sweep, last, *range(CLIENTS))
        (folder,) = sweep.folder.glob("trials/*")
        path = folder / f"server-{last - 1:05d}.safetensors"
        before.update(load_tensors(path.read_bytes(), path)[0])
        for client in range(CLIENTS):
            path = folder / f"releases/{client:05d}-{last:05d}.safetensors"
            sent[client] = load_tensors(path.read_bytes(), path)[0]
        os.kill(coordinator, signal.SIGKILL)

    assert sweep.run(meanwhile=kill) == 0
    assert sweep.resent() == CLIENTS
    ((digest, (*_, number, server, ledger)),) = sweep.state().items()
    (folder,) = sweep.folder.glob("trials/*")
    this, after = open_finished(folder).trial, sweep.trial(digest).load_server(number)
    examples = [len(client.data) for client in trial.make_clients(this, range(CLIENTS))]
    validator = UploadValidator(this.experiment.method, before, number, CLIENTS)
    event = validator.method.upload_event(examples[0], number)
    uploads = [Upload(c, examples[c], already_private(sent[c], event)) for c in range(CLIENTS)]
    mean = mean_upload(validator, uploads)
    assert mean.count == CLIENTS and tree.digest(after) == tree.digest(tree.add(before, mean.value))
    assert ledger == expected[digest][-1]  # nothing more was spent
    assert server != expected[digest][-2]  # and the training was not deterministic


def test_a_node_is_gone_before_its_workers_have_begun(tmp_path, monkeypatch, nodes, expected, capsys):
    """They never begin, and nothing fails for it: the trial begins again, with as many as there is room for."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    placed, gone = tmp_path / "placed", tmp_path / "gone"

    class Trainable(tuner.Coordinator):
        def setup(self, config):
            placed.touch()
            while not gone.exists():
                time.sleep(0.01)
            super().setup(config)

    def kill():
        import ray

        wait_until(placed.exists, "a trial that is placed")
        _, here = nodes.only(COORDINATOR)
        nodes.kill(next(raylet for raylet in nodes.raylets() if raylet != here))
        wait_until(lambda: sum(node["Alive"] for node in ray.nodes()) == 2, "the head to miss the node")
        gone.touch()

    (tmp_path / "storage").mkdir()
    monkeypatch.setattr(tuner, "Coordinator", Trainable)
    sweep = Federated(tmp_path / "storage", "--grid", "seed=0")
    assert sweep.run("--runtime.workers=3", "--runtime.revive-s=5", meanwhile=kill, seconds=300) == 0
    assert "nodes were lost: going on with 2 worker(s) per trial\n" in capsys.readouterr().out
    check_unharmed(sweep, expected, trials=1)


ECC = "CUDA error: uncorrectable ECC error encountered"


def on_a_lost_gpu(sweep, folder):
    """The trainable, with workers of which the first in round 1 loses its GPU: no process of its node can compute any
    more. Each notes on which node it hosts."""
    import ray

    from raydiff.runtime import actors, device_faults, worker

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    gone = folder / "gone"

    class Worker(actors.Worker):
        def host(self, trial, ids, gpu):
            self.node = ray.get_runtime_context().get_node_id()
            device_faults._gpu_error = lambda: ECC if gone.exists() and gone.read_text() == self.node else ""
            device_faults.RETRY_S = 0.0
            worker.place.cap_memory = lambda share: None  # The nodes' GPUs are only numbers.
            hosted = super().host(trial, ids, gpu)
            with (folder / "hosts").open("a") as hosts:
                hosts.write(f"{gone.exists()} {self.node}\n")
            return hosted

        def sums(self, trial, ids, server, number, *more):
            with device_faults.exit_on_device_error(self._trial.folder, "a worker"):
                if number == 1 and not gone.exists():
                    gone.write_text(self.node)
                if device_faults._gpu_error():
                    raise torch.AcceleratorError(ECC)
            return super().sums(trial, ids, server, number, *more)

    class Trainable(sweep.Coordinator):
        def setup(self, config):
            from raydiff.runtime import actors

            actors.Worker = Worker
            super().setup(config)

    return Trainable


def test_a_node_that_has_lost_a_gpu_is_left_out(tmp_path, monkeypatch, nodes, expected, capsys):
    """The trial that ran there goes on elsewhere, and the next one begins there."""
    (tmp_path / "storage").mkdir()
    monkeypatch.setattr(tuner, "Coordinator", on_a_lost_gpu(tuner, tmp_path))
    sweep = Federated(tmp_path / "storage")
    assert sweep.run("--runtime.gpu-per-worker=0.25") == 0
    output = capsys.readouterr().out
    assert output.count(f" is lost ({ECC}): the sweep goes on without this node\n") == 1
    hosts = [line.split() for line in (tmp_path / "hosts").read_text().splitlines()]
    assert {node for after, node in hosts if after == "True"} == {node for _, node in hosts} - {
        (tmp_path / "gone").read_text()
    }
    check_unharmed(sweep, expected)
