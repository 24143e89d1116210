"""`raydiff init`: what it writes for data of different kinds, and that it looks at no private picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sets import with_other_private_pictures, zoo

import raydiff as rd
from raydiff.cli import init
from raydiff.data import datasets
from raydiff.data.datasets import Data
from raydiff.experiment import suggested, trial
from raydiff.experiment.overrides import override
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.localonly import LocalOnly
from raydiff.models.networks import MLP
from raydiff.runtime import estimate


@pytest.fixture(autouse=True)
def two_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "alone", lambda experiment: 120.0)


def test_a_folder_of_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert init.main([str(zoo(tmp_path / "zoo")), "--data.size", "4", "--evaluation", "none"]) == 0
    output = capsys.readouterr().out
    assert "wrote zoo.toml\nnext: raydiff run zoo.toml    # about 2:00 min" in output
    study = rd.preset("zoo.toml")
    experiment = study.experiment
    assert experiment.data == Data(name=str(tmp_path / "zoo"), size=4, public=5, validation=4, calibration=2, test=8)
    public = datasets.load(experiment.data).splits["public"].images
    assert experiment.method.clip == float(f"{public.flatten(1).norm(dim=1).quantile(0.5):.3g}")
    assert experiment.method.model.network == MLP(width=256, skip=True)
    assert type(experiment.partition).__name__ == "Iid"  # of 40 pictures nobody can be given a minority
    trial.resolve(experiment)
    text = (tmp_path / "zoo.toml").read_text()
    assert "width = 256  # for the 16 values of a picture" in text and "about 2:00 min" in text


def test_larger_pictures_get_wider_networks_and_more_steps(tmp_path: Path) -> None:
    settings = []
    for size in (8, 14, 28, 64):
        file = tmp_path / f"{size}.toml"
        assert init.main(["digits", "--data.size", str(size), "--out", str(file)]) == 0
        experiment = rd.preset(str(file)).experiment
        local, server = experiment.method.local, experiment.method.server
        assert (local.steps, local.learning_rate) == (server.steps, server.learning_rate)
        assert experiment.method.model.schedule == "cosine"
        settings.append((experiment.method.model.network.width, local.steps, local.learning_rate))
        assert ("colours and outlines" in file.read_text()) == (size == 64)
    assert settings == [(256, 2000, 2e-3), (384, 4000, 1e-3), (512, 12_000, 1e-3), (512, 12_000, 1e-3)]


def test_on_a_gpu_pictures_get_a_unet_that_fits_them() -> None:
    dataset = datasets.load(Data(size=14))  # it can be halved once
    values = suggested.for_pictures(dataset, gpu=True).values
    expected = {"method.model.network.kind": "unet", "method.model.network.widths": [64, 128]}
    expected |= {f"method.{who}.steps": 20_000 for who in ("local", "server")}
    expected |= {f"method.{who}.learning_rate": 2e-4 for who in ("local", "server")}
    assert values.items() >= (expected | {"runtime.gpu_per_worker": 0.5, "runtime.gpu_server": 0.5}).items()


def test_what_is_given_stands_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "f.toml"
    arguments = ["--method", "fedavg", "--clients", "3", "--method.model.network.width", "64", "--partition", "iid"]
    assert init.main(["digits", *arguments, "--data.labels", "digit", "--out", str(file)]) == 0
    experiment = rd.preset(str(file)).experiment
    assert isinstance(experiment.method, FedAvg) and experiment.clients == 3
    assert experiment.method.model.network.width == 64 and experiment.data.labels == ("digit",)
    assert "width = 64\n" in file.read_text()  # without the comment on another width


SIZES = ["--data.validation", "4", "--data.calibration", "4", "--data.test", "8"]


@pytest.mark.parametrize(
    ("arguments", "fraction"),
    [([], "12% of your own rows (5 of 40)"), ([*SIZES, "--data.public", "10"], "25% of your own rows (10 of 40)")],
)
def test_how_many_of_your_own_rows_are_public_is_said_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, arguments: list[str], fraction: str
) -> None:
    """With both ways out; and not where the public records are another's, or none."""
    monkeypatch.chdir(tmp_path)
    folder, bare = str(zoo(tmp_path / "zoo")), ["--data.size", "4", "--evaluation", "none"]
    assert init.main([folder, *bare, *arguments]) == 0
    for text in (capsys.readouterr().out, (tmp_path / "zoo.toml").read_text()):
        assert f"{fraction} are declared public, and nothing protects them: " in text
        assert "--data.public-from NAME" in text and "--data.public 0" in text
    elsewhere = ["--data.public-from", str(zoo(tmp_path / "other", shade=2)), "--data.public", "10"]
    for out, instead in (("a.toml", elsewhere), ("b.toml", ["--data.public", "0", "--data.fitted-on", "all"])):
        clip = ["--method.clip", "3", "--partition", "iid", "--out", out]
        assert init.main([folder, *bare, *SIZES, *clip, *instead]) == 0
        assert "declared public" not in capsys.readouterr().out + (tmp_path / out).read_text()


