"""Slices of a GPU's memory: measured by a meter that is injected, and told where they are too small."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from raydiff.data.partition import Iid
from raydiff.experiment import trial
from raydiff.experiment.config import Experiment, Runtime
from raydiff.experiment.overrides import override
from raydiff.federated.client import Client
from raydiff.methods import METHODS
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.localonly import LocalOnly
from raydiff.models import lockstep as cohort
from raydiff.models.training import Task
from raydiff.privacy.client_level import ClientPrivacy
from raydiff.runtime import gpu_memory, tuner
from raydiff.runtime.actors import Worker
from raydiff.runtime.plan import Planned
from raydiff.runtime.slots import cap_memory, slot

GB = 2**30


class Fake:
    """A meter of a GPU of 80 GB: it tells the next of the given peaks each time that it is started."""

    def __init__(self, *peaks: int) -> None:
        self.peaks = list(peaks)
        self.started = 0

    def start(self) -> None:
        self.started += 1

    def peak(self) -> int:
        return self.peaks[self.started - 1]

    def total(self) -> int:
        return 80 * GB


def test_a_slice_is_the_peak_and_a_fifth() -> None:
    share = gpu_memory.share_of(19 * GB, 80 * GB)
    assert share == pytest.approx((1.2 * 19 + 0.45) / 80, abs=1e-4) == 0.2907
    assert gpu_memory.share_of(1, 80 * GB) == 0.0057  # CUDA's own, in Ray's unit
    with pytest.raises(ValueError, match=r"^a worker needs 84 GB \(.*\), but a GPU has 79.6 GB for it: lower the bat"):
        gpu_memory.share_of(70 * GB, 80 * GB)


def test_the_probe_is_one_step_and_one_evaluation(tiny: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The larger of the two peaks counts."""
    seen: list[str] = []
    alone, evaluate = Task.alone, Client.evaluate

    def spied(self):
        seen.append(f"{len(self.steps)} step of {self.training.batch}, {len(self.images)} records")
        return alone(self)

    def spied_evaluate(self, server, number, how):
        seen.append("evaluation")
        report = evaluate(self, server, number, how)
        assert report.metrics["fd_cnn/all"] > 0
        return report

    monkeypatch.setattr(Task, "alone", spied)
    monkeypatch.setattr(Client, "evaluate", spied_evaluate)
    fedavg = replace(tiny, method=FedAvg(model=tiny.method.model, local=tiny.method.local, rounds=9))
    assert gpu_memory.probe(fedavg, Fake(3, 5)) == (5, 80 * GB)
    assert seen == ["1 step of 8, 32 records", "evaluation"]
    assert gpu_memory.probe(replace(fedavg, evaluation=None), Fake(3, 0)) == (3, 80 * GB)
    seen.clear()
    passes = override(fedavg, {"method.local.epochs": 9, "method.local.replacement": False, "evaluation": None})
    gpu_memory.probe(passes, Fake(3, 0))
    assert seen == ["1 step of 8, 32 records"]
    privacy = ClientPrivacy(trust="aggregate", shares=2)  # The probe has one upload.
    summed = {"method.averaging.weights": "uniform", "method.averaging.privacy": privacy, "min_clients": 2}
    assert gpu_memory.probe(override(fedavg, {**summed, "evaluation": None}), Fake(3, 0)) == (3, 80 * GB)


