"""The cost of trials, a shortened run that measures their time, and durations as text."""

from dataclasses import replace
from pathlib import Path

import pytest

from raydiff.data import datasets
from raydiff.experiment.config import Experiment
from raydiff.experiment.overrides import override
from raydiff.methods.fedavg import FedAvg
from raydiff.runtime import estimate
from raydiff.runtime.estimate import format_duration, training_cost


def test_cost_is_the_records_of_all_steps_and_epochs(tiny: Experiment) -> None:
    thrice = override(tiny, {"method.local.steps": 24, "method.server.steps": 24})
    assert training_cost(tiny) == 1 + 8 * 8 * (2 + 1) and training_cost(thrice) == 1 + 3 * 8 * 8 * (2 + 1)
    few, many = (override(tiny, {"method": FedAvg, "method.local.epochs": n}) for n in (10, 500))
    assert training_cost(many) - 1 == 50 * (training_cost(few) - 1) > 0
    assert training_cost(override(few, {"clients": 2 * few.clients})) == training_cost(few)


def test_a_duration_has_minutes_or_seconds() -> None:
    assert format_duration(40.9) == "40 s" and format_duration(125) == "2:05 min"


def test_a_probe_leaves_nothing(tiny: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert 0 < estimate.estimate_trial_s(replace(tiny, evaluation=None)) < 60
    assert list(tmp_path.iterdir()) == []


def test_a_probe_trains_few_epochs_too(tiny: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    class Opened(Exception):
        pass

    def opened(probe: Experiment, _: Path) -> None:
        raise Opened(probe)

    monkeypatch.setattr("raydiff.experiment.trial.open_trial", opened)
    with pytest.raises(Opened) as found:
        estimate.estimate_trial_s(override(tiny, {"method.local.epochs": 1000}))
    records = len(datasets.load_dataset(tiny.data).splits["train"]) // tiny.clients
    (probe,) = found.value.args
    assert estimate.MIN_STEPS <= probe.method.local.of(records).steps <= 2 * estimate.MOST_STEPS
