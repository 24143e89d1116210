"""Where and how models are computed: the device, precision, chunks of records, checks for values that are not finite.

Also which errors of an accelerator end a process, and which only ask for less memory.
"""

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Literal, TypeVar

import torch
from torch import Tensor

from raydiff.tree import Params, finite

Piece = TypeVar("Piece")
Precision = Literal["float32", "tf32", "bfloat16"]

ON_PROGRESS: ContextVar[Callable[[], None] | None] = ContextVar("alive", default=None)
"""Callback that reports progress during long work without training steps (`federated.heartbeat`)."""

CHUNK = 4096  # records per forward pass when nothing is trained: bounds memory, does not change results
# of malloc.h
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
GPU_CHUNK = 1024  # On an H100 a pass of 4096 at 32x32 with attention asked for 6 GiB at once.


def device() -> torch.device:
    """The process's accelerator, else the CPU. Torch reads CUDA_VISIBLE_DEVICES once; empty, it counts at any time."""
    kept_off = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    return torch.device("cuda" if not kept_off and torch.cuda.is_available() else "cpu")


def compute_with(threads: int, precision: Precision) -> None:
    """Set threads and float32 precision of this process, and that it keeps freed memory for its next tensors.

    torch's default on a GPU is TF32 in convolutions only.
    """
    _keep_freed_memory()
    torch.set_num_threads(threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"


def _keep_freed_memory() -> None:
    """Let glibc reuse blocks of up to 256 MB, and keep up to 1 GB at the end of the heap.

    By default a tensor of over 32 MB is always new memory, and filling it takes twice as long. Other C libraries stay
    as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 2**28)
        mallopt(M_TRIM_THRESHOLD, 2**30)


def out_of_memory(error: BaseException) -> bool:
    """Whether the accelerator had no memory left, also for the workspace of a library (cuBLAS, cuDNN)."""
    marks = ("out of memory", "STATUS_ALLOC_FAILED")
    lacking = isinstance(error, RuntimeError) and any(mark in str(error) for mark in marks)
    return lacking or isinstance(error, torch.OutOfMemoryError)


def device_lost(error: BaseException) -> bool:
    """Whether this is an error of the accelerator, which stays in its process: whatever is computed next fails too."""
    of_cuda = isinstance(error, RuntimeError) and "CUDA error" in str(error)
    return (of_cuda or isinstance(error, torch.AcceleratorError)) and not out_of_memory(error)


def frozen(call: Callable[..., Tensor], params: Params) -> Callable[..., Tensor]:
    """`call(params, *inputs)` as a function of inputs (N, ...), `CHUNK` rows at a time, without gradients.

    It runs on the accelerator if there is one; results are where the inputs are. Raises NotFinite.
    """
    where = device()
    bound = {k: finite(v, "the model's weights").to(where) for k, v in params.items()}

    @torch.no_grad()
    def chunked(*inputs: Tensor) -> Tensor:
        home = inputs[0].device
        parts = zip(*(x.split(CHUNK if where.type == "cpu" else GPU_CHUNK) for x in inputs), strict=True)
        outputs = torch.cat([call(bound, *(p.to(where) for p in part)).to(home) for part in with_progress(parts)])
        return finite(outputs, "the model's outputs")

    return chunked


def with_progress(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield the pieces, and report progress at each (`ON_PROGRESS`)."""
    report = ON_PROGRESS.get()
    for piece in pieces:
        if report is not None:
            report()
        yield piece
