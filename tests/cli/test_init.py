"""`raydiff init`: what it writes for data of different kinds, and that it looks at no private picture."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from sets import with_other_private_pictures, zoo

import raydiff as rd
from raydiff import process
from raydiff.cli import init
from raydiff.data import datasets, pictures
from raydiff.data.datasets import Data
from raydiff.experiment import suggested, trial
from raydiff.experiment.ledgers import plan_ledger
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.localonly import LocalOnly
from raydiff.models.networks import MLP
from raydiff.models.schedules import CosineBetas
from raydiff.privacy.ledger import PrivacyOdometer
from raydiff.runtime import estimate


@pytest.fixture(autouse=True)
def two_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "estimate_trial_s", lambda experiment, **_: 120.0)


def test_a_folder_of_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert init.main([str(zoo(tmp_path / "zoo")), "--data.size", "4", "--evaluation", "none"]) == 0
    output = capsys.readouterr().out
    assert "wrote zoo.toml\nnext: raydiff run zoo.toml    # about 2:00 min" in output
    study = rd.preset("zoo.toml")
    experiment = study.experiment
    assert experiment.data == Data(name=str(tmp_path / "zoo"), size=4, public=5, validation=4, calibration=2, test=8)
    public = datasets.load_dataset(experiment.data).splits["public"].images
    assert experiment.method.clip == float(f"{public.flatten(1).norm(dim=1).quantile(0.5):.3g}")
    assert experiment.method.model.network == MLP(width=256, skip=True)
    assert type(experiment.partition).__name__ == "Iid"  # of 40 pictures nobody can be given a minority
    trial.resolve_on_data(experiment)
    text = (tmp_path / "zoo.toml").read_text()
    assert "width = 256  # for the 16 values of a picture" in text and "about 2:00 min" in text


def test_larger_pictures_get_wider_networks_and_more_records_more_steps(tmp_path: Path) -> None:
    """200 passes over the 423 pictures of a client and the 847 of all, up to the most of the pictures' size."""
    settings = []
    for size in (8, 14, 28, 64):
        file = tmp_path / f"{size}.toml"
        assert init.main(["digits", "--data.size", str(size), "--out", str(file)]) == 0
        method = rd.preset(str(file)).experiment.method
        assert method.local.learning_rate == method.server.learning_rate
        assert method.model.schedule == CosineBetas()
        steps = method.local.steps, method.server.steps
        settings.append((method.model.network.width, *steps, method.local.learning_rate))
        assert ("colours and outlines" in file.read_text()) == (size == 64)
    wide = (512, 1322, 2647, 1e-3)
    assert settings == [(256, 1322, 2000, 2e-3), (384, 1322, 2647, 1e-3), wide, wide]
    few = suggested.for_pictures(datasets.load_dataset(Data(train=40)), clients=2, gpu=False).values
    assert [few[f"method.{who}.steps"] for who in ("local", "server")] == [100, 125]  # A client's 20 would need 62.


def test_on_a_gpu_pictures_get_a_unet_that_fits_them() -> None:
    dataset = datasets.load_dataset(Data(size=14))  # it can be halved once
    values = suggested.for_pictures(dataset, clients=2, gpu=True).values
    expected = {"method.model.network.kind": "unet", "method.model.network.widths": [64, 128]}
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
    assert len(datasets.load_dataset(experiment.data).splits["train"]) == 94
    assert experiment.method.local.steps == 400  # 100 epochs of 94 rows in batches of 30
    trial.resolve_on_data(experiment)


def test_no_private_picture_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load, texts = datasets.load_dataset, []
    for name in ("one", "other"):
        file = tmp_path / name / "f.toml"
        file.parent.mkdir()
        assert init.main(["digits", "--out", str(file)]) == 0
        texts.append(file.read_text().replace(str(file), ""))
        monkeypatch.setattr(datasets, "load_dataset", lambda config: with_other_private_pictures(load(config)))
    assert texts[0] == texts[1]


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "load_dataset", lambda config: pytest.fail("the data were read"))
    (tmp_path / "old.toml").touch()
    for out, why in (("old.toml", "exists already: remove it"), ("gone/f.toml", "its folder is missing")):
        with pytest.raises(ValueError, match=why):
            init.main(["digits", "--out", str(tmp_path / out)])


