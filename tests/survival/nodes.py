"""A cluster of three nodes, the sweep's command on it, and the processes in which it runs, to be killed by their ids.

The command runs in this process, so that a test can put faulty clients in place of sound ones; coordinators, workers
and nodes are processes of their own.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from conftest import Sweep, wait_until

from raydiff.storage import staging as away

ROUNDS, CLIENTS = 4, 4
FEDERATED = [
    "digits",
    "--name=survivor",
    "--method=fedavg",
    f"--method.rounds={ROUNDS}",
    "--method.model.network.width=128",  # 0.4 MB: more than Ray keeps in the message itself
    "--method.local.steps=120",
    "--method.averaging.privacy=clientprivacy",  # noised by the clients: what they send is stored first
    f"--clients={CLIENTS}",
    "--runtime.workers=2",
    "--protocol-only",
    "--no-baselines",
    "--max-concurrent=1",
]
SEEDS = ["--grid", "seed=0,1"]
COORDINATOR, WORKER = "ray::ResourceTrainable", "ray::Worker"


class Nodes:
    """A head without CPUs, and two nodes with two CPUs and a GPU each."""

    def __init__(self, *, at_exit: bool = True, places: Path | None = None) -> None:
        """`at_exit`: end it when this process ends; then nodes can be added by the main thread alone. `places`: each
        node works in a folder of its own below it, where the storage is a bucket."""
        from ray.cluster_utils import Cluster

        self._places, self._started = places, 0

        head = {"num_cpus": 0, "num_gpus": 0, "include_dashboard": True, "dashboard_port": 0}
        # A node that is gone is missed after two seconds; one that is slow to answer has ten, as it has by default.
        head["_system_config"] = {"health_check_period_ms": 1000, "health_check_failure_threshold": 2}
        self._cluster = Cluster(initialize_head=True, head_node_args=head, shutdown_at_exit=at_exit)
        self.address = self._cluster.address
        self.complete()

    def complete(self) -> None:
        """Start a node for each that is missing."""
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # A sweep in this process has hidden the GPUs.
        while len(self._cluster.worker_nodes) < 2:
            self._started += 1
            place = {} if self._places is None else {away.PLACE: str(self._places / f"node {self._started}")}
            self._cluster.add_node(num_cpus=2, num_gpus=1, env_vars=place)

    def worker_nodes(self) -> list[Any]:
        """The two, or those that are left."""
        return list(self._cluster.worker_nodes)

    def raylets(self) -> list[int]:
        """The process of each of these that is a node's."""
        return [_raylet(node) for node in self.worker_nodes()]

    def remove(self, node: Any) -> None:
        """An idle node leaves."""
        self._cluster.remove_node(node)

    def kill(self, raylet: int) -> None:
        """A node is gone, at once and with all its processes."""
        node = next(n for n in self._cluster.worker_nodes if _raylet(n) == raylet)
        victims = [pid for title in (COORDINATOR, WORKER) for pid, of in self.processes(title) if of == raylet]
        self._cluster.remove_node(node, allow_graceful=False)
        for pid in victims:  # they would notice by themselves, but a machine that is gone computes nothing more
            _kill(pid)

    def processes(self, title: str) -> list[tuple[int, int]]:
        """(process, its node's raylet) of all that Ray calls so, on these nodes and no other Ray's."""
        raylets, processes = set(self.raylets()), []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                parent = int(_stat(folder)[1])
                if parent in raylets and _title(folder).startswith(title):
                    processes.append((int(folder.name), parent))
        return processes

    def only(self, title: str) -> tuple[int, int]:
        """The only such process, waited for: one of an earlier sweep may be ending, and a title can be misread while
        it is written."""
        last = [self.processes(title)]

        def alone() -> bool:
            last[0] = self.processes(title)
            return len(last[0]) == 1

        wait_until(alone, f"a single {title}", every=0.002)
        return last[0][0]

    def one(self, title: str) -> None:
        """Kill one such process."""
        processes: list[tuple[int, int]] = []
        wait_until(lambda: bool(processes.extend(self.processes(title)) or processes), f"a {title}", every=0.002)
        _kill(min(processes)[0])

    def stop(self) -> None:
        """End the cluster."""
        self._cluster.shutdown()


def _stat(process: Path) -> list[str]:
    """State, parent and so on: what follows the name."""
    return (process / "stat").read_text().rpartition(")")[2].split()


def _title(process: Path) -> str:
    """What a process calls itself: while it writes a new title, the old one can be read as empty."""
    while not (title := (process / "cmdline").read_bytes().strip(b"\0")):
        if _stat(process)[0] in "ZT":  # it has ended, or is stopped
            break
    return title.decode(errors="replace")


