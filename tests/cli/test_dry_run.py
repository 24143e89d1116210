"""jobs/sweep.py --dry-run, and its arithmetic."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from raydiff.cli import sweep
from raydiff.experiment.config import Experiment
from raydiff.methods.fedavg import FedAvg
from raydiff.models.training import Training
from raydiff.runtime import estimate
from raydiff.runtime.slots import Slot

QUICK = "--method.model.network.width 16 --method.local.steps 4 --method.server.steps 4"


def test_it_says_what_is_needed_and_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import ray

    monkeypatch.setattr("raydiff.runtime.slots.os.cpu_count", lambda: 4)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray was started"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    storage = tmp_path / "storage"
    arguments = ["digits", "--dry-run", *QUICK.split(), "--runtime.storage", str(storage), "--runtime.workers", "2"]
    assert sweep.main([*arguments, "--grid", "method.epsilon=50,none", "clients=2,4"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("8 trials\na trial: 2 worker(s), 2 CPU\nneeded: 4 CPU, for 2 trial(s) side by side\n")
    assert "available: 4 CPU and 0 GPU on 1 node(s)\n" in said
    assert re.findall(r"^(\w+), 2 clients, one process: first round [\d.]+ s", said, flags=re.M) == [
        "PFDM",
        "LocalOnly",
        "FedAvg",
    ]
    assert re.search(r"^about (\d+ s|\d+:\d\d min) for all rounds", said, flags=re.M)
    assert not storage.exists()


def test_a_sweep_takes_its_work_divided_by_workers_and_slots(tiny: Experiment) -> None:
    fedavg = FedAvg(model=tiny.method.model, local=Training(steps=8, batch=8), rounds=5)
    two, eight = (replace(tiny, method=fedavg, clients=clients) for clients in (2, 8))
    probed = {"FedAvg": (2, (3.0, 1.0))}  # two clients: 3 s, then 4 rounds of 1 s
    one, four = (Slot(workers, 1, 0.0, 0.0) for workers in (1, 4))
    assert estimate.seconds([two] * 6, probed, slot=one, slots=2) == 6 * 7.0 / 2
    assert estimate.seconds([eight], probed, slot=one, slots=2) == 4 * 7.0  # one trial is in one slot
    assert estimate.seconds([eight], probed, slot=four, slots=2) == 7.0  # two clients one after the other
    assert estimate.seconds([], {}, slot=one, slots=1) == 0.0
    passes = replace(eight, method=replace(fedavg, local=Training(epochs=3)))  # as many records in all, shared by eight
    assert estimate.seconds([passes], probed, slot=one, slots=2) == 7.0


def test_a_probe_runs_two_rounds_and_leaves_nothing(
    tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    first, later = estimate.probe(tiny)
    assert 0 < first < 60 and 0 < later < 60 and first != later
    assert list(tmp_path.iterdir()) == []


def test_each_method_is_probed_once_with_the_fewest_clients(tiny: Experiment) -> None:
    trials = [replace(tiny, clients=clients) for clients in (4, 2, 3)]
    assert [e.clients for e in estimate.representatives(trials)] == [2]