def test_a_table(tmp_path: Path) -> None:
    rows = "".join(f"{i % 7},{i % 3},{'yes' if i % 2 else 'no'}\n" for i in range(200))
    (tmp_path / "people.csv").write_text("age,kind,left\n" + rows)
    file = tmp_path / "people.toml"
    assert init.main([str(tmp_path / "people.csv"), "--data.labels", "left", "--out", str(file)]) == 0
    assert ", 2 classes: no, yes\n" in file.read_text()
    experiment = rd.preset(str(file)).experiment
    assert isinstance(experiment.method, LocalOnly) and experiment.data.labels == ("left",)
    assert len(datasets.load(experiment.data).splits["train"]) == 94
    assert experiment.method.local.steps == 400  # 100 epochs of 94 rows in batches of 30
    trial.resolve(experiment)


def test_no_private_picture_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load, texts = datasets.load, []
    for name in ("one", "other"):
        file = tmp_path / name / "f.toml"
        file.parent.mkdir()
        assert init.main(["digits", "--out", str(file)]) == 0
        texts.append(file.read_text().replace(str(file), ""))
        monkeypatch.setattr(datasets, "load", lambda config: with_other_private_pictures(load(config)))
    assert texts[0] == texts[1]


def test_time_that_a_trial_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings of 8 times the steps that were tried; four rounds of the server; two workers for the clients."""
    monkeypatch.undo()
    now, steps = [0.0], []

    def run(this: trial.Trial, pool: object) -> object:
        steps.append((this.experiment.method.local.steps, this.experiment.method.server.steps))  # type: ignore[attr-defined]
        for number, seconds in enumerate([6.0, 1.0, 1.0, 1.0, 1.0]):
            now[0] += seconds
            yield {"round": number, "finished": False, "time/seconds": seconds}
        now[0] += 30.0  # evaluation
        yield {"round": 5, "finished": True, "time/seconds": 40.0}

    monkeypatch.setattr(estimate.trial, "run", run)
    monkeypatch.setattr(estimate.trial, "local_executor", lambda this: None)
    monkeypatch.setattr(estimate.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(estimate.os, "cpu_count", lambda: 2)
    base = rd.preset("digits").experiment
    few = override(base, {"runtime.workers": None, "method.local.steps": 800, "method.server.steps": 800})
    assert estimate.alone(few) == pytest.approx(8 * 6.0 / 2 + 8 * 4.0 + 30.0 + estimate.START_S)
    assert steps == [(100, 100)]
    now[0], many = 0.0, {"method.local.steps": 8000, "method.server.steps": 4000}  # A twentieth, and half that many.
    assert estimate.alone(override(few, many)) == pytest.approx(20 * 6.0 / 2 + 20 * 4.0 + 30.0 + estimate.START_S)
    assert steps[1:] == [(400, 200)]
