"""Resources of a trial: the shape of its placement group, how many such groups the nodes hold, and its GPU memory.

All trials of a sweep have the same slot, so that the next trial reuses the processes of the last.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from raydiff.experiment.config import Runtime
from raydiff.experiment.trial import Trial
from raydiff.federated.rounds import ClientExecutor
from raydiff.models.training import Train

Resources = Mapping[str, float]
Place = Callable[[Trial], tuple[ClientExecutor, Train | None]]
"""Makes a trial's executor, and what trains its server's models in place of this process."""
CUDA_CONTEXT_BYTES = int(0.75 * 2**30)  # Outside torch a process took 0.67 to 0.71 GiB on an H100 (torch 2.11).
COORDINATOR = 0.1  # CPUs per thread: it computes while its workers wait, so a slot's CPUs are those of its workers.
MAX_SLOTS = 1000
ROUNDING = 1e-9  # Ray counts resources in units of 1e-4.


@dataclass(frozen=True)
class Slot:
    """The shape of a Tune trial's placement group."""

    workers: int
    threads: int
    gpu_per_worker: float
    gpu_server: float

    @property
    def bundles(self) -> list[dict[str, float]]:
        """Bundle 0 for the coordinator, then one per worker."""
        worker_cpu = math.floor(1e4 * self.threads * (1 - COORDINATOR / self.workers)) / 1e4
        coordinator = bundle(COORDINATOR * self.threads, self.gpu_server)
        return [coordinator] + [bundle(worker_cpu, self.gpu_per_worker)] * self.workers

    @property
    def total(self) -> dict[str, float]:
        """Resources of the whole slot."""
        return bundle(self.threads * self.workers, self.gpu_server + self.workers * self.gpu_per_worker)


def bundle(cpu: float, gpu: float) -> dict[str, float]:
    """Return the resources of one process."""
    return {"CPU": float(cpu), "GPU": gpu} if gpu else {"CPU": float(cpu)}


def shape_slot(runtime: Runtime, *, threads: int, clients: int, nodes: Sequence[Resources]) -> Slot:
    """Return the slot of a sweep whose largest trial has this many clients, by default with all workers that fit."""

    def of(workers: int) -> Slot:
        return Slot(min(workers, clients), threads, runtime.gpu_per_worker, runtime.gpu_server)

    if runtime.workers is not None:
        return of(runtime.workers)
    most = min(clients, int(total_of(nodes)["CPU"] / threads))
    shapes = (of(workers) for workers in range(most, 1, -1))
    return next((shape for shape in shapes if _place(shape.bundles, _free(nodes))), of(1))


def check_bundles_fit(bundles: Sequence[Resources], total: Resources, nodes: Sequence[Resources]) -> None:
    """Raise ValueError if one trial's bundles, which have these resources in `total`, do not fit on these nodes."""
    if not count_fitting(bundles, nodes):
        raise ValueError(
            f"one trial needs {format_resources(total)} for {len(bundles)} processes, but the cluster has "
            f"{format_resources(total_of(nodes))} on {len(nodes)} node(s): lower runtime.workers, numerics.threads or "
            "the fractions of a GPU"
        )


def count_fitting(bundles: Sequence[Resources], nodes: Sequence[Resources]) -> int:
    """Return how many times these bundles fit on these nodes at once, other jobs apart."""
    free = _free(nodes)
    return next((count for count in range(MAX_SLOTS) if not _place(bundles, free)), MAX_SLOTS)


def _free(nodes: Sequence[Resources]) -> list[dict[str, float]]:
    """Copies of the nodes' resources, in which each GPU is a resource of its own."""
    free = []
    for node in nodes:
        gpus = {f"GPU {i}": 1.0 for i in range(int(node.get("GPU", 0.0)))}
        free.append({k: v for k, v in node.items() if k != "GPU"} | gpus)
    return free


def _place(bundles: Sequence[Resources], free: Sequence[dict[str, float]]) -> bool:
    """Take each bundle from the first node on which it fits; False once one fits on none."""
    return all(any(_take(bundle, node) for node in free) for bundle in bundles)


def _take(bundle: Resources, node: dict[str, float]) -> bool:
    """Take a bundle from a node if it fits. Ray takes a fraction of a GPU from one device, the fullest that has it."""
    gpu = bundle.get("GPU", 0.0)
    devices = [name for name in node if name.startswith("GPU ") and node[name] + ROUNDING >= gpu]
    device = min(devices, key=node.__getitem__, default="GPU")
    needed = {device if name == "GPU" else name: amount for name, amount in bundle.items()}
    if any(node.get(name, 0.0) + ROUNDING < amount for name, amount in needed.items()):
        return False
    for name, amount in needed.items():
        node[name] -= amount
    return True


def this_machine() -> dict[str, float]:
    """Return the resources that a Ray started on this machine offers."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {"CPU": float(os.cpu_count() or 1), "GPU": float(gpus)}


def cap_memory(fraction: float) -> None:
    """Limit this process to a fraction of the GPU's memory.

    With 0 it is kept off the GPU: Ray does not hide GPUs from actors that ask for none. Raises ValueError if there
    is no CUDA device, or the fraction holds no tensor.
    """
    if fraction == 0:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # `models.compute.device` obeys it, also after torch has looked.
        return
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "" and torch.cuda.is_available():
        del os.environ["CUDA_VISIBLE_DEVICES"]  # An earlier trial of this process had no GPU.
    if not torch.cuda.is_available():
        raise ValueError(
            f"{fraction:g} of a GPU is set, but this process sees no CUDA device: set runtime.gpu_per_worker and "
            "runtime.gpu_server to 0 to compute on the CPU"
        )
    if fraction < 1:
        total = torch.cuda.get_device_properties(0).total_memory
        left = int(fraction * total) - CUDA_CONTEXT_BYTES
        if left <= 0:
            raise ValueError(
                f"{fraction:g} of a GPU is {fraction * total / 2**30:.2g} GB, but CUDA itself takes "
                f"{CUDA_CONTEXT_BYTES / 2**30:.2g} GB of each process: raise the fraction"
            )
        torch.cuda.set_per_process_memory_fraction(left / total, 0)


def total_of(nodes: Sequence[Resources]) -> dict[str, float]:
    """Return the CPUs and GPUs of all nodes together."""
    return {k: sum(node.get(k, 0.0) for node in nodes) for k in ("CPU", "GPU")}


def format_resources(resources: Resources) -> str:
    """Format resources as "2 CPU and 0.5 GPU"."""
    return " and ".join(f"{v:g} {k}" for k, v in resources.items())
