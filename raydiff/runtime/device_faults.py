"""A process whose accelerator is lost to it ends itself: it is reused, and every later trial in it would fail too.
Where a fresh one cannot compute either, the GPU itself is lost, and the sweep goes on without its node."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import ray
import torch

from raydiff.models.ddpm import device_lost

FILE = "lost.txt"
DRIVER = Path("/proc/driver/nvidia/gpus")  # A folder for each GPU that the kernel has.
TRIES, BETWEEN_S = 3, 2.0  # A GPU that allows one process at a time may not have let go of the last one yet.


@dataclasses.dataclass(eq=False)
class GpuLost(Exception):
    """A fresh process cannot compute on the GPU that it was given: nor will the next one."""

    node: str
    """Its id in Ray."""
    address: str
    why: str

    def __str__(self) -> str:
        return f"a GPU of node {self.address} is lost ({self.why})"


@contextlib.contextmanager
def ending(folder: Path, who: str) -> Iterator[None]:
    """Within, an error of the accelerator that stays ends this process, as a crash would: what it was at is done again
    in a fresh one. Before that it tells why."""
    try:
        yield
    except Exception as e:
        if not device_lost(e):
            raise
        tell(folder, f"{who}: {str(e).strip().splitlines()[0]}")
        os._exit(1)


@functools.cache
def check_gpu(share: float) -> None:
    """Raises GpuLost where this process, which has a share of a GPU, cannot compute on it. Once it could, nothing is
    asked any more: what fails later may be this process's own fault."""
    for left in reversed(range(TRIES)):
        why = _why_not() if share else ""
        if not why:
            return
        if left:
            time.sleep(BETWEEN_S)
    raise GpuLost(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), why)


def _why_not() -> str:
    """Why nothing can be computed on the GPU; "" where it can, or where there is none."""
    if not torch.cuda.is_available():
        return "torch finds none of those that the driver has" if any(DRIVER.glob("*")) else ""
    try:
        torch.ones(2, device="cuda").sum().item()
    except Exception as e:
        if not device_lost(e):
            raise
        return str(e).strip().splitlines()[0]
    return ""


def tell(folder: Path, says: str) -> None:
    """Why a process was lost, on stderr and as the last line of `lost.txt` in the trial's folder."""
    print(says, file=sys.stderr, flush=True)
    with contextlib.suppress(OSError), (folder / FILE).open("a") as f:  # on a full disk
        f.write(says + "\n")


def words(folder: Path) -> list[str]:
    """Why processes of this trial were lost, as far as that was told."""
    path = folder / FILE
    return path.read_text(errors="replace").splitlines() if path.exists() else []


def last_words(folder: Path) -> str:
    """The last of it; "" where nothing was told."""
    return (words(folder) or [""])[-1]
