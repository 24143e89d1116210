"""What is done to a sweep at a random moment: a function for each kind of fault, and the table of all."""

from __future__ import annotations

import functools
import math
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
from conftest import wait_until
from networks import Parted
from nodes import COORDINATOR, WORKER, Nodes
from servers import free_port, mlflow_server
from sweeps import ROUNDS, Try
from test_faults import empty, fill, remount

STORED = "*.safetensors"
TRIAL = "sweeps/*/trials/*"
FILES = {
    "a commit": f"{TRIAL}/commit-*.json",
    "a client's private state": f"{TRIAL}/clients/{STORED}",
    "a stored upload": f"{TRIAL}/releases/{STORED}",
    "the server's state": f"{TRIAL}/server-{STORED}",
    "a trial's config.json": f"{TRIAL}/config.json",
    "a trial's outcome.json": f"{TRIAL}/outcome.json",
    "sweep.json": "sweeps/*/sweep.json",
    "the noise secret": "sweeps/*/secret",
    "a record of the budget": "budgets/*/*.json",
    "a cached client model": f"sweeps/*/cache/{STORED}",
}


# --- files ---


def bit(path: Path, rng: random.Random) -> None:
    """One bit is another."""
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def cut(path: Path, rng: random.Random) -> None:
    """Its end is missing."""
    os.truncate(path, rng.randrange(path.stat().st_size))


def gone(path: Path, rng: random.Random) -> None:
    """It is not there."""
    path.unlink()


def damaged(this: Try, *, files: str, how: Callable[[Path, random.Random], None]) -> None:
    """The driver is killed, one of these files is damaged, the sweep resumed. Where that is refused, the file is put
    back as it was, and the sweep resumed once more."""
    found = this.killed(having=files)
    if not found:  # The sweep has ended.
        return
    path = this.rng.choice(found)
    whole, before = path.read_bytes(), this.sweep.epsilons()
    how(path, this.rng)
    code, output = this.resume()
    if not this.whole():
        return
    this.refusal = refused(this, path, code, output)
    after = this.sweep.epsilons()
    lower = [digest for digest, spent in before.items() if after.get(digest, math.inf) < spent]
    assert not lower, f"an epsilon is less than what was spent: {before}, {after}"
    path.write_bytes(whole)
    this.resume()


def refused(this: Try, path: Path, code: int, output: str) -> str:
    """The sentence that names the file. Raises AssertionError where there is none."""
    said = [line.removeprefix("error: ") for line in output.splitlines() if line.startswith("error: ")]
    with suppress(ValueError):
        said += [o["reason"] for o in this.sweep.outcomes().values() if "reason" in o]
    names = (str(path), f"{path.parent} has lost")
    named = [s for s in said if any(name in s for name in names) and "\n" not in s]
    assert code in (1, 2) and named, f"exit code {code}, {this.whole()}: {said}"
    return named[0]


# --- the driver and its surroundings ---


def ended(this: Try, *, by: int, times: int = 1) -> None:
    """The driver gets a signal, perhaps again after it was resumed; then it is resumed."""
    this.killed(by)
    for _ in range(times - 1):
        driver = this.start("--resume")
        time.sleep(this.rng.uniform(0, 4))
        with suppress(ProcessLookupError):
            os.kill(driver.pid, by)
        this.end(driver)
    this.resume()


def stood(this: Try) -> None:
    """The driver is stopped for a few seconds."""
    driver = this.start()
    this.moment(driver)
    paused(this, driver.pid, this.rng.uniform(1, 8))
    this.end(driver)