@pytest.mark.parametrize(("workers", "size"), [(1, 4), (2, 3), (4, 2), (5, 1)])
def test_what_is_probed_is_a_cohort_of_the_size_that_will_run(
    tiny: Experiment, monkeypatch: pytest.MonkeyPatch, workers: int, size: int
) -> None:
    """Of five clients, four of which take part: the worker that has most trains so many at once."""
    seen: list[int] = []
    together, alone = cohort.together, Task.alone
    monkeypatch.setattr(cohort, "together", lambda tasks: seen.append(len(tasks)) or together(tasks))
    monkeypatch.setattr(Task, "alone", lambda task: seen.append(1) or alone(task))
    method = FedAvg(model=tiny.method.model, local=tiny.method.local, rounds=9)
    runtime = Runtime(pool="local", vectorize=True)
    five = replace(tiny, method=method, clients=5, participants=4, partition=Iid(), runtime=runtime, evaluation=None)
    at_once = gpu_memory.cohort_of(five, workers)
    gpu_memory.probe(five, Fake(3, 0), cohort=at_once)
    assert at_once == size and seen == [size]
    assert gpu_memory.cohort_of(replace(five, runtime=Runtime()), workers) == 1


def test_auto_finds_the_slice_and_the_cohort_that_go_together(
    tiny: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The larger a slice, the fewer workers there is room for, and the more clients each of them trains at once."""
    runtime, asked = Runtime(gpu_per_worker="auto", vectorize=True), list[tuple[int, int]]()
    few, many = (replace(tiny, clients=n, partition=Iid(), evaluation=None, runtime=runtime) for n in (2, 8))

    def probe(experiment: Experiment, *, cohort: int) -> tuple[int, int]:
        asked.append((experiment.clients, cohort))
        return (10 + 4 * cohort) * GB, 80 * GB

    monkeypatch.setattr(gpu_memory, "probe", probe)
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # else the probe is a task in another process
    nodes = [{"CPU": 8.0, "GPU": 1.0}]
    share, _ = gpu_memory.measure([few, many], nodes)
    # 8 workers: a slice for one client, of which 4 fit; for two, of which 3 fit; for three, of which 2 fit; for four
    assert asked == [(2, 1), (8, 2), (8, 3), (8, 4)]
    assert share == gpu_memory.share_of(26 * GB, 80 * GB)
    workers = slot(replace(runtime, gpu_per_worker=share), clients=8, nodes=nodes).workers
    assert gpu_memory.cohort_of(many, workers) == 4


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"feddistr", "marginals"}))
def test_every_method_can_be_probed(tiny: Experiment, name: str) -> None:
    if name in ("sketch", "dpmerf", "evolution"):  # They have models of their own, and clients train nothing.
        method = METHODS[name]()
    else:
        method = override(METHODS[name](model=tiny.method.model), {"local.batch": 8})
    small = replace(tiny, method=method, clients=2, evaluation=None)
    meter = Fake(7, 0)
    assert gpu_memory.probe(small, meter) == (7, 80 * GB) and meter.started == 2


def test_of_each_method_the_largest_trial_is_probed(tiny: Experiment) -> None:
    big = override(tiny, {"method.local.batch": 512})
    wide = override(tiny, {"method.model.network.width": 96})
    wider = override(big, {"method.model.network.width": 96, "seed": 3})
    other = replace(tiny, method=LocalOnly(model=tiny.method.model))
    trials = [trial.resolve(e) for e in (tiny, big, wider, wide, other)]
    assert gpu_memory.largest(trials) == [trials[2], trials[4]]


def test_a_probe_that_a_whole_gpu_is_too_small_for(tiny: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "run", out_of_memory)
    with pytest.raises(ValueError, match=r"^a worker needs more than a whole GPU, 80 GB$"):
        gpu_memory.probe(tiny, Fake(0))


@pytest.mark.parametrize("ray", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["here", "in a task"])
def test_auto_becomes_the_number_that_was_measured(
    tiny: Experiment,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    ray: bool,
) -> None:
    if ray:
        request.getfixturevalue("workers")
    else:
        monkeypatch.setattr("ray.is_initialized", lambda: False)
    auto = trial.resolve(replace(tiny, runtime=Runtime(gpu_per_worker="auto")))
    monkeypatch.setattr(gpu_memory, "probe", lambda experiment, cohort: (19 * GB, 80 * GB))
    plan = Planned(preset="p", folder=tmp_path, base=auto, trials=(auto,), secret=b"", metric="m")
    found = tuner.sized(plan, [{"CPU": 1.0, "GPU": 1.0}])
    (one,) = found.trials
    assert found.base.runtime.gpu_per_worker == one.runtime.gpu_per_worker == 0.2907 and one.digest == auto.digest
    assert capsys.readouterr().out == "a worker's peak is 19 GB: its slice is 0.2907 of a GPU of 80 GB\n"
    known = tuner.sized(plan, [], share=0.25)
    assert known.base.runtime.gpu_per_worker == 0.25
    with pytest.raises(ValueError, match=r"auto is measured on a GPU, and there is none: give a number"):
        tuner.sized(plan, [{"CPU": 64.0, "GPU": 0.0}])
    assert tuner.sized(known, []) is known


def test_auto_is_no_number_before_it_is_measured() -> None:
    with pytest.raises(ValueError, match="gpu_per_worker is auto, and was not measured: give a number"):
        _ = Runtime(gpu_per_worker="auto").worker_share
    with pytest.raises(ValueError, match=r"gpu_server must be a share in \[0, 1\], got auto"):
        Runtime(gpu_server="auto")  # type: ignore[arg-type]


def test_cuda_is_there_before_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch refuses to reset the peak of a device that the process has not used yet."""
    there: list[bool] = []

    def reset(number: int) -> None:
        if not there:
            raise RuntimeError(f"Invalid device argument {number}: did you call init?")

    monkeypatch.setattr(torch.cuda, "init", lambda: there.append(True))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset)
    gpu_memory.Meter().start()
    assert there


