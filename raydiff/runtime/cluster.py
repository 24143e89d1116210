"""The Ray that a command runs on: joined where there is one, else started, and left in order."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import stat
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from raydiff.runtime.slots import this_machine

NODE = "ray.io/node-id"  # Ray's label of each node
LONGEST = 40  # of a folder for Ray: below it the paths of sockets take 65 more, and end after 107


@contextlib.contextmanager
def cluster(*, only_join: bool = False) -> Iterator[list[dict[str, float]]]:
    """Join the cluster that RAY_ADDRESS names (a submitted job has it), or start a local one.

    Gives each node's resources. Raises ValueError, in one sentence, where Ray does not start. `only_join`: where there
    is no cluster to join nothing is started, and this machine's resources are given.
    """
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if only_join and not os.environ.get("RAY_ADDRESS"):
        yield [this_machine()]
        return
    terminated = signal.getsignal(signal.SIGTERM)
    try:
        if os.environ.get("RAY_ADDRESS"):
            ray.init(**quiet)
        else:
            with _deaf_to_sigterm():
                ray.init(address="local", include_dashboard=False, _temp_dir=_own_folder(), **quiet)
    except Exception as e:  # Ray raises a plain Exception when its processes take too long, as on a very busy machine.
        raise ValueError(f"Ray did not start: {' '.join(str(e).split())}") from e
    with contextlib.suppress(ValueError):  # not in the main thread, where Ray set none either
        signal.signal(signal.SIGTERM, terminated)  # Ray's own ends the process at once: no trial would have an outcome.
    try:
        yield nodes()
    finally:
        _leave()


@contextlib.contextmanager
def _deaf_to_sigterm() -> Iterator[None]:
    """Processes that are started within never receive SIGTERM, for they inherit what is blocked.

    It is sent to whole process groups (`timeout`) or to all that a job has started (schedulers), and without Ray's
    processes a sweep cannot end in order. The driver ends them, by SIGKILL; where it is killed itself the kernel does.
    Ray protects them in the same way from SIGINT.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _own_folder() -> str | None:
    """Where a local Ray has its sockets and logs: a folder of this user's alone. In the one that Ray makes for itself
    every user of the machine may put a socket in the place of another. None: a path to it would be too long.

    Raises ValueError where something else has this name.
    """
    folder = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / f"raydiff-{os.getuid()}"
    inside = f"{folder}/r"  # Ray opens the folder that it is given, and all below it, to everybody.
    if len(inside) > LONGEST:
        return None
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise ValueError(f"{folder}, for Ray's sockets, must be a folder of yours alone (mode 700): remove it")
    return inside


def _leave() -> None:
    """Leave Ray, while other threads of this process run, such as the one that writes to MLflow.

    Any thread may be the one that collects garbage. Where it then finds a reference to one of Ray's objects, when Ray
    is half gone, Ray ends the process at once and without a word (Ray 2.60, since ray-project/ray#19115).
    """
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        ray.shutdown()
    finally:
        if enabled:
            gc.enable()


def nodes(*, without: Collection[str] = ()) -> list[dict[str, float]]:
    """The resources of each node that is there to stay, `without` those with these ids."""
    return list(present(without=without).values())


def present(*, without: Collection[str] = ()) -> dict[str, dict[str, float]]:
    """Node id -> its resources, for every node that is alive and is not being drained."""
    leaving = ray._private.state.state.get_draining_nodes()  # Ray 2.60 has no public way to ask
    apart = {*leaving, *without}
    return {n["NodeID"]: n["Resources"] for n in ray.nodes() if n["Alive"] and n["NodeID"] not in apart}


def grows() -> bool:
    """Whether an autoscaler may add nodes: `ray up` and KubeRay say of each node which group it is of."""
    return ray.is_initialized() and any("ray.io/node-group" in n["Labels"] for n in ray.nodes() if n["Alive"])


@dataclass(frozen=True)
class Group:
    """A placement group of another job."""

    job: str
    waits: bool
    bundles: list[dict[str, float]]


def groups_of_others() -> list[Group]:
    """The placement groups that other jobs hold, then those that they wait for."""
    mine = ray.get_runtime_context().get_job_id()
    table = ray.util.placement_group_table().items()
    states = {"CREATED": False, "PREPARED": True, "PENDING": True, "RESCHEDULING": True}
    found = [  # the last four bytes of a group's id are its job's
        Group(id_[-len(mine) :], states[group["state"]], list(group["bundles"].values()))
        for id_, group in table
        if group["state"] in states and not id_.endswith(mine)
    ]
    return sorted(found, key=lambda group: group.waits)
