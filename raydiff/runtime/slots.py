"""What a trial needs of the cluster: its slot, and the checks made before anything waits for it.

A slot is one Tune trial's placement group: bundle 0 is the coordinator (the trainable itself), bundles 1..W its
workers. All trials of a sweep have the same slot, so that the next one starts in the warm processes of the last.
"""

from __future__ import annotations

import contextlib
import math
import os
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from raydiff.experiment.config import Runtime
from raydiff.storage.storage import storage_at

T = TypeVar("T")
CONTEXT = int(0.45 * 2**30)
"""Bytes of each slice that are not torch's: a process's CUDA context and libraries take 0.3 to 0.5 GB."""
COORDINATOR = 0.1  # of one process's CPUs: it works while its workers wait, so a slot is booked as its workers alone


@dataclass(frozen=True)
class Slot:
    """The shape of a trial's placement group."""

    workers: int
    threads: int
    gpu_per_worker: float
    gpu_server: float

    @property
    def bundles(self) -> list[dict[str, float]]:
        """Bundle 0 for the coordinator, then one per worker."""
        share = math.floor(1e4 * self.threads * (1 - COORDINATOR / self.workers)) / 1e4
        coordinator = _without_zeros({"CPU": COORDINATOR * self.threads, "GPU": self.gpu_server})
        worker = _without_zeros({"CPU": share, "GPU": self.gpu_per_worker})
        return [coordinator] + [worker] * self.workers

    @property
    def total(self) -> dict[str, float]:
        """What one trial takes in all."""
        gpu = self.gpu_server + self.workers * self.gpu_per_worker
        return _without_zeros({"CPU": float(self.threads * self.workers), "GPU": gpu})


def slot(runtime: Runtime, *, clients: int, nodes: Sequence[Mapping[str, float]]) -> Slot:
    """The slot of a sweep whose largest trial has this many clients: by default with as many workers as fit on these
    nodes beside the coordinator."""

    def of(workers: int) -> Slot:
        return Slot(min(workers, clients), runtime.threads, runtime.worker_share, runtime.gpu_server)

    if runtime.workers is not None:
        return of(runtime.workers)
    most = min(clients, int(sum(node.get("CPU", 0.0) for node in nodes) / runtime.threads))
    shapes = (of(workers) for workers in range(most, 1, -1))
    return next((shape for shape in shapes if _place(shape.bundles, [dict(node) for node in nodes])), of(1))


def fitting(slot: Slot, nodes: Sequence[Mapping[str, float]]) -> int:
    """How many such slots fit on these nodes at once.

    Raises ValueError if none does, saying what is needed and what there is.
    """
    count = _count(slot, nodes)
    if count == 0:
        total = total_of(nodes)
        raise ValueError(
            f"one trial needs {say(slot.total)} ({slot.workers} workers with {say(slot.bundles[1])} each), "
            f"but the cluster has {say(total)} on {len(nodes)} node(s): lower runtime.workers, runtime.threads "
            "or the GPU shares"
        )
    return count


def share(
    slot: Slot, nodes: Sequence[Mapping[str, float]], others: Sequence[tuple[str, Sequence[Mapping[str, float]]]]
) -> int:
    """How many such slots are a sweep's own on these nodes, beside other jobs with these (job, bundles): all that they
    leave, or an equal part where they leave less. What fits nowhere beside the rest takes nothing."""
    free, beside = [dict(node) for node in nodes], set()
    for job, bundles in others:
        tried = [dict(node) for node in free]
        if _place(bundles, tried):
            free = tried
            beside.add(job)
    return max(_count(slot, free), math.ceil(_count(slot, nodes) / (1 + len(beside))))


def _count(slot: Slot, nodes: Sequence[Mapping[str, float]]) -> int:
    free = [dict(node) for node in nodes]
    count = 0
    while count < 1000 and _place(slot.bundles, free):
        count += 1
    return count


