"""The Ray cluster of a command: joined if RAY_ADDRESS names one, else started on this machine, and left in order."""

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
MAX_FOLDER_CHARS = 40  # Socket paths below Ray's folder take 65 more characters, and Linux allows 107.


@contextlib.contextmanager
def cluster(*, only_join: bool = False) -> Iterator[list[dict[str, float]]]:
    """Join the cluster that RAY_ADDRESS names (a submitted job has it), or start a local one.

    Args:
        only_join: Never start a cluster; without one to join, yield this machine's resources.

    Yields:
        Each node's resources.

    Raises:
        ValueError: Ray does not start.
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
            with _sigterm_blocked():
                ray.init(address="local", include_dashboard=False, _temp_dir=_own_folder(), **quiet)
    except Exception as e:  # Ray raises a plain Exception if its processes start too slowly.
        raise ValueError(f"Ray did not start: {' '.join(str(e).split())}") from e
    with contextlib.suppress(ValueError):  # not in the main thread, where Ray set none either
        signal.signal(signal.SIGTERM, terminated)  # Ray's handler ends the process before outcomes are written.
    try:
        yield nodes()
    finally:
        _leave()


@contextlib.contextmanager
def _sigterm_blocked() -> Iterator[None]:
    """Block SIGTERM in processes that are started within, as Ray blocks SIGINT.

    `timeout` and job schedulers send it to whole process groups, and a sweep needs Ray's processes to end in order.
    The driver ends them with SIGKILL.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _own_folder() -> str | None:
    """Make a folder for a local Ray's sockets and logs that only this user can open; None if its path is too long.

    In Ray's default folder every user of the machine may replace a socket. Raises ValueError if the folder exists with
    another owner or mode.
    """
    folder = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / f"raydiff-{os.getuid()}"
    inside = f"{folder}/r"  # Ray makes the folder that it is given readable to everybody.
    if len(inside) > MAX_FOLDER_CHARS:
        return None
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise ValueError(f"{folder}, for Ray's sockets, must be a folder of yours alone (mode 700): remove it")
    return inside


def _leave() -> None:
    """Leave Ray while other threads run, such as the writer to MLflow.

    If garbage collection in any thread finds a reference to a Ray object during the shutdown, Ray 2.60 ends the
    process without a message (since ray-project/ray#19115).
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
    """Return the resources of each node that is alive and not being drained, `without` those with these ids."""
    return list(present(without=without).values())


def present(*, without: Collection[str] = ()) -> dict[str, dict[str, float]]:
    """Return node id -> resources, as `nodes`."""
    excluded = {*ray._private.state.state.get_draining_nodes(), *without}  # Ray 2.60 has no public API for it.
    return {n["NodeID"]: n["Resources"] for n in ray.nodes() if n["Alive"] and n["NodeID"] not in excluded}


def grows() -> bool:
    """Return whether an autoscaler may add nodes: `ray up` and KubeRay label each node with its group."""
    return ray.is_initialized() and any("ray.io/node-group" in n["Labels"] for n in ray.nodes() if n["Alive"])


@dataclass(frozen=True)
class Group:
    """A placement group of another job."""

    job: str
    waits: bool
    bundles: list[dict[str, float]]


def groups_of_others() -> list[Group]:
    """Return the placement groups of other jobs: first those that are placed, then those that wait."""
    mine = ray.get_runtime_context().get_job_id()
    table = ray.util.placement_group_table().items()
    states = {"CREATED": False, "PREPARED": True, "PENDING": True, "RESCHEDULING": True}
    groups = [  # A group's id ends with its job's.
        Group(id_[-len(mine) :], states[group["state"]], list(group["bundles"].values()))
        for id_, group in table
        if group["state"] in states and not id_.endswith(mine)
    ]
    return sorted(groups, key=lambda group: group.waits)