def paused(this: Try, pid: int, seconds: float) -> None:
    """A process is stopped for so long."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)


def second(this: Try) -> None:
    """Another driver is started on the same sweep."""
    first = this.start()
    this.moment(first)
    code, output = this.end(this.start("--resume"))
    assert code == 0 or (code == 2 and "survivor is being run by process " in output), output
    assert this.end(first)[0] == 0


def moved(this: Try) -> None:
    """The storage folder has another path when the sweep is resumed."""
    this.killed(signal.SIGKILL)
    old = this.sweep.storage
    new = old.with_name("moved")
    old.rename(new)
    this.sweep.place(new)
    this.resume()
    if old.exists():  # MLflow keeps the whole path of where artifacts go.
        assert [path.name for path in old.iterdir()] == ["mlflow-artifacts"]
        this.failed = "MLflow's artifacts of this sweep still go to the old path"


def unwritable(this: Try, *, fail: Callable[[Path], None], mend: Callable[[Path], None]) -> None:
    """The storage is a small disk that cannot be written for a while."""
    disk, elsewhere = this.sweep.storage, this.sweep.storage.with_name("mlflow.db")
    (disk / "mlflow.db").rename(elsewhere)
    this.sweep.mlflow = this.env["MLFLOW_TRACKING_URI"] = f"sqlite:///{elsewhere}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "none", str(disk)], check=True)
    try:
        driver = this.start()
        this.moment(driver)
        fail(disk)
        code, output = this.end(driver)
        said = [line for line in output.splitlines() if f"the storage folder {disk}" in line]
        assert said or code == 0, output
        this.failed = said[0].removeprefix("error: ") if said else ""
        mend(disk)
        this.resume()
        this.check()
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def without_mlflow(this: Try) -> None:
    """The MLflow server is gone until the command has ended; then the sweep is resumed."""
    folder, port = this.sweep.storage.parent, free_port()
    this.sweep.mlflow = this.env["MLFLOW_TRACKING_URI"] = f"http://127.0.0.1:{port}"
    server = functools.partial(mlflow_server, f"sqlite:///{this.sweep.storage}/mlflow.db", folder, port=port)
    with ExitStack() as first:
        first.enter_context(server())
        driver = this.start()
        this.moment(driver)
        first.close()
        this.end(driver)
    with server():
        this.resume()
        this.check()


# --- processes of Ray, and clients ---


def one(this: Try, driver: Any, title: str) -> tuple[int, int]:
    """(process, its node) of a random process that Ray calls so; another one than of the sweep is not on this cluster.
    Raises AssertionError where the command ends before there is one."""
    while not (found := this.nodes.processes(title)):
        assert driver.is_alive(), f"there was no {title}"
        time.sleep(0.005)
    return this.rng.choice(sorted(found))


def process(this: Try, *, title: str, stopped: tuple[float, float] | None = None) -> None:
    """A worker or the coordinator is killed, or stopped for so many seconds."""
    driver = this.start()
    this.moment(driver)
    pid, _ = one(this, driver, title)
    if stopped is None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    else:
        paused(this, pid, this.rng.uniform(*stopped))
    assert this.end(driver)[0] == 0


def node(this: Try, *, coordinator: bool) -> None:
    """A node is gone: that of the coordinator, or another one, on which only workers are."""
    driver = this.start() if coordinator else this.start("--runtime.workers=3", "--runtime.revive-s=10")
    this.moment(driver)
    _, here = one(this, driver, COORDINATOR)
    while not (others := [at for _, at in this.nodes.processes(WORKER) if at != here]) and not coordinator:
        assert driver.is_alive(), "there was no worker on another node"
        time.sleep(0.005)
    this.nodes.kill(here if coordinator else others[0])
    assert this.end(driver)[0] == 0


def network(this: Try, *, seconds: tuple[float, float] | None = None) -> None:
    """The network between two nodes is cut, for so many seconds or until the command has ended. The trial has workers
    on both, and its coordinator on one."""
    driver = this.start("--runtime.workers=3", "--runtime.revive-s=10")
    this.moment(driver)
    this.parted.cut()
    if seconds is not None:
        time.sleep(this.rng.uniform(*seconds))
        this.parted.join()
    assert this.end(driver)[0] == 0


def client(this: Try, *, does: str) -> None:
    """A random client does something in a random round of a random trial, once. Where a trial fails for it, the sweep
    is resumed."""
    of = does, this.rng.randrange(2), this.rng.randrange(4), this.rng.randrange(ROUNDS)
    code, output = this.end(this.start(fault=("misbehaving", *of)))
    this.committed = of[1] * ROUNDS + of[3]
    if code:
        reasons = [o["reason"] for o in this.sweep.outcomes().values() if o["outcome"] == "failed"]
        assert [f"client {of[2]}" in r and "\n" not in r for r in reasons] == [True], output
        this.failed = reasons[0]
        this.resume()


def misbehaving(does: str, seed: int, number: int, of_round: int) -> Callable[[Any, Any], None]:
    """What `nodes.faulty` does to each client that is hosted."""

    def fault(client: Any, trial: Any) -> None:
        run = client.run

        def once(server: Any, at: int) -> Any:
            marker = trial.sweep / "misbehaved"
            if (trial.experiment.seed, client.number, at) != (seed, number, of_round) or marker.exists():
                return run(server, at)
            marker.touch()
            if does == "hangs":
                time.sleep(1e6)
            if does == "raises":
                raise RuntimeError(f"client {number} raises in round {at}")
            upload, metrics = run(server, at)
            for tensor in upload.release.value.values():
                tensor.fill_(torch.nan)  # on its way: what was stored is sound
            return upload, metrics

        client.run = once

    return fault


def local(does: Callable[..., None], kind: str = "noised", /, **more: Any) -> tuple[Any, ...]:
    """A fault of a sweep in one process."""
    return functools.partial(does, **more), kind, None


def spread(does: Callable[..., None], /, on: Any = Nodes, **more: Any) -> tuple[Any, ...]:
    """A fault of a sweep on a cluster."""
    return functools.partial(does, **more), "noised", on


def of_files(*, hows: dict[str, Callable[..., None]], kind: str = "noised", names: tuple[str, ...]) -> dict[str, Any]:
    return {f"{n}: {h}": local(damaged, kind, files=FILES[n], how=how) for n in names for h, how in hows.items()}


def read_only(disk: Path) -> None:
    """Let nothing be written."""
    wait_until(lambda: remount(disk, "ro"), "a moment in which no file is being written")


HOWS = {"one bit": bit, "cut short": cut, "gone": gone}
FAULTS: dict[str, tuple[Any, ...]] = {
    "the driver is killed": local(ended, by=signal.SIGKILL),
    "the driver is killed three times in a row": local(ended, by=signal.SIGKILL, times=3),
    "the driver is interrupted (SIGINT)": local(ended, by=signal.SIGINT),
    "the driver is ended (SIGTERM)": local(ended, by=signal.SIGTERM),
    "the driver is stopped for 1 to 8 s": local(stood),
    "a second driver is started on the same sweep": local(second),
    "the storage folder is moved between a kill and the resume": local(moved),
    "the disk is full for a while": local(unwritable, fail=fill, mend=empty),
    "the storage is read-only for a while": local(
        unwritable, fail=read_only, mend=functools.partial(remount, mode="rw")
    ),
    "the MLflow server is gone until the command has ended": local(without_mlflow),
    **of_files(hows=HOWS, names=("a commit", "a client's private state", "a stored upload")),
    **of_files(hows=HOWS, kind="budget", names=("a record of the budget",)),
    **of_files(hows={"one bit": bit}, names=("the server's state", "a trial's outcome.json", "a trial's config.json")),
    **of_files(hows={"one bit": bit}, names=("sweep.json", "the noise secret")),
    **of_files(hows={"one bit": bit}, kind="budget", names=("a cached client model",)),
    "on a cluster, the driver is killed": spread(ended, by=signal.SIGKILL),
    "on a cluster, the driver is interrupted": spread(ended, by=signal.SIGINT),
    "a worker is killed": spread(process, title=WORKER),
    "a worker is stopped for longer than its timeout (15 s)": spread(process, title=WORKER, stopped=(16, 24)),
    "the coordinator is killed": spread(process, title=COORDINATOR),
    "the coordinator is stopped for 1 to 10 s": spread(process, title=COORDINATOR, stopped=(1, 10)),
    "the node with the trial is gone": spread(node, coordinator=True),
    "a node with workers is gone": spread(node, coordinator=False),
    "the network between two nodes is cut": spread(network, on=Parted),
    "the network between two nodes is cut for 1 to 10 s": spread(network, on=Parted, seconds=(1, 10)),
    "a client raises, once": spread(client, does="raises"),
    "a client hangs, once": spread(client, does="hangs"),
    "a client's upload is NaN, once": spread(client, does="NaN"),
}
"""Fault -> (what does it, of which kind of sweep, on what cluster)."""
