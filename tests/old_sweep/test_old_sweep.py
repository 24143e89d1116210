"""A sweep that an earlier version (commit 8c6302a) began is opened, reported, sampled and finished by this one.

`old/` is what its command, the one in sweep.json, left behind when it was killed: PFDM and LocalOnly finished, FedAvg
in round 4 of 10. Without the secret, which the fixture writes, and without pictures and the report.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from raydiff.cli import generate, sweep
from raydiff.report import page
from raydiff.report.frontier.command import write
from raydiff.results.finished import open_finished

PFDM, LOCAL, FEDAVG = "d86e79c47aaef484", "d846d30d60ebe340", "b6ffa7f8f6040722"
UNDISTURBED = {"eval/fd_cnn/all": 1.45397856485696, "eval/label_accuracy/all": 0.17, "comm/bytes_up": 960_000}
"""What FedAvg ended with where the same command was left alone, then."""


@pytest.fixture
def old(tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sweep in a storage folder of its own."""
    for name in ("RAYDIFF_DATA", "RAYDIFF_NOISE_SECRET"):
        monkeypatch.delenv(name, raising=False)
    folder = shutil.copytree(Path(__file__).parent / "old", tmp_path / "sweeps" / "old")
    (folder / "secret").write_bytes(bytes.fromhex("00112233445566778899aabbccddeeff"))
    shutil.copy(migrated, tmp_path / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return folder


AS_IT_WAS = ("--method.model.network.skip", "False", "--method.model.prediction", "epsilon")
"""The preset's network has become another one since."""


def again(old: Path) -> list[str]:
    """The sweep's own arguments, in this storage folder. The secret was an option then, and lies in the folder now."""
    command: list[str] = json.loads((old / "sweep.json").read_text())["command"][1:]
    at = command.index("--runtime.noise-secret")
    arguments = command[:at] + command[at + 2 :]
    arguments[arguments.index("--runtime.storage") + 1] = str(old.parents[1])
    return [*arguments, *AS_IT_WAS, "--resume"]


def committed(old: Path) -> dict[str, str]:
    """The digest of every commit and outcome, by trial and name."""
    files = [*old.glob("trials/*/commit-*.json"), *old.glob("trials/*/outcome.json")]
    return {f"{p.parent.name}/{p.name}": hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def check_finished(old: Path, before: dict[str, str], said: str) -> None:
    """It says what it mixes, changes nothing that was there, and ends with what the old code alone gave."""
    assert "old was begun under other code, by an earlier raydiff" in said
    assert "2 finished trials keep their numbers" in said and FEDAVG in said
    now = committed(old)
    assert {name: now[name] for name in before} == before
    added = {f"{FEDAVG}/commit-{number:05d}.json" for number in range(4, 10)} | {f"{FEDAVG}/outcome.json"}
    assert now.keys() - before.keys() == added
    final = json.loads((old / "trials" / FEDAVG / "outcome.json").read_text())["final"]
    assert {k: final[k] for k in UNDISTURBED} == pytest.approx(UNDISTURBED, rel=1e-5)
    noted = json.loads((old / "sweep.json").read_text())
    assert [b["both"] for b in noted["before"]] == [[FEDAVG]] and noted["before"][0]["version"] is None


def test_it_opens_and_samples(old: Path) -> None:
    finished = open_finished(old / "trials" / PFDM)
    assert str(finished.published).startswith("epsilon 5.97 (per example, replace-one, local trust")
    made = finished.source(None).sample(finished.source(None).labels[:2], torch.Generator().manual_seed(0))
    assert made.shape == (2, 1, 8, 8) and made.isfinite().all()
    assert open_finished(old / "trials" / LOCAL).round == 0
    with pytest.raises(ValueError, match="has not finished"):
        open_finished(old / "trials" / FEDAVG)


@pytest.mark.parametrize("source", ["client", "global"])
def test_it_generates(old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str) -> None:
    arguments = [
        f"old/{PFDM}",
        "--num",
        "3",
        "--source",
        source,
        "--storage",
        str(tmp_path),
        "--out",
        str(tmp_path / "o"),
    ]
    assert generate.main(arguments) == 0
    assert ("epsilon 5.97" in capsys.readouterr().out) == (source == "global")


def test_it_is_reported(old: Path, tmp_path: Path) -> None:
    table = write(old, tmp_path / "out")
    rows = [line.split() for line in table.splitlines()]
    assert [row[:2] for row in rows if "PFDM" in row] == [["PFDM", "5.97"]]
    assert f"unfinished: FedAvg: no reason recorded (epsilon spent inf; {FEDAVG})" in table
    text = page.write(tmp_path / "out", old).read_text()
    assert "5.97" in text and "could not be" not in text


def test_it_is_resumed(old: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """By the command, whose trials run in this process."""
    monkeypatch.setattr(page, "write", lambda *_: "elsewhere")
    before = committed(old)
    assert sweep.main([*again(old), "--runtime.pool", "local"]) == 0
    said = capsys.readouterr().out
    check_finished(old, before, said)
    assert "fitted_on" not in said  # what is not written down in old trials is no setting that differs


def test_other_trials_are_refused(old: Path) -> None:
    with pytest.raises(ValueError, match="another space: 1 trials are new and 1 are gone"):
        sweep.main([*again(old), "--grid", "method.epsilon=20"])


def test_a_preset_that_has_changed_says_how_it_was(old: Path) -> None:
    arguments = [word for word in again(old) if word not in AS_IT_WAS]
    with pytest.raises(
        ValueError, match=rf"3 trials are new and 3 are gone .*; trial {FEDAVG} had {' '.join(AS_IT_WAS)}$"
    ):
        sweep.main(arguments)


@pytest.mark.slow
def test_the_command_resumes_it_on_ray(old: Path) -> None:
    before = committed(old)
    env = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | {"RAY_worker_niceness": "0"}
    command = [sys.executable, "-m", "raydiff", "sweep", *again(old)]
    done = subprocess.run(command, env=env, cwd=old, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    check_finished(old, before, done.stdout)
