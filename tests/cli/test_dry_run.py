"""jobs/sweep.py --dry-run, and its arithmetic."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from raydiff.cli import sweep
from raydiff.data import datasets
from raydiff.experiment.config import Experiment
from raydiff.experiment.overrides import override
from raydiff.runtime import estimate

QUICK = "--method.model.network.width 16 --method.local.steps 4 --method.server.steps 4"


def test_it_says_what_is_needed_and_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import ray

    monkeypatch.setattr("raydiff.runtime.place.os.cpu_count", lambda: 4)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray was started"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    storage = tmp_path / "storage"
    arguments = ["digits", "--dry-run", *QUICK.split(), "--runtime.storage", str(storage), "--runtime.workers", "2"]
    assert sweep.main([*arguments, "--grid", "method.epsilon=50,none", "clients=2,4"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("8 trials, 2 at once: each 2 worker(s), 2 CPU\navailable: 4 CPU and 0 GPU on 1 node(s)\n")
    assert re.search(r"^about (\d+ s|\d+:\d\d min) for all rounds", output, flags=re.M)
    assert not storage.exists()


def test_a_slot_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one trial needs 999 CPU"):
        sweep.main(["digits", "--dry-run", "--numerics.threads", "999", "--runtime.storage", str(tmp_path / "s")])


def test_a_probe_leaves_nothing(tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert 0 < estimate.probe_trial_s(replace(tiny, evaluation=None)) < 60
    assert list(tmp_path.iterdir()) == []


def test_a_probe_trains_few_epochs_too(tiny: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    class Opened(Exception):
        pass

    def opened(probe: Experiment, _: Path) -> None:
        raise Opened(probe)

    monkeypatch.setattr("raydiff.experiment.trial.open_trial", opened)
    with pytest.raises(Opened) as found:
        estimate.probe_trial_s(override(tiny, {"method.local.epochs": 1000}))
    records = len(datasets.load(tiny.data).splits["train"]) // tiny.clients
    (probe,) = found.value.args
    assert estimate.MIN_STEPS <= probe.method.local.of(records).steps <= 2 * estimate.MOST_STEPS


def test_gpu_hours_are_those_of_all_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """8 trials of half an hour, each with two workers on half a GPU."""
    monkeypatch.setattr("raydiff.runtime.place.this_machine", lambda: {"CPU": 4.0, "GPU": 1.0})
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(estimate, "probe_trial_s", lambda _: 1800.0)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    gpu = ["--runtime.gpu-per-worker", "0.5", "--runtime.workers", "2", "--runtime.storage", str(tmp_path / "s")]
    assert sweep.main(["digits", "--dry-run", *gpu, "--grid", "seed=0,1,2,3,4,5,6,7", "--no-baselines"]) == 0
    assert "about 240:00 min (4 GPU-hours) for all rounds" in capsys.readouterr().out


def test_without_its_gpu_no_time_is_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("raydiff.runtime.place.this_machine", lambda: {"CPU": 4.0, "GPU": 1.0})
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(estimate, "probe_trial_s", lambda _: pytest.fail("it was probed"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    arguments = ["digits", "--dry-run", "--runtime.storage", str(tmp_path / "s"), "--runtime.gpu-per-worker", "0.5"]
    assert sweep.main(arguments) == 0
    assert "no time estimate: the trials use a GPU" in capsys.readouterr().out
