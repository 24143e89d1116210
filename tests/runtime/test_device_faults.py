"""Processes exit after a device error, and a GPU on which no fresh process can compute is lost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from raydiff.runtime import device_faults

ECC = torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered\nMore.")
BUSY = torch.AcceleratorError("CUDA error: all CUDA-capable devices are busy or unavailable")


@pytest.mark.parametrize(
    ("error", "exits"),
    [
        (torch.AcceleratorError("CUDA error: device-side assert triggered\nMore."), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), False),
        (torch.AcceleratorError("CUDA error: out of memory"), False),
        (RuntimeError("this trial is poisoned"), False),
        (ValueError("CUDA error"), False),
    ],
)
def test_a_process_exits_after_errors_of_the_device_only(tmp_path, monkeypatch, error, exits):
    def leave(status: int) -> None:
        assert status
        raise SystemExit(status)

    monkeypatch.setattr(os, "_exit", leave)
    with (
        pytest.raises(SystemExit if exits else type(error)),
        device_faults.exit_on_device_error(tmp_path, "a worker"),
    ):
        raise error
    assert device_faults.last_reason(tmp_path) == (f"a worker: {str(error).splitlines()[0]}" if exits else "")


def test_a_damaged_reason_raises_nothing(tmp_path):
    (tmp_path / device_faults.FILE).write_bytes(b"a worker: CUDA err\xefr\n")
    assert device_faults.last_reason(tmp_path).startswith("a worker: CUDA err")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A GPU with a queue of errors; `uses` counts computations on it."""
    fake = SimpleNamespace(errors=[], uses=0)

    def ones(*_: Any, device: str) -> torch.Tensor:
        fake.uses += 1
        if fake.errors:
            raise fake.errors.pop(0)
        return torch.zeros(2)

    monkeypatch.setattr(device_faults.ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "id"))
    monkeypatch.setattr(device_faults.ray.util, "get_node_ip_address", lambda: "10.0.0.7")
    monkeypatch.setattr(device_faults, "RETRY_S", 0.0)
    monkeypatch.setattr(device_faults, "DRIVER", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(device_faults.torch, "ones", ones)
    device_faults.check_gpu.cache_clear()
    yield fake
    device_faults.check_gpu.cache_clear()


def test_a_gpu_on_which_no_try_succeeds_is_lost(gpu):
    gpu.errors = [ECC] * device_faults.TRIES
    with pytest.raises(device_faults.GpuLost, match=r"node 10\.0\.0\.7 is lost \(.* ECC error encountered\)$") as lost:
        device_faults.check_gpu(0.5)
    assert lost.value.node == "id" and gpu.uses == device_faults.TRIES


def test_a_busy_gpu_is_tried_again_and_a_success_is_cached(gpu):
    gpu.errors = [BUSY]
    device_faults.check_gpu(0.5)
    device_faults.check_gpu(0.5)
    assert gpu.uses == 2


def test_a_process_without_a_share_leaves_the_gpu_alone(gpu):
    device_faults.check_gpu(0.0)
    assert gpu.uses == 0


def test_gpus_of_the_driver_that_torch_does_not_find_are_lost(gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    device_faults.check_gpu(0.5)  # The driver has none.
    device_faults.check_gpu.cache_clear()
    (tmp_path / "0000:0b:00.0").mkdir()
    with pytest.raises(device_faults.GpuLost, match="torch finds none"):
        device_faults.check_gpu(0.5)


def test_other_errors_are_raised(gpu):
    gpu.errors = [RuntimeError("this process is poisoned")]
    with pytest.raises(RuntimeError, match="poisoned"):
        device_faults.check_gpu(0.5)
