"""The job as people call it: its table, its files, what it refuses; and, slowly, that it finds what was memorised."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from raydiff.cli import attack
from raydiff.data.datasets import Data
from raydiff.data.partition import Pooled
from raydiff.evaluation.attacks import lira, quantile, rmia
from raydiff.evaluation.attacks.membership import attack_membership as judge
from raydiff.experiment.config import Experiment
from raydiff.methods.localonly import LocalOnly
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP
from raydiff.models.training import Training
from raydiff.results.shadows import ROLES, Attacked, ShadowRequest, open_attacked

READINGS = ["loss", "quantile", "lira-offline", "rmia-offline", "lira-online", "rmia-online"]


def call(storage: Any, out: Path, command: str) -> list[str]:
    return [*command.split(), "--storage", str(storage.root), "--out", str(out)]


def test_the_table_and_the_files(
    copied, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The readings that need no shadows are the same without them, where nothing is trained and no Ray is started."""
    out, command = tmp_path / "out", "localonly --draws 1 --timesteps 4,8 --shadows"
    assert attack.main(call(copied, out, f"{command} 4")) == 0
    output = capsys.readouterr().out
    assert "client 0's own model: 28 members" in output and "\n4 of 4 shadows, " in output
    table = re.findall(rf"^({'|'.join(READINGS)})  +(4|8|mean)  +(\S+) \[.*n too small \(\d+ non", output, re.M)
    assert [line[0] for line in table] == READINGS
    content = json.loads((out / "readings.json").read_text())
    readings = content["readings"]
    assert content["privacy"] == "none" and content["request"]["timesteps"] == [4, 8]
    assert [f"{row['auc']:.3f}" for row in readings] == [line[2] for line in table]
    attacked = open_attacked(ShadowRequest(trial=copied.folder("localonly"), shadows=4, draws=1, timesteps=(4, 8)))
    target, outside = attacked.target(), attacked.role == 2
    losses = torch.stack([attacked.losses(i) for i in range(4)])
    columns = [lira.with_mean(target), quantile.quantile_scores(target, attacked.records.images, outside)]
    for online in (False, True):
        columns.append(lira.lira_scores(target, losses, attacked.inside, online=online))
        columns.append(rmia.rmia_scores(target, losses, attacked.inside, outside, online=online))
    for row, scores in zip(readings, columns, strict=True):
        assert row["auc"] == judge(**{role: scores[attacked.role == i] for i, role in enumerate(ROLES)}).auc
    assert all(row["auc_low"] <= row["auc"] <= row["auc_high"] for row in readings)
    assert all(row["tpr_at_1pct_fpr"] is None for row in readings)
    with (out / "readings.csv").open() as f:
        assert [float(row["auc"]) for row in csv.DictReader(f)] == [row["auc"] for row in readings]
    assert (out / "roc.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(Attacked, "_train", lambda *_: pytest.fail("trained"))
    monkeypatch.setattr("raydiff.runtime.cluster.join_cluster", lambda *_: pytest.fail("Ray"))
    assert attack.main(call(copied, tmp_path / "without", f"{command} 0 --workers 2")) == 0
    assert json.loads((tmp_path / "without" / "readings.json").read_text())["readings"] == readings[:2]


def test_interrupted_it_continues(copied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, trained = Attacked._train, []

    def interrupted(self: Attacked, number: int) -> Any:
        if len(trained) == 2:
            trained.append(-1)
            raise KeyboardInterrupt
        trained.append(number)
        return train(self, number)

    monkeypatch.setattr(Attacked, "_train", interrupted)
    command = call(copied, tmp_path / "out", "fedavg --source global --shadows 4 --draws 1")
    with pytest.raises(KeyboardInterrupt):
        attack.main(command)
    assert not (tmp_path / "out").exists()
    assert attack.main(command) == 0
    assert trained == [0, 1, -1, 2, 3]


def test_a_reading_at_1_percent_needs_500_nonmembers() -> None:
    for n, is_enough in ((499, False), (500, True)):
        scores = {role: torch.arange(float(n))[:, None].repeat(1, 2) for role in ROLES}
        row, column = attack.reading("loss", scores, [40])
        assert (row["tpr_at_1pct_fpr"] is not None) is is_enough and row["n_nonmembers"] == n
        assert column == 0 and row["timestep"] == 40


@pytest.mark.slow
def test_it_finds_what_a_small_model_memorised(tiny: Experiment, storage, tmp_path: Path, data_root: Path) -> None:
    """186 epochs of 1,100 digits without protection, 46 for each of the 4 timesteps: by shadows a fifth of the members
    and more are found at one false alarm in a hundred, where a single threshold finds next to none.

    MNIST, for a rate at 1 % takes 500 non-members to calibrate and 500 to evaluate."""
    training = Training(steps=800, batch=256)
    method = LocalOnly(model=DDPM(network=MLP(width=256, depth=2), timesteps=4), local=training)
    sizes = {"train": 1100, "public": 0, "validation": 0, "calibration": 800, "test": 800}
    data = Data(name="mnist", root=str(data_root), size=8, **sizes)
    alone = type(storage)(tmp_path)
    alone.finish("memorised", replace(tiny, method=method, data=data, clients=1, partition=Pooled(), evaluation=None))
    assert attack.main(call(alone, tmp_path / "out", "memorised --shadows 4")) == 0
    kept = json.loads((tmp_path / "out" / "readings.json").read_text())["readings"]
    loss, quantile, *shadowed = kept
    assert [row["attack"] for row in kept] == READINGS and loss["n_nonmembers"] >= 500
    for row in shadowed:
        assert row["tpr_at_1pct_fpr"] > 0.2 > 0.1 > loss["tpr_at_1pct_fpr_high"]
        assert row["auc_low"] > quantile["auc_high"]
    assert quantile["auc"] > loss["auc"]
