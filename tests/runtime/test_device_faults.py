"""Processes name the setting to raise when memory runs out, and exit after other device errors; lost GPUs."""

import dataclasses
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch

from raydiff.experiment import trial
from raydiff.federated.client import Client
from raydiff.runtime import device_faults, worker
from raydiff.runtime.coordinator import Coordinator
from raydiff.runtime.device_faults import OutOfMemory
from raydiff.runtime.place import Slot
from raydiff.storage.checkpoint import INITIAL

ECC = torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered\nMore.")
BUSY = torch.AcceleratorError("CUDA error: all CUDA-capable devices are busy or unavailable")


@pytest.mark.parametrize(
    ("error", "exits"),
    [
        (torch.AcceleratorError("CUDA error: device-side assert triggered\nMore."), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), False),
        (RuntimeError("this trial is poisoned"), False),
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
    assert device_faults.read_losses(tmp_path) == [f"a worker: {str(error).splitlines()[0]}"] * exits


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
    assert lost.value.args[0] == "id" and gpu.uses == device_faults.TRIES


def test_a_busy_gpu_is_tried_again_a_success_is_cached_and_other_errors_are_raised(gpu):
    device_faults.check_gpu(0.0)
    assert gpu.uses == 0
    gpu.errors = [BUSY]
    device_faults.check_gpu(0.5)
    device_faults.check_gpu(0.5)
    assert gpu.uses == 2
    device_faults.check_gpu.cache_clear()
    gpu.errors = [RuntimeError("this process is poisoned")]
    with pytest.raises(RuntimeError, match="poisoned"):
        device_faults.check_gpu(0.5)


def test_gpus_of_the_driver_that_torch_does_not_find_are_lost(gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    device_faults.check_gpu(0.5)  # The driver has none.
    device_faults.check_gpu.cache_clear()
    (tmp_path / "0000:0b:00.0").mkdir()
    with pytest.raises(
        device_faults.GpuLost, match=r"torch for CUDA \S+ finds none .* an older driver than it needs\?"
    ):
        device_faults.check_gpu(0.5)


# --- out of memory ---

LACKS = {
    "torch": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
}


@pytest.mark.parametrize("lack", LACKS.values(), ids=LACKS)
@pytest.mark.parametrize("fraction", [0.25, 0.0])
def test_a_worker_names_the_client_and_the_setting(tiny, tmp_path, monkeypatch, lack, fraction):
    """Without a fraction of a GPU, the error stays as it is."""

    def run(*_):
        raise lack

    monkeypatch.setattr(worker.place, "cap_memory", lambda _: None)
    monkeypatch.setattr(device_faults, "check_gpu", lambda _: None)
    this = trial.open_trial(dataclasses.replace(tiny, evaluation=None), tmp_path / "s")
    hosting = worker.Worker()
    hosting.host(this, [0, 1], fraction)
    monkeypatch.setattr(Client, "run", run)
    with pytest.raises(OutOfMemory if fraction else type(lack)) as e:
        hosting.run(this.experiment.digest, [1], {}, 3, 0.0)
    if fraction:
        arrived = str(pickle.loads(pickle.dumps(e.value)))  # as it travels
        assert arrived.startswith("client 1, in round 3: out of GPU memory with runtime.gpu_per_worker = 0.25 of a GPU")


@pytest.mark.parametrize("lack", LACKS.values(), ids=LACKS)
def test_a_coordinator_names_its_setting(lack):
    def lacking():
        raise lack
        yield

    coordinator = object.__new__(Coordinator)
    coordinator._trial, coordinator._round = None, 1
    coordinator._results = lacking()
    coordinator._slot = Slot(workers=1, threads=1, gpu_per_worker=0.0, gpu_server=0.5)
    assert coordinator.step()["failed"].startswith("the server, in round 2: out of GPU memory with runtime.gpu_server")


def test_a_lack_of_memory_in_a_worker_is_not_the_coordinators():
    lack = ray.exceptions.RayTaskError("run", "CUDA out of memory", LACKS["torch"]).as_instanceof_cause()
    with pytest.raises(torch.OutOfMemoryError), device_faults.explain_out_of_memory(lambda: ("", 0), "gpu_server", 0.5):
        raise lack


@pytest.mark.parametrize(
    ("fraction", "number", "says"),
    [
        (0.5, 2, "in round 2: .*raise --runtime.gpu-server, or lower the batch size$"),
        (1.0, 2, "1 of a GPU: lower the batch size$"),
        (0.5, INITIAL, "before round 0"),
    ],
)
def test_the_advice_is_a_larger_fraction_or_a_smaller_batch(fraction, number, says):
    lacking = device_faults.explain_out_of_memory(lambda: ("the server", number), "gpu_server", fraction)
    with pytest.raises(OutOfMemory, match=says), lacking:
        raise LACKS["torch"]
