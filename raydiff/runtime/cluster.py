"""The Ray cluster of a command: joined if RAY_ADDRESS names one, else started on this machine, and left in order."""

import contextlib
import gc
import os
import signal
import socket
import stat
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextvars import copy_context
from pathlib import Path
from typing import Any

import ray
from ray.core.generated.common_pb2 import NODE_OUT_OF_MEMORY  # type: ignore[attr-defined]
from ray.core.generated.gcs_pb2 import WorkerTableData  # type: ignore[attr-defined]
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raydiff import process
from raydiff.storage.storage import storage_at

NODE = "ray.io/node-id"  # Ray's label of each node
RECENT_S = 60.0  # A process is reported dead seconds after Ray has killed it, and clocks of nodes differ.
MORE_MEMORY = "run fewer workers or trials at once, or raise RAY_memory_usage_threshold (0.95) before Ray starts"
MAX_FOLDER_CHARS = 40  # Socket paths below Ray's folder take 65 more characters, and Linux allows 107.
NEEDS = (
    f"; it keeps a token in ~/.ray and sockets in RAY_TMPDIR (at most {MAX_FOLDER_CHARS} characters): set HOME and "
    "RAY_TMPDIR to folders that you may write, or RAY_AUTH_TOKEN_PATH to a file with 32 or more random letters"
)
# Ray 2.60 ends a driver 60 s after it has lost the head.
HEAD_S = 30.0
CHECK_HEAD_S = 5.0


@contextlib.contextmanager
def join_cluster() -> Iterator[list[dict[str, float]]]:
    """Join or start Ray, and yield each node's resources. Raises ValueError if none starts.

    It is the Ray of this process, which is left as it was; else the cluster that RAY_ADDRESS names, as in a
    submitted job; else a local one that ends with the block.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    if address.startswith("ray://") or ray.util.client.ray.is_connected():
        raise ValueError("a sweep does not run through Ray Client (ray://): submit it with `ray job submit`")
    if ray.is_initialized():
        yield list(list_nodes().values())
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    terminated = signal.getsignal(signal.SIGTERM)
    try:
        with process.waiting(f"the Ray cluster {address}" if address else "Ray to start on this machine"):
            ray.init(**quiet) if address else _start_local(quiet)
    except Exception as e:  # Ray raises a plain Exception if its processes start too slowly.
        remedy = NEEDS if isinstance(e, OSError) else ""
        if address:
            remedy = f"; unset RAY_ADDRESS={address} for a Ray on this machine"
        raise ValueError(f"Ray did not start: {' '.join(str(e).split())}{remedy}") from e
    with contextlib.suppress(ValueError):  # not in the main thread, where Ray set none either
        signal.signal(signal.SIGTERM, terminated)  # Ray's handler ends the process before outcomes are written.
    try:
        yield list(list_nodes().values())
    finally:
        # If garbage collection in any thread (such as MLflow's writer) finds a reference to a Ray object during the
        # shutdown, Ray 2.60 ends the process without a message (since ray-project/ray#19115).
        gc.collect()
        gc.disable()
        try:
            with process.waiting("Ray to end"):
                ray.shutdown()
        finally:
            gc.enable()


def _start_local(quiet: dict[str, Any]) -> None:
    """Start Ray with signals blocked that terminals and batch systems send to its processes too."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, process.STOP_SIGNALS)
    try:
        ray.init(address="local", include_dashboard=False, _temp_dir=_own_folder(), **quiet)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _own_folder() -> str | None:
    """Make a folder for Ray's sockets that only this user can open; None if its path is too long. Raises ValueError."""
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


def list_nodes(*, without: Collection[str] = ()) -> dict[str, dict[str, float]]:
    """Return node id -> resources of each node that is alive and not being drained, `without` those with these ids."""
    excluded = {*ray._private.state.state.get_draining_nodes(), *without}  # Ray 2.60 has no public API for it.
    nodes = {n["NodeID"]: dict(n["Resources"]) for n in ray.nodes() if n["Alive"] and n["NodeID"] not in excluded}
    context = ray.get_runtime_context()
    if context.get_task_id() and (here := nodes.get(context.get_node_id())):  # A task or actor runs the sweep.
        here.update({k: here.get(k, 0) - v for k, v in context.get_assigned_resources().items()})
    return nodes


@contextlib.contextmanager
def watch_head(lost: Callable[[str], None]) -> Iterator[None]:
    """Call `lost`, in a thread, with the reason, once Ray's head has not answered for HEAD_S."""
    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    over = threading.Event()

    def watch() -> None:
        silent_since = None
        while not over.wait(CHECK_HEAD_S):
            try:
                socket.create_connection((host.strip("[]"), int(port)), CHECK_HEAD_S).close()
                silent_since = None
            except OSError:
                silent_since = silent_since or time.monotonic()
                if time.monotonic() - silent_since >= HEAD_S:
                    return lost(f"Ray's head at {host}:{port} has not answered for {HEAD_S:g} s")

    threading.Thread(target=copy_context().run, args=(watch,), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def explain_memory_kill() -> str:
    """Return why Ray has just killed a process of this job, if it was for lack of memory; "" if it killed none."""
    # Ray 2.60 has no public API for it.
    table = ray._private.state.state._global_state_accessor.get_worker_table()  # type: ignore[union-attr]
    job = f"job ID={ray.get_runtime_context().get_job_id()}"
    since_ms = 1000 * (time.time() - RECENT_S)
    rows = [row for row in map(WorkerTableData.FromString, table) if row.exit_type == NODE_OUT_OF_MEMORY]
    killed = {row.end_time_ms: row.exit_detail for row in rows if row.end_time_ms > since_ms and job in row.exit_detail}
    return f"Ray: {killed[max(killed)].splitlines()[0]}: {MORE_MEMORY}" if killed else ""


def is_autoscaled() -> bool:
    """Return whether an autoscaler may add nodes: `ray up` and KubeRay label each node with its group."""
    return ray.is_initialized() and any("ray.io/node-group" in n["Labels"] for n in ray.nodes() if n["Alive"])


def check_shared_storage(folder: Path, among: Collection[str] | None = None) -> None:
    """Read a nonce back from every node, or from those with these ids. Raises ValueError naming the node that fails."""
    storage = storage_at(folder)
    name = f".nonce-{uuid.uuid4().hex[:8]}"
    nonce = uuid.uuid4().hex.encode()
    storage.put(name, nonce)
    task = ray.remote(num_cpus=0)(lambda: storage.get(name))
    try:
        for node in (n for n in ray.nodes() if n["Alive"] and (among is None or n["NodeID"] in among)):
            on_node = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            address = node["NodeManagerAddress"]
            with in_one_sentence(), process.waiting(f"node {address} to read {storage.describe('')}"):
                seen = ray.get(task.options(scheduling_strategy=on_node).remote(), timeout=120) == nonce
            if not seen:
                raise ValueError(
                    f"node {address} does not see what the driver writes to {storage.describe('')}: "
                    "set runtime.storage to a folder that all nodes mount, or to a bucket whose credentials are in "
                    "every node's environment"
                )
    finally:
        storage.delete([name])


@contextlib.contextmanager
def in_one_sentence() -> Iterator[None]:
    """Turn a ValueError or OSError of a Ray task into a ValueError without the task's traceback."""
    try:
        yield
    except RayTaskError as e:
        if isinstance(e.cause, (ValueError, OSError)):
            raise ValueError(str(e.cause)) from None
        raise
