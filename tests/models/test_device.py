"""Which device computes, and what its errors mean. The messages are those of an H100 with torch 2.11."""

from __future__ import annotations

import pytest
import torch

from raydiff.models.compute import device, device_lost, out_of_memory


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