@pytest.mark.slow
def test_it_says_what_it_does_and_reads_the_pictures_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Also by a relative path, which a trial makes absolute."""
    monkeypatch.undo()
    monkeypatch.chdir(zoo(tmp_path / "zoo").parent)
    monkeypatch.setattr(process, "WAIT_S", 0.001)
    read, reads = pictures.read_pictures, []
    monkeypatch.setattr(pictures, "read_pictures", lambda *asked, **more: reads.append(1) or read(*asked, **more))
    quick = "--method.local.steps 2 --method.server.steps 2 --evaluation.attacks none --evaluation.dim 1"
    assert init.main(["zoo", "--data.size", "8", *quick.split(), "--data.test", "12"]) == 0
    output = capsys.readouterr().out
    phases = ("reading zoo", "timing a shortened trial")
    assert [output.index(f"{phase}") for phase in phases] == sorted(output.index(f"{phase}") for phase in phases)
    assert "waiting for the measurements (" in output and len(reads) == 1


@pytest.mark.parametrize(
    ("by_hand", "sizes"),
    [
        ({"test": 8}, {"public": 5, "validation": 4, "calibration": 2}),
        ({"public": 30}, {"validation": 1, "calibration": 1, "test": 2}),  # of the ten that are left
        ({"train": 20}, {"public": 5, "validation": 4, "calibration": 2, "test": 8}),
    ],
)
def test_sizes_that_are_set_by_hand_leave_the_others_suggested(
    tmp_path: Path, by_hand: dict[str, int], sizes: dict[str, int]
) -> None:
    changes = {f"data.{split}": size for split, size in by_hand.items()}
    data = Data(name=str(zoo(tmp_path / "zoo")), size=4, **by_hand)  # type: ignore[arg-type]
    assert suggested.splits(data, changes) == {f"data.{split}": size for split, size in sizes.items()}


def test_more_pictures_than_a_cpu_needs_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggested, "RECORDS", 15)
    assert suggested.splits(data := Data(name=str(zoo(tmp_path / "zoo"))), {})["data.train"] == 15
    assert "data.train" not in suggested.splits(data, {"data.train": None})  # Its user wants them all.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "data.train" not in suggested.splits(data, {})


def test_a_setting_goes_with_the_field_that_it_was_chosen_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Any
) -> None:
    """A clip of 4 x 4 pictures is none of others, and must not be of public pictures that are private elsewhere."""
    monkeypatch.chdir(tmp_path)
    zoo(tmp_path / "zoo")
    assert init.main(["zoo", "--data.size", "4", "--evaluation", "none", "--method.server.steps", "9"]) == 0
    study = rd.preset("zoo.toml")
    others = {"method.model.network.width": 64, "method.local.steps": 5}
    for name in ("run", "sweep", "tune"):
        code, _, says = command(name, "zoo.toml", "--data.size", "8", "--runtime.storage", tmp_path)
        assert code == 2 and "--method.clip " in says and ", --method.model.network.width 256, --method.local" in says
        assert "was chosen for --data.size 4, which this changes: give it too" in says
    for changes, axes in ({"data.split_seed": 1}, {}), ({"data.public": 4}, {}), ({}, {"data.split_seed": (0, 1)}):
        with pytest.raises(ValueError, match=r"was chosen for --data.*: give it too, or run raydiff init again"):
            study.check_chosen(changes, axes)
    study.check_chosen({"data.size": 8, "method.clip": 3.0, **others})
    study.check_chosen({"data.size": 8, "method": FedAvg, **others})  # It has no clip.
    study.check_chosen({"data.size": 4, "clients": 3, "data.train": 9})


ROWS = "id,age,kind,left\n" + "".join(f"{900 - i},{i % 7},{i % 3},{'yes' if i % 2 else 'no'}\n" for i in range(200))


def test_rows_that_are_to_be_released_need_an_epsilon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people.csv").write_text(ROWS)
    asked = ["people.csv", "--data.labels", "left", "--release"]
    for arguments, why in (
        (asked, "needs the epsilon at which rows may be released, such as --release --epsilon 1"),
        ([*asked, "--epsilon", "none"], "needs the epsilon"),
        ([*asked, "--method", "localonly"], "marginals .* or dpsgd: rows of others carry no guarantee"),
        ([str(zoo(tmp_path / "zoo")), "--release", "--epsilon", "1"], "--release needs a table"),
    ):
        with pytest.raises(ValueError, match=why):
            init.main(arguments)


@pytest.mark.parametrize("method", ["marginals", "dpsgd"])
def test_rows_that_are_to_be_released_come_from_a_private_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, method: str
) -> None:
    """Three commands, of which the last draws from the server's model, in the proportions of public rows."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people.csv").write_text(ROWS)
    other = ["--method", method] if method == "dpsgd" else []
    assert init.main(["people.csv", "--data.labels", "left", "--release", "--epsilon", "2", *other]) == 0
    output, experiment = capsys.readouterr().out, rd.preset("people.toml").experiment
    assert "next: raydiff run people.toml --name people" in output
    assert "next: raydiff generate people --source global --labels public --num 94" in output
    assert "28 of 200) are declared public, and nothing protects them: --data.public N makes them fewer" in output
    assert type(experiment.method).__name__.lower() == method and experiment.method.epsilon == 2.0
    odometer = PrivacyOdometer(plan_ledger(trial.resolve_on_data(experiment)))
    server, _ = trial.state_guarantees(odometer, experiment)
    assert 1.9 < server.epsilon <= 2.0 and server.relation == "replace_one"


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "table.md"


@pytest.mark.slow
@pytest.mark.ray
def test_the_page_on_tables_runs_as_printed(tmp_path: Path) -> None:
    """Every command, in order, on a table like the page's: what is released carries the epsilon that was asked for."""
    rows = "".join(
        f"P{991 * i % 7919},{20 + i * 37 % 60},2024-{1 + i % 12:02d}-05,{i % 4},{'ab'[i % 9 > 6]}\n" for i in range(700)
    )
    (tmp_path / "clinic.csv").write_text("patient,age,admitted,ward,outcome\n" + rows)
    commands = re.findall(r"^    (raydiff .*)$", PAGE.read_text(), re.MULTILINE)
    environment = {**os.environ, "HOME": str(tmp_path), "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    script = "\n".join(["set -e", f'raydiff() {{ {sys.executable} -m raydiff "$@"; }}', *commands])
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for folder in ("rows", "diffusion"):
        card = json.loads((tmp_path / folder / "card.json").read_text())
        assert 2.9 < card["guarantee"]["epsilon"] <= 3.0 and card["guarantee"]["declared"][0] in ("labels", "examples")
        assert len((tmp_path / folder / "rows.csv").read_text().splitlines()) == 1001
