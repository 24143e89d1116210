"""Device faults: a lack of GPU memory, a broken CUDA context, a lost GPU; and the record of lost processes.

A process whose CUDA context is broken would fail in every later trial, since it is reused: it exits, and Ray starts a
fresh one. If a fresh process cannot compute either, the GPU is lost, and its node is left out.
"""

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import ray
import torch

from raydiff.models.compute import device_lost, out_of_memory
from raydiff.storage.checkpoint import INITIAL
from raydiff.storage.storage import storage_at

FILE = "lost.txt"
DRIVER = Path("/proc/driver/nvidia/gpus")  # One folder for each GPU that the kernel driver has.
# With exclusive compute mode, the previous process may not have released the GPU yet.
TRIES = 3
RETRY_S = 2.0


class GpuLost(Exception):
    """A fresh process cannot compute on its GPU. Its `args`: the id of its node in Ray, and the message."""

    def __str__(self) -> str:
        return str(self.args[1])


class OutOfMemory(RuntimeError):
    """A process needed more GPU memory than its fraction of a GPU has."""


@contextlib.contextmanager
def explain_out_of_memory(who: Callable[[], tuple[str, int]], field: str, fraction: float) -> Iterator[None]:
    """Raise OutOfMemory if this process's fraction of a GPU has too little memory. `who`: (participant, round)."""
    try:
        yield
    except Exception as e:
        if not fraction or not out_of_memory(e) or isinstance(e, ray.exceptions.RayTaskError):  # of another process
            raise
        participant, number = who()
        when = "before round 0" if number == INITIAL else f"in round {number}"
        advice = f"raise --runtime.{field.replace('_', '-')}, or " if fraction < 1 else ""
        raise OutOfMemory(
            f"{participant}, {when}: out of GPU memory with runtime.{field} = {fraction:g} of a GPU: "
            f"{advice}lower the batch size"
        ) from None


@contextlib.contextmanager
def exit_on_device_error(folder: Path, who: str) -> Iterator[None]:
    """Exit this process after an unrecoverable device error, with the reason recorded in the trial's folder."""
    try:
        yield
    except Exception as e:
        if not device_lost(e):
            raise
        record_loss(folder, f"{who}: {_first_line(e)}")
        print(_first_line(e), file=sys.stderr, flush=True)
        os._exit(1)


@functools.cache
def check_gpu(fraction: float) -> None:
    """Raise GpuLost if this process has a fraction of a GPU and cannot compute on it, as long as it never could."""
    why = _gpu_error() if fraction else ""
    for _ in range(TRIES - 1):
        if why:
            time.sleep(RETRY_S)
            why = _gpu_error()
    if why:
        raise GpuLost(
            ray.get_runtime_context().get_node_id(), f"a GPU of node {ray.util.get_node_ip_address()} is lost ({why})"
        )


def _gpu_error() -> str:
    """Return why nothing can be computed on the GPU; "" if it can, or if the machine has none."""
    if not torch.cuda.is_available():
        why = f"torch for CUDA {torch.version.cuda} finds none of those that the driver has"
        return f"{why}: an older driver than it needs?" if any(DRIVER.glob("*")) else ""
    try:
        torch.ones(2, device="cuda").sum().item()
    except Exception as e:
        if not device_lost(e):
            raise
        return _first_line(e)
    return ""


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def record_loss(folder: Path, reason: str) -> None:
    """Write why a process was lost to `lost.txt` in the trial's folder."""
    with contextlib.suppress(OSError):  # The disk may be full.
        storage_at(folder).append(FILE, f"{reason}\n".encode())


def read_losses(folder: Path) -> list[str]:
    """Return the recorded reasons why processes of this trial were lost, oldest first."""
    return (storage_at(folder).get(FILE) or b"").decode(errors="replace").splitlines()