def this_machine() -> dict[str, float]:
    """What a Ray that is started here will offer."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {"CPU": float(os.cpu_count() or 1), "GPU": float(gpus)}


def cap_memory(share: float) -> None:
    """Keep this process to its share of the GPU's memory, so that one client cannot starve its neighbours.

    A process without a share is kept off the GPU: Ray no longer hides GPUs from actors that asked for none. Raises
    ValueError for a share that is too small for any tensor.
    """
    if share == 0 and not torch.cuda.is_initialized():
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if 0 < share < 1 and torch.cuda.is_available():
        total = torch.cuda.get_device_properties(0).total_memory
        if not (left := allowed(share, total)):
            raise ValueError(
                f"{share:g} of a GPU is {share * total / 2**30:.2g} GB, and CUDA alone takes {CONTEXT / 2**30:.2g} GB "
                "of each process: give it a larger share"
            )
        torch.cuda.set_per_process_memory_fraction(left / total, 0)


def allowed(share: float, total: int) -> int:
    """How many bytes torch may take of this share of a GPU of `total` bytes; 0: CUDA itself takes all of it."""
    return max(0, int(share * total) - CONTEXT)


def storage_is_shared(folder: Path, among: Collection[str] | None = None) -> None:
    """Read a nonce back from every node, or from those with these ids. Raises ValueError naming the node that does not
    see the folder, or the bucket for which it is."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    storage, name, nonce = storage_at(folder), f".nonce-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex.encode()
    storage.put(name, nonce)

    def read() -> bytes | None:
        return storage.get(name)

    task = ray.remote(num_cpus=0)(read)
    try:
        for node in (n for n in ray.nodes() if n["Alive"] and (among is None or n["NodeID"] in among)):
            where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            with in_one_sentence():
                if ray.get(task.options(scheduling_strategy=where).remote(), timeout=120) == nonce:
                    continue
            says = f"node {node['NodeManagerAddress']} does not see what the driver writes there"
            if storage.remote:
                says = f"cannot be read: {says}; its credentials must be in every node's environment"
                raise ValueError(f"the bucket {storage.describe('')} {says}")
            says = f"is not shared: {says}; give --runtime.storage a folder that all nodes mount, or a bucket"
            raise ValueError(f"the storage folder {storage.describe('')} {says}")
    finally:
        storage.delete([name])


def called(work: Callable[[], T], *, threads: int, gpu: float) -> T:
    """What this gives as a task on the cluster that has been joined; where there is none, in this process.

    Raises ValueError where it does.
    """
    import ray

    if not ray.is_initialized():
        return work()
    with in_one_sentence():
        found: T = ray.get(ray.remote(num_cpus=threads, num_gpus=gpu, max_retries=0)(_call).remote(work))
        return found


def _call(work: Callable[[], Any]) -> Any:
    return work()


@contextlib.contextmanager
def in_one_sentence() -> Iterator[None]:
    """Within, a ValueError or OSError of a task is a ValueError in its own words, without the task's traceback."""
    from ray.exceptions import RayTaskError

    try:
        yield
    except RayTaskError as e:
        if isinstance(e.cause, (ValueError, OSError)):
            raise ValueError(str(e.cause)) from None
        raise


def unplaced(bundles: Sequence[Mapping[str, float]], nodes: Sequence[Mapping[str, float]]) -> int:
    """How many of these equal bundles find no room on the nodes."""
    free = [dict(node) for node in nodes]
    return sum(not _place([bundle], free) for bundle in bundles)


def _place(bundles: Sequence[Mapping[str, float]], free: list[dict[str, float]]) -> bool:
    """Take the bundles from the first nodes that have room; False (and nothing useful taken) when one finds none."""
    for bundle in bundles:
        node = next((n for n in free if all(n.get(k, 0.0) + 1e-9 >= v for k, v in bundle.items())), None)
        if node is None:
            return False
        for k, v in bundle.items():
            node[k] -= v
    return True


def _without_zeros(resources: Mapping[str, float]) -> dict[str, float]:
    return {k: v for k, v in resources.items() if v > 0}


def total_of(nodes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """What all nodes have together."""
    return {k: sum(node.get(k, 0.0) for node in nodes) for k in ("CPU", "GPU")}


def say(resources: Mapping[str, float]) -> str:
    """ "2 CPU and 0.5 GPU"."""
    return " and ".join(f"{v:g} {k}" for k, v in resources.items())