@pytest.mark.parametrize(("share", "gb"), [(0.5, 7.55), (0.125, 1.55), (0.0625, 0.55)])
def test_torch_is_held_to_its_slice_but_for_what_cuda_takes(
    share: float, gb: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = cap_of(16, share, monkeypatch)
    assert held == pytest.approx([gb / 16], abs=1e-6)


def test_a_slice_that_cuda_alone_fills_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    says = r"^0\.02 of a GPU is 0\.32 GB, and CUDA alone takes 0\.45 GB of each process: give it a larger share$"
    with pytest.raises(ValueError, match=says):
        cap_of(16, 0.02, monkeypatch)


def cap_of(total: int, share: float, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The fractions to which torch is held on a GPU of so many GB."""
    held: list[float] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=total * GB))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda part, _: held.append(part))
    cap_memory(share)
    return held


# --- too small ---


def out_of_memory(*_: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize(
    ("share", "gb", "says"), [(0.25, 19.6, "give --runtime.gpu-per-worker 0.5"), (1.0, 79.6, "no slice is larger")]
)
def test_a_client_says_what_it_held_and_which_flag_to_set(
    tiny: Experiment, tmp_path, monkeypatch: pytest.MonkeyPatch, share: float, gb: float, says: str
) -> None:
    meter = Fake(18 * GB)
    monkeypatch.setattr(gpu_memory, "here", lambda: meter)
    this = trial.open_trial(replace(tiny, evaluation=None), tmp_path / "s")
    worker = Worker()
    worker.host(this, [0, 1], share)
    monkeypatch.setattr(Client, "run", out_of_memory)
    with pytest.raises(gpu_memory.OutOfMemory) as e:
        list(worker.run(this.experiment.digest, [1], {}, 3, 0.0))
    held = f"client 1, in round 3: needed more than 18 GB, slice is {gb} GB ({share:g} of a GPU): "
    assert str(e.value).startswith(held + says)
    assert str(pickle.loads(pickle.dumps(e.value))) == str(e.value)  # as it travels


def test_without_a_share_the_error_is_torchs_own(tiny: Experiment, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    this = trial.open_trial(replace(tiny, evaluation=None), tmp_path / "s")
    worker = Worker()
    worker.host(this, [0], 0.0)
    monkeypatch.setattr(Client, "run", out_of_memory)
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        list(worker.run(this.experiment.digest, [0], {}, 0, 0.0))
