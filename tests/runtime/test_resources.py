"""Slots and the checks before a sweep."""

from __future__ import annotations

import pytest

from raydiff.experiment.config import Runtime
from raydiff.runtime.slots import Slot, fitting, share, slot

LAPTOP = {"CPU": 2.0}


def test_a_slot_of_one_worker_fits_once_per_core():
    assert fitting(slot(Runtime(workers=1), clients=4, nodes=[LAPTOP]), [LAPTOP]) == 2


def test_auto_gives_each_client_a_worker_where_there_is_room():
    assert slot(Runtime(), clients=3, nodes=[{"CPU": 16.0}]).workers == 3
    assert slot(Runtime(), clients=8, nodes=[LAPTOP]).workers == 2
    assert slot(Runtime(gpu_per_worker=0.25), clients=8, nodes=[{"CPU": 64.0, "GPU": 1.0}]).workers == 4


def test_auto_takes_no_more_workers_than_fit_on_the_nodes_that_there_are():
    nodes = [{"memory": 1e9}, {"CPU": 2.0}, {"CPU": 2.0}]  # a head without CPUs, and two nodes
    shape = slot(Runtime(), clients=8, nodes=nodes)
    assert shape.workers == 3  # the coordinator's tenth of a CPU leaves no room for a fourth
    assert fitting(shape, nodes) == 1
    assert slot(Runtime(gpu_per_worker=0.75), clients=8, nodes=[{"CPU": 8.0, "GPU": 1.0}] * 3).workers == 3


def test_a_worker_never_spans_nodes():
    shape = Slot(workers=1, threads=4, gpu_per_worker=0.0, gpu_server=0.0)
    with pytest.raises(ValueError, match="needs 4 CPU"):
        fitting(shape, [{"CPU": 2.0}, {"CPU": 2.0}])


def test_a_gpu_share_without_a_gpu_is_refused_in_one_sentence():
    shape = slot(Runtime(gpu_per_worker=0.5, workers=1), clients=2, nodes=[LAPTOP])
    with pytest.raises(ValueError, match=r"needs 1 CPU and 0\.5 GPU .* has 2 CPU and 0 GPU") as e:
        fitting(shape, [LAPTOP])
    assert "\n" not in str(e.value)


def test_bundles_of_a_slot_add_up_to_its_workers_cpus():
    shape = Slot(workers=3, threads=2, gpu_per_worker=0.25, gpu_server=0.5)
    assert sum(b["CPU"] for b in shape.bundles) == pytest.approx(6.0, abs=1e-3)
    assert shape.total == {"CPU": 6.0, "GPU": 1.25}


ONE = Slot(workers=1, threads=1, gpu_per_worker=0.0, gpu_server=0.0)


@pytest.mark.parametrize(
    ("others", "own"),
    [
        ([], 4),
        (["a"], 3),  # it holds one, and wants no more
        (["a"] * 2, 2),
        (["a"] * 4, 2),  # it holds, or waits for, all there is: half is one's own
        (["a"] * 4 + ["b"] * 3, 2),  # of b nothing has room beside a, so it takes nothing
        (["a"] * 2 + ["b"] * 2, 2),  # a third, rounded up: nothing stays idle
    ],
)
def test_what_is_a_sweeps_own_beside_other_jobs(others, own):
    assert share(ONE, [LAPTOP] * 2, [(job, ONE.bundles) for job in others]) == own


def test_a_job_that_waits_for_what_no_node_has_takes_nothing():
    assert share(ONE, [LAPTOP], [("a", [{"CPU": 1.0, "TPU": 1.0}]), ("b", [{"CPU": 3.0}])]) == 2
    assert share(ONE, [], [("a", ONE.bundles)]) == 0
