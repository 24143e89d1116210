"""Slots on nodes, and the GPU memory of a process."""

import os
from types import SimpleNamespace

import pytest
import torch

from raydiff.experiment.config import Runtime
from raydiff.models.compute import device
from raydiff.runtime.place import Slot, cap_memory, check_bundles_fit, count_fitting, shape_slot

LAPTOP = {"CPU": 2.0}
ONE = Slot(workers=1, threads=1, gpu_per_worker=0.0, gpu_server=0.0)


@pytest.mark.parametrize(
    ("runtime", "clients", "nodes", "workers"),
    [
        (Runtime(), 3, [{"CPU": 16.0}], 3),  # one per client
        (Runtime(), 8, [LAPTOP], 2),
        (Runtime(gpu_per_worker=0.25), 8, [{"CPU": 64.0, "GPU": 1.0}], 4),
        (Runtime(gpu_per_worker=0.6, gpu_server=0.4), 9, [{"CPU": 9.0, "GPU": 2.0}], 2),  # One shares the server's GPU.
        (Runtime(gpu_per_worker=0.75), 8, [{"CPU": 8.0, "GPU": 1.0}] * 3, 3),
        # A head without CPUs, and two nodes: the coordinator's tenth of a CPU leaves no room for a fourth worker.
        (Runtime(), 8, [{"memory": 1e9}, LAPTOP, LAPTOP], 3),
    ],
)
def test_by_default_a_trial_has_as_many_workers_as_fit(runtime, clients, nodes, workers):
    shape = shape_slot(runtime, threads=1, clients=clients, nodes=nodes)
    assert shape.workers == workers and count_fitting(shape.bundles, nodes) >= 1
    assert count_fitting(ONE.bundles, [LAPTOP]) == 2


@pytest.mark.parametrize(
    ("gpus", "fraction", "workers"),
    [(2, 0.6, 2), (2, 0.5, 4), (2, 0.4, 4), (1, 0.3, 3), (4, 0.75, 4), (2, 1.0, 2), (3, 0.3334, 6), (3, 0.3333, 9)],
)
def test_ray_takes_a_fraction_from_one_gpu(gpus, fraction, workers):
    """Each GPU holds floor(1 / fraction) workers."""
    nodes = [{"CPU": 64.0, "GPU": float(gpus)}]
    assert shape_slot(Runtime(gpu_per_worker=fraction), threads=1, clients=64, nodes=nodes).workers == workers
    assert count_fitting([{"CPU": 1.0, "GPU": fraction}], nodes) == workers


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        (Slot(workers=1, threads=4, gpu_per_worker=0.0, gpu_server=0.0), "needs 4 CPU"),  # never spans nodes
        (
            Slot(workers=1, threads=1, gpu_per_worker=0.5, gpu_server=0.0),
            r"needs 1 CPU and 0\.5 GPU .* 4 CPU and 0 GPU",
        ),
    ],
)
def test_a_slot_that_fits_nowhere_is_refused(shape, says):
    with pytest.raises(ValueError, match=says):
        check_bundles_fit(shape.bundles, shape.total, [LAPTOP, LAPTOP])


def test_bundles_of_a_slot_add_up_to_its_workers_cpus():
    shape = Slot(workers=3, threads=2, gpu_per_worker=0.25, gpu_server=0.5)
    assert sum(b["CPU"] for b in shape.bundles) == pytest.approx(6.0, abs=1e-3)
    assert shape.total == {"CPU": 6.0, "GPU": 1.25}


# --- GPU memory ---


@pytest.fixture
def fractions(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The fractions to which torch is limited on a GPU of 16 GB."""
    limits: list[float] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=16 * 2**30))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda fraction, _: limits.append(fraction))
    return limits


@pytest.mark.parametrize(("fraction", "gb"), [(0.5, 7.25), (0.125, 1.25), (0.0625, 0.25)])
def test_torch_may_take_its_fraction_without_the_context_of_cuda(fraction, gb, fractions):
    cap_memory(fraction)
    assert fractions == pytest.approx([gb / 16], abs=1e-6)


def test_a_fraction_that_cuda_itself_fills_is_refused(fractions):
    with pytest.raises(ValueError, match="raise the fraction"):
        cap_memory(0.02)
    assert fractions == []


@pytest.mark.parametrize("fraction", [0.25, 1.0])
def test_a_fraction_without_cuda_is_refused(fraction, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"sees no CUDA device: set runtime\.gpu_per_worker"):
        cap_memory(fraction)


def test_a_process_without_a_fraction_is_kept_off_the_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    cap_memory(0.0)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_a_trial_with_a_fraction_finds_the_gpu_after_one_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # torch has looked before the variable was empty
    cap_memory(0.0)
    assert device().type == "cpu"
    cap_memory(1.0)
    assert device().type == "cuda"
