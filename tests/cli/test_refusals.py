"""What commands refuse beyond a bad option: exit code 2, one sentence that names the field, nothing is written."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_options import DECLARED

from raydiff.results.shadows import Attacked

REFUSED = {
    "attack localonly --shadows -2": "shadows must be 0 or an even number of at least 4, got -2",
    "attack localonly --timesteps 21 --shadows 4": r"timesteps must be one or more numbers in 1 \.\. 20, got \[21\]",
    "attack localonly --workers 0": "--workers must be at least 1, got 0",
    "attack localonly --client 9": "there is no client 9: this trial has clients 0 to 1",
    "attack localonly --source global": "LocalOnly ends with no global denoiser of pictures to attack; it has client",
    "attack localonly --num 5": "--num has no meaning for pictures",
    "attack pfdm --source global --client 1": "--client has no meaning with --source global",
    "generate nix": "there is no run or sweep nix in ",
    "generate pfdm --num 0": r"--num must be at least 1 and at most 1e\+09, got 0",
    "generate pfdm --numbers bins": "numbers has no meaning for pictures, got bins",
    "generate pfdm --client 7": "there is no client 7: this trial has clients 0 to 1",
    "generate pfdm --num 1000000000000000": r"--num must be at least 1 and at most 1e\+09, got",
    "generate localonly --source global": "LocalOnly has no model that its clients share",
    "generate pfdm --source global --client 1": "--client has no meaning with --source global",
    "generate pfdm --log-model --num 5": "--log-model makes no samples",
    "personalize pfdm": "PFDM has no shared model that a new client could make its own",
    "personalize fedavg": "there is no MLflow store ",
    "personalize fedavg --epochs=-1": "--epochs must be at least 0, got -1",
    "personalize fedavg --lr 0": "--lr must be above 0, got 0",
    "personalize fedavg --no-mlflow --records 5000": "there are 1537 records of its classes that no client trained on",
    "personalize fedavg --no-mlflow --classes 2,12": "the run's data have no class '12'; they have 0, 1, 2",
    "reconstruct fedavg": "FedAvg sends no noised records: there is nothing to reconstruct",
    "reconstruct pfdm --records 1": "--records must be at least 2, got 1",
    "reconstruct pfdm --public-steps 0": "--public-steps must be at least 1",
    "init": "DATA is missing",
    "init digits --method.clp 3": r"unknown field --method\.clp; did you mean method\.clip",
    "init digits --clients 900": r"a minority client would get",
    "preview digit": r"unknown data set 'digit'.*; did you mean digits\?",
    "preview --clients 120": r"a minority client would get 0 of the",
    "preview digits --data.public-from digits": "public records must hold no record of the run",
    "calibrate --clip 15 --epsilon 0": "--epsilon must be above 0, got 0",
    "calibrate --clip 15 --schedule quadratic": "schedule must be one of linear",
    "calibrate --clip 15 --t0 1001": r"--t0 must be in 1\.\.1000, got 1001",
    "calibrate --clip 35 --epsilon 1": "the smallest reachable with this schedule is 1.750",
    "pretrain --no-mlflow --training.words 0": "--training.words must be at least 1, got 0",
    "pretrain --no-mlflow --data.size 7": r"divisible by 2, got 7x7: set data\.size",
    "pretrain --no-mlflow --data.public 0": r"no public records to train on: set data\.public",
    "canary digitz": "'digitz' is no preset; did you mean digits.*, and no run: ",
    "canary digits --seeds 0": "--seeds must be at least 1, got 0",
    "rm two --yes": "there is no run or sweep two",
    "logs nothing": "there is no run or sweep nothing",
    "budget mnist": "there is no budget of mnist in .*: the first trial with --budget begins one",
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_command_refuses_in_one_sentence(
    line: str, storage: Any, command: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAYDIFF_DATA", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/none.db")
    monkeypatch.setattr(Attacked, "_train", lambda *_: pytest.fail("trained"))
    name, *words = line.split()
    options = {f.name for f in dataclasses.fields(DECLARED[name])}
    words += ["--storage", storage.root] if "storage" in options else []
    if "out" in options and "--out" not in line and "--log-model" not in line:
        words += ["--out", tmp_path / "out"]
    code, _, err = command(name, *words)
    assert code == 2 and err.count("\n") == 1 and re.search(f"^error: .*{REFUSED[line]}", err)
    assert list(tmp_path.iterdir()) == []