def _raylet(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def left_behind() -> list[str]:
    """Resources that are not given back, and actors that are alive."""
    import ray
    from ray.util.state import list_actors

    total, free = ray.cluster_resources(), ray.available_resources()
    missing = [
        f"{k}: {free.get(k, 0.0):g} of {total[k]:g}" for k in ("CPU", "GPU") if abs(free.get(k, 0.0) - total[k]) > 1e-6
    ]
    groups = [f"group {g['state']}" for g in ray.util.placement_group_table().values() if g["state"] != "REMOVED"]
    return missing + groups + [a.class_name for a in list_actors(filters=[("state", "!=", "DEAD")])]


class Federated(Sweep):
    """The sweep of two trials, by the command's `main` in this process."""

    def __init__(self, storage: Path, *axes: str) -> None:
        super().__init__(storage)
        self.arguments = ["jobs/sweep.py", *FEDERATED, *(axes or SEEDS), "--runtime.storage", str(storage)]

    def run(self, *more: str, meanwhile: Callable[[], None] = lambda: None, seconds: float = 600.0) -> int:
        """Run the command; another thread does something to it `meanwhile`, and interrupts it where that fails, or
        where nothing is committed for so many seconds."""
        from raydiff.cli import sweep

        over, errors = threading.Event(), list[BaseException]()

        def watch() -> None:
            try:
                meanwhile()
                wait_until(over.is_set, "the next commit", seconds, progress=self.progress)
            except BaseException as e:
                errors.append(e)
                if not over.is_set():
                    os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            return int(sweep.main([*self.arguments[1:], *more]))
        finally:
            over.set()
            thread.join(60)
            if errors:
                raise errors[0]

    def state(self) -> dict[str, tuple]:
        """digest -> (outcome, final numbers, guarantee, last commit, the server's state as bytes, ledger)."""
        states = {}
        for digest, row in super().table().items():
            trial = self.trial(digest)
            number, _ = trial.last_commit()
            server = (trial.root / f"server-{number:05d}.safetensors").read_bytes()
            states[digest] = (*row, number, server, trial.ledger())
        return states

    def trial(self, digest: str) -> Any:
        """The store of a trial."""
        from raydiff.storage.checkpoint import Checkpoint

        return Checkpoint(self.folder / "trials" / digest)

    def sent(self, number: int, *clients: int) -> bool:
        """Whether these clients of the running trial have stored what they send in this round."""
        files = [list(self.folder.glob(f"trials/*/releases/{c:05d}-{number:05d}.safetensors")) for c in clients]
        return all(files)

    def resent(self) -> int:
        """Releases that were sent again, as the commits have it."""
        commits = [json.loads(path.read_text()) for path in self.folder.glob("trials/*/commit-*.json")]
        return sum("upload/resent" in metrics for commit in commits for metrics in commit["client_metrics"].values())


def faulty(sweep: Any, fault: Callable[[Any, Any], None]) -> Any:
    """The trainable, with workers in which `fault(client, its trial)` is done to each client that they come to host."""
    from ray import cloudpickle

    from raydiff.runtime import actors

    cloudpickle.register_pickle_by_value(sys.modules[fault.__module__])  # workers cannot import a test

    class Faulty(actors.Worker):
        def host(self, trial, ids, gpu):
            hosted = super().host(trial, ids, gpu)
            for client in self._clients.values():
                fault(client, trial)
            return hosted

    class Trainable(sweep.Coordinator):
        def setup(self, config):
            from raydiff.runtime import actors

            actors.Worker = Faulty
            super().setup(config)

    return Trainable


def undisturbed_state(storage: Path) -> dict[str, tuple]:
    """What three of the sweep's trials end with when nobody disturbs them, in this process."""
    from raydiff.cli import arguments, sweep
    from raydiff.cli.options import parse_command
    from raydiff.experiment import trial

    reference = Federated(storage)
    _, study, rest = arguments.split_preset([*FEDERATED, "--grid", "seed=0,1,2"])
    options, overrides = parse_command(sweep.SweepOptions, rest, None, study.experiment)
    for experiment in sweep.plan_request("digits", study, options, overrides).trials:
        this = trial.open_trial(experiment, reference.folder)
        assert list(trial.run_trial(this, trial.local_executor(this)))[-1]["finished"]
    return reference.state()


def check_unharmed(sweep: Federated, expected: dict[str, tuple], *, trials: int = 2) -> None:
    """Every trial has the state, the ledger and the table of the undisturbed sweep, and MLflow each round once."""
    state = sweep.state()
    assert len(state) == trials and state == {digest: expected[digest] for digest in state}
    assert sweep.logged() == [list(range(ROUNDS))] * trials
