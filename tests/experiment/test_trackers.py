"""Trackers beside MLflow: what each is told of a trial, and that nothing depends on them."""

from __future__ import annotations

import json
import math
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raydiff.experiment import overrides, told, trackers
from raydiff.experiment.config import Experiment

Told = list[tuple[Any, ...]]


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told, "PERIOD_S", 0.01)


def write(sweep: Path, experiment: Experiment, *, ended: bool = True) -> str:
    """A trial of two rounds."""
    folder = sweep / "trials" / experiment.digest
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(overrides.to_dict(experiment)))
    lines = [{"step": s, "time": 1.0, "server/loss": 4.0 - s, "client/0/x": 1.0, "epsilon": math.inf} for s in (0, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if ended:
        final = {"eval/fd_cnn/all": 2.0, "eval/fd_cnn/major": 3.0}
        (folder / "outcome.json").write_text(json.dumps({"outcome": "finished", "final": final}))
    return experiment.digest


def follow(sweep: Path, tracker: trackers.Tracker, *trials: Experiment) -> str:
    """One follower over a sweep in which these trials run."""
    follower = trackers.Follower(sweep, tracker)
    for trial in trials:
        write(sweep, trial)
    follower.start()
    return follower.close()


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Told:
    """What a stand-in for Weights & Biases is told."""
    told: Told = []

    class Run:
        def __init__(self, about: dict[str, Any]) -> None:
            told.append(("init", about))
            self.summary = types.SimpleNamespace(update=lambda values: told.append(("summary", values)))

        def log(self, values: dict[str, float], step: int) -> None:
            told.append((step, values))

        def finish(self) -> None:
            told.append(("finish",))

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=lambda **about: Run(about)))  # type: ignore[arg-type]
    return told


def test_wandb_has_rounds_and_final_numbers_as_mlflow_has_them(tmp_path: Path, tiny: Experiment, wandb: Told) -> None:
    sweep = tmp_path / "mine"
    write(sweep, replace(tiny, seed=5))  # had ended before
    assert follow(sweep, trackers.named("wandb", sweep, "raydiff-digits"), tiny) == ""
    (_, about), *rest = wandb
    assert about["project"] == "raydiff-digits" and about["id"] == f"mine-{tiny.digest}" and about["group"] == "mine"
    assert about["config"]["method"] == "PFDM"
    assert rest == [
        (0, {"server/loss": 4.0}),
        (1, {"server/loss": 3.0}),
        ("summary", {"final/eval/fd_cnn/all": 2.0}),
        ("finish",),
    ]


def test_tensorboard_is_written_anew_into_the_sweeps_folder(
    tmp_path: Path, tiny: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: Told = []

    class SummaryWriter:
        def __init__(self, folder: str) -> None:
            assert not Path(folder).exists()
            Path(folder).mkdir(parents=True)
            self.folder = Path(folder)

        def add_text(self, name: str, text: str) -> None:
            assert name == "config" and "    method = PFDM\n" in text

        def add_scalar(self, key: str, value: float, step: int) -> None:
            told.append((self.folder.name.rpartition(" ")[2], key, value, step))

        def flush(self) -> None:
            (self.folder / "events").write_text("")

        close = flush

    module = types.SimpleNamespace(SummaryWriter=SummaryWriter)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)  # type: ignore[arg-type]
    write(tmp_path, tiny, ended=False)
    for _ in range(2):  # the second as of a sweep that is resumed
        told.clear()
        assert follow(tmp_path, trackers.named("tensorboard", tmp_path, "p")) == ""
        assert told == [(tiny.digest, "server/loss", 4.0, 0), (tiny.digest, "server/loss", 3.0, 1)]
    assert [p.parent.parent.name for p in tmp_path.rglob("events")] == ["tensorboard"]


def test_what_a_tracker_raises_is_said_and_ends_nothing_else(tmp_path: Path, tiny: Experiment) -> None:
    def broken(*_: object) -> trackers.Run:
        raise OSError("no network")

    assert follow(tmp_path, broken, tiny) == "the tracker has not got everything: no network"
    assert trackers.Follower(tmp_path, broken).close() == ""


@pytest.mark.parametrize("name", trackers.NAMES)
def test_one_that_is_not_installed_is_one_sentence(
    tmp_path: Path, name: trackers.Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("wandb", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=rf"^--tracker {name} needs .*: pip install {name}$"):
        trackers.named(name, tmp_path, "p")
