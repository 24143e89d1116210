"""Processes that end after an unrecoverable CUDA error, and GPUs that are lost."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from raydiff.runtime import device_faults as lost


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (torch.AcceleratorError("CUDA error: device-side assert triggered\nMore."), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), False),
        (torch.AcceleratorError("CUDA error: out of memory"), False),
        (RuntimeError("this trial is poisoned"), False),
        (ValueError("CUDA error"), False),
    ],
)
def test_which_errors_end_a_process(tmp_path, monkeypatch, error, ends):
    def leave(status):
        assert status
        raise SystemExit(status)

    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(SystemExit if ends else type(error)), lost.ending(tmp_path, "a worker"):
        raise error
    assert lost.last_words(tmp_path) == (f"a worker: {str(error).splitlines()[0]}" if ends else "")


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """(what the GPU does when it is used, one after the other; how often it was used), in a fresh process of Ray."""
    monkeypatch.setattr(lost.ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "id"))
    monkeypatch.setattr(lost.ray.util, "get_node_ip_address", lambda: "10.0.0.7")
    monkeypatch.setattr(lost, "BETWEEN_S", 0.0)
    monkeypatch.setattr(lost, "DRIVER", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    does, uses = [], []

    def ones(*_, device):
        uses.append(device)
        if isinstance(does[0], Exception):
            raise does.pop(0)
        return torch.zeros(2)

    monkeypatch.setattr(lost.torch, "ones", ones)
    lost.check_gpu.cache_clear()
    yield does, uses
    lost.check_gpu.cache_clear()


def test_a_gpu_on_which_no_fresh_process_can_compute_is_lost(asked):
    does, uses = asked
    does += [torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered\nMore.")] * lost.TRIES
    with pytest.raises(lost.GpuLost) as found:
        lost.check_gpu(0.5)
    assert str(found.value) == "a GPU of node 10.0.0.7 is lost (CUDA error: uncorrectable ECC error encountered)"
    assert found.value.node == "id" and uses == ["cuda"] * lost.TRIES


def test_a_gpu_that_is_busy_at_first_is_not_lost_and_one_that_answered_is_asked_no_more(asked):
    does, uses = asked
    does += [torch.AcceleratorError("CUDA error: all CUDA-capable devices are busy or unavailable"), None]
    lost.check_gpu(0.5)
    lost.check_gpu(0.5)
    assert uses == ["cuda"] * 2


def test_who_has_no_share_of_a_gpu_leaves_it_alone(asked):
    does, uses = asked
    does.append(None)
    lost.check_gpu(0.0)
    assert uses == []


def test_gpus_that_torch_does_not_find_are_lost_where_the_driver_has_them(asked, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    lost.check_gpu(0.5)  # GPUs that are but numbers
    lost.check_gpu.cache_clear()
    (tmp_path / "0000:0b:00.0").mkdir()
    with pytest.raises(lost.GpuLost, match="torch finds none of those that the driver has"):
        lost.check_gpu(0.5)


def test_an_error_of_something_else_is_none_of_the_gpu(asked):
    does, _ = asked
    does.append(RuntimeError("this process is poisoned"))
    with pytest.raises(RuntimeError, match="poisoned"):
        lost.check_gpu(0.5)


def test_words_with_a_flipped_bit_end_no_sweep(tmp_path):
    (tmp_path / lost.FILE).write_bytes(b"a worker: CUDA err\xefr\n")
    assert lost.last_words(tmp_path).startswith("a worker: CUDA err")
