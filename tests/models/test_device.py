"""Which device computes, what its errors mean, and memory. The messages are those of an H100 with torch 2.11."""

import platform
import resource
from collections.abc import Callable

import pytest
import torch

from raydiff.models.compute import compute_with, device, device_lost, out_of_memory


@pytest.mark.parametrize(
    ("error", "lost", "memory"),
    [
        (torch.AcceleratorError("CUDA error: device-side assert triggered"), True, False),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), True, False),
        (RuntimeError("CUDA error: unspecified launch failure"), True, False),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 16.00 MiB."), False, True),
        (torch.AcceleratorError("CUDA error: out of memory"), False, True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), False, True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), False, True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False, False),
        (ValueError("CUDA error"), False, False),
    ],
)
def test_an_error_without_memory_leaves_the_device_usable(error: BaseException, lost: bool, memory: bool) -> None:
    assert (device_lost(error), out_of_memory(error)) == (lost, memory)


@pytest.mark.parametrize(("visible", "there", "kind"), [("", True, "cpu"), ("0", True, "cuda"), ("0", False, "cpu")])
def test_an_empty_list_of_gpus_counts_after_torch_has_looked(
    monkeypatch: pytest.MonkeyPatch, visible: str, there: bool, kind: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert device().type == kind


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left as they are")
def test_a_large_tensor_takes_the_memory_of_one_that_is_freed() -> None:
    compute_with(torch.get_num_threads(), "float32")
    pages = [_new_pages(lambda: torch.ones(2**24)) for _ in range(20)]  # The first ones do not fit, by their alignment.
    assert min(pages) * resource.getpagesize() < 2**24, pages  # of 2**26 bytes


def _new_pages(work: Callable[[], object]) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    work()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
