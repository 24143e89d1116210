"""Damage every file of a sweep in every way, then read it in every way: a number is right or missing, an error is one
sentence with the path, and epsilon never falls."""

import contextlib
import functools
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import slow_but

import raydiff as rd
from raydiff import tree
from raydiff.data.datasets import Data
from raydiff.data.partition import Iid
from raydiff.experiment import trial
from raydiff.experiment.config import Experiment, Runtime
from raydiff.experiment.ledgers import ledger_of
from raydiff.methods._averaging import Averaging, ClientPrivacy
from raydiff.methods.fedavg import FedAvg
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP
from raydiff.models.samplers import Sampling
from raydiff.models.training import Training
from raydiff.papers.pfdm.method import PFDM
from raydiff.privacy.filters import Budget
from raydiff.privacy.ledger import PrivacyOdometer
from raydiff.report import load
from raydiff.storage.checkpoint import Checkpoint

MODEL = DDPM(network=MLP(width=8, depth=1), timesteps=8)
SHORT, FEW_STEPS = Training(steps=2, batch=4), Sampling(sampler="ddim", steps=2)
METHODS = {
    "noised": FedAvg(
        model=MODEL,
        rounds=3,
        local=SHORT,
        sampling=FEW_STEPS,
        averaging=Averaging(weights="uniform", privacy=ClientPrivacy(trust="local")),
    ),
    "cached": PFDM(model=MODEL, local=SHORT, server=SHORT, server_rounds=2, clip=6.4, sampling=FEW_STEPS),
}
SECRET = "00112233445566778899aabbccddeeff"
BUDGETS = {"cached": Budget(epsilon=1000.0)}


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    """A bit in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def edit(path: Path) -> None:
    """The last digit of the last number."""
    data = bytearray(path.read_bytes())
    body = data.rfind(b'"sha256"') if data.rfind(b'"sha256"') > 0 else len(data)
    at = max(data.rfind(b"%d" % digit, 0, body) for digit in range(10))
    data[at] = ord("3") if data[at] != ord("3") else ord("4")
    path.write_bytes(data)


def remove(path: Path) -> None:
    path.unlink()


def deny(path: Path) -> None:
    """Nobody may read it: for a superuser a folder in its place."""
    path.unlink()
    path.mkdir()


PLAIN = ("config.json", "outcome.json", "sweep.json", "metrics.jsonl", "composed.json", "artifacts")
DAMAGES = {d.__name__: d for d in (truncate, empty, flip, edit, remove, deny)}


@dataclass(frozen=True)
class Left:
    """Storage folder of a sweep of one trial, to be copied and damaged."""

    storage: Path
    experiment: Experiment

    @property
    def sweep(self) -> Path:
        return self.storage / "sweeps" / "s"

    @property
    def folder(self) -> Path:
        (folder,) = (self.sweep / "trials").iterdir()
        return folder

    def copy(self, to: Path) -> "Left":
        shutil.copytree(self.storage, to)
        return Left(to, replace(self.experiment, runtime=replace(self.experiment.runtime, storage=str(to))))

    def files(self, damage: str) -> list[str]:
        """Files of the sweep and of the budget, without those of its process, those that are written again, and plain
        ones, in which a changed character is not found."""
        files = [p.relative_to(self.storage) for p in self.storage.rglob("*") if p.is_file()]
        plain = PLAIN if damage in ("flip", "edit") else ()
        return sorted(str(p) for p in files if not {"owners", "report", "mlflow.db", *plain} & {*p.parts})


def spent(left: Left) -> Any:
    """(epsilon against the server, bytes sent)."""
    odometer = PrivacyOdometer(ledger_of(left.folder))
    return trial.state_guarantees(odometer, left.experiment)[0].epsilon, float(odometer.bytes_up)


def report(left: Left) -> Any:
    runs, rounds = load.runs(left.sweep), load.read_rounds(left.sweep)
    runs = runs.drop(columns=[c for c in runs if "time/" in c or c.startswith("runtime.")])
    rounds = rounds[~rounds["metric"].str.startswith("time/")]
    return runs.to_dict("records"), rounds.to_dict("records"), load.describe_cut_short(left.sweep)


def generate(left: Left) -> Any:
    run = rd.open(left.folder)
    assert isinstance(run, rd.Run)
    samples = torch.as_tensor(run.sample([0, 1], client=0))
    return tree.digest({"samples": samples}), str(run.guarantee), str(run.published)


def resume(left: Left) -> Any:
    run = rd.run(left.experiment, name="s", resume=True, track=False)
    return (*generate(left), sorted((k, v) for k, v in run.all_metrics.items() if not k.startswith("time/")))


READS: dict[str, Callable[[Left], Any]] = {f.__name__: f for f in (spent, report, generate, resume)}  # resume writes


def read_all(left: Left) -> dict[str, Any]:
    """What each of `READS` gives, or the sentence with which the command ends; any other exception is a traceback."""
    results = {}
    for name, read in READS.items():
        try:
            results[name] = read(left)
        except (ValueError, OSError) as e:
            results[name] = str(e)
    return results


@pytest.fixture(scope="module")
def left_by(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Left]:
    """(method, finished or killed) -> a run of three rounds; killed: all of the second was sent, nothing committed."""

    @functools.cache
    def run(name: str, state: str) -> Left:
        storage = tmp_path_factory.mktemp(f"{name}-{state}")
        experiment = Experiment(
            method=METHODS[name],
            data=Data(train=40, public=8, validation=0, calibration=0, test=8),
            partition=Iid(),
            evaluation=None,
            runtime=Runtime(pool="local", storage=str(storage), noise_secret=SECRET, budget=BUDGETS.get(name)),
        )
        with pytest.MonkeyPatch.context() as patch:
            if state == "killed":
                patch.setattr(Checkpoint, "save_server", functools.partialmethod(_killed, Checkpoint.save_server))
            with contextlib.suppress(KeyboardInterrupt):  # the signal that ended it
                rd.run(experiment, name="s", track=False)
        left = Left(storage, experiment)
        if state == "killed":
            (left.folder / "outcome.json").unlink()
        return left

    return run


def _killed(store: Checkpoint, save: Callable[..., None], number: int, state: Any) -> None:
    if number == 1:
        raise KeyboardInterrupt
    save(store, number, state)


def is_honest(name: str, got: Any, true: Any, storage: Path, file: str, damage: str) -> bool:
    """Whether what came out is what it was, or says what is wrong in one sentence with the path."""
    if str(got) == str(true):
        return True
    if isinstance(got, str):
        return str(storage if damage == "remove" else storage / file) in got and "\n" not in got
    if name == "report" and not isinstance(true, str):
        return _leaves_out(got, true, storage / file)
    return False


def _leaves_out(got: Any, true: Any, file: Path) -> bool:
    """Whether a report has less in it and says so, and no number in it is another one, but an epsilon that is inf."""
    (row,), (before,) = got[0], true[0]
    unlike = {k for k, v in row.items() if v == v is not None and v != before.get(k)}  # NaN is none
    unlike -= {k for k in unlike if k.endswith("/epsilon") and row[k] == math.inf}
    unlike -= {f"{view}/{k}" for view in load.VIEWS for k in ("unprotected", "says")}
    if file.name == "outcome.json":  # It is the same trial before its end, which is said.
        return unlike == {"outcome"} and row["outcome"] == "unfinished" and got[1:] == true[1:]
    return not unlike and all(line in true[1] for line in got[1]) and any(str(file) in says for says in got[2])


def is_beyond_knowing(name: str, state: str, file: Path, damage: str) -> bool:
    """What was sent in a round that never counted is told by its own file alone: where that is gone, or a list of lines
    is cut, it is not known. docs/reliability.md says so."""
    notes = file.parent.name == "releases" and damage in (
        "remove",
        *(("truncate", "empty") if "json" in file.name else ()),
    )
    return notes and name in ("spent", "report") and state == "killed"


NOW = [("remove", "noised", "killed")]
CASES = [(damage, "noised", state) for damage in DAMAGES for state in ("finished", "killed")]
CASES += [(damage, "cached", ("finished", "killed")[i % 2]) for i, damage in enumerate(DAMAGES)]


@pytest.mark.parametrize(("damage", "method", "state"), slow_but(NOW, CASES))
def test_damage_is_said_and_no_number_is_wrong(
    left_by: Callable[[str, str], Left], tmp_path: Path, damage: str, method: str, state: str
) -> None:
    left, copy = left_by(method, state), tmp_path / "copy"
    true = read_all(left.copy(copy))
    assert all(isinstance(v, str) == (name == "generate" and state == "killed") for name, v in true.items())
    wrong = []
    for file in left.files(damage):
        shutil.rmtree(copy)
        damaged = left.copy(copy)
        DAMAGES[damage](copy / file)
        for name, got in read_all(damaged).items():
            honest = is_honest(name, got, true[name], copy, file, damage)
            if not honest and not is_beyond_knowing(name, state, Path(file), damage):
                wrong.append(f"{file}, {name}: {got}")
    assert not wrong, "\n".join(wrong)
