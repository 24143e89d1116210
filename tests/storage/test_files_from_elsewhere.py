"""Files of a sweep that were put back from elsewhere are refused by name; copies under other names are ignored."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from storages import Storage

from raydiff import tree
from raydiff.cli import ls
from raydiff.experiment import trial
from raydiff.experiment.config import Experiment
from raydiff.experiment.ledgers import ledger_of
from raydiff.formats.json_files import outcomes, read_plan
from raydiff.methods.scaffold import Scaffold
from raydiff.models.training import Training
from raydiff.report import load
from raydiff.results.finished import open_finished
from raydiff.results.sampler import Sampler
from raydiff.seeding import generator
from raydiff.storage.file_names import strays

LABELS = torch.tensor([[0], [6]])
COPIES = (
    "{stem} (1){suffix}",
    "{stem}.sync-conflict-20260101-101010-ABCDEFG{suffix}",
    "{name}~",
    "._{name}",
    ".DS_Store",
)


@pytest.fixture(scope="module")
def whole(tiny: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of two finished trials of clients with private states, planned in its sweep.json."""
    sweep = tmp_path_factory.mktemp("elsewhere") / "sweeps" / "s"
    method = Scaffold(model=tiny.method.model, local=Training(steps=2, batch=8, optimizer="sgd"), rounds=2)
    for seed in (0, 1):
        opened = trial.open_trial(replace(tiny, method=method, evaluation=None, seed=seed), sweep)
        for _ in trial.run_trial(opened, trial.local_executor(opened)):
            pass
    plan = {"id": "x", "search": "grid", "trials": [path.name for path in (sweep / "trials").iterdir()]}
    (sweep / "sweep.json").write_text(json.dumps(plan))
    return sweep


@pytest.fixture
def sweep(whole: Path, tmp_path: Path, digests: None) -> Path:
    """A copy: the storage has moved."""
    shutil.copytree(whole, tmp_path / "moved" / "sweeps" / "s")
    return tmp_path / "moved" / "sweeps" / "s"


def content(sweep: Path) -> list[object]:
    """What report, ls, sample and resume read."""
    values: list[object] = [str(load.runs(sweep).to_dict()), str(load.read_rounds(sweep).to_dict()), ls.state(sweep)]
    values += [row[:3] + row[4:] for row in ls.trial_rows(sweep)]
    for folder, _ in outcomes(sweep):
        finished = open_finished(folder)
        states = [finished.trial.store.load_client(client, before=finished.round + 1) or {} for client in (0, 1)]
        values += [tree.digest(state) for state in (finished.server, *states)]
        values += [ledger_of(folder), finished.source(0).sample(LABELS, generator(1)).sum().item()]
    return values


def files(sweep: Path) -> Iterator[Path]:
    """The sealed files: commits and tensors."""
    yield from (path for path in sorted(sweep.rglob("*.*")) if path.match("commit-*") or path.suffix == ".safetensors")


def test_each_file_in_the_place_of_each_other_is_refused_by_name(sweep: Path) -> None:
    paths, expected = list(files(sweep)), content(sweep)
    kinds = {path.parent.name if path.suffix == ".safetensors" else path.name for path in paths}
    assert kinds >= {"commit-00000.json", "clients"}
    for path in paths:
        data = path.read_bytes()
        others = {p for p in paths if p.suffix == path.suffix and p.read_bytes() != data}
        twin = {p for p in others if p.name[:14] == path.name[:14] and p.parent.name != path.parent.name}
        for other in [*sorted(twin), *sorted(others - twin)[:1]]:
            path.write_bytes(other.read_bytes())
            with pytest.raises(ValueError, match=r"is (damaged: it is a copy of|of another)") as error:
                content(sweep)
            assert str(path) in str(error.value), (path, other, str(error.value))
            path.write_bytes(data)
    assert content(sweep) == expected


def test_a_plan_of_another_sweep_is_refused(sweep: Path) -> None:
    plan = {**read_plan(sweep), "trials": ["0" * 16]}
    (sweep / "sweep.json").write_text(json.dumps(plan))
    with pytest.raises(ValueError, match=r"sweep\.json is of another sweep, without trial [0-9a-f]{16}: put back"):
        ls.state(sweep)


@pytest.mark.parametrize("copy", COPIES)
def test_copies_under_other_names_are_ignored_and_counted(
    sweep: Path, copy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    expected, before, folder = content(sweep), strays(sweep), next((sweep / "trials").iterdir())
    paths = [path for path in sweep.rglob("*") if path.is_file() and path.parent.name != "artifacts"]
    copies = {p.with_name(copy.format(name=p.name, stem=p.stem, suffix=p.suffix)) for p in paths}
    for path in paths:
        shutil.copy(path, path.with_name(copy.format(name=path.name, stem=path.stem, suffix=path.suffix)))
    inside = [path for path in folder.rglob("*") if path.is_file()]
    shutil.copytree(folder, sweep / "trials" / copy.format(name=folder.name, stem=folder.name, suffix=""))
    (sweep / "trials" / "notes").mkdir()
    (sweep / "trials" / "notes" / "config.json").write_text("{}")
    assert content(sweep) == expected and before == ""
    assert f": {len(copies) + len(inside) + 1} files, such as " in strays(sweep)
    assert strays(sweep) in load.describe_cut_short(sweep)
    assert ls.main(["--storage", str(sweep.parents[1])]) == 0 and strays(sweep) in capsys.readouterr().out


def test_a_saved_sampler_with_the_states_of_another_is_refused(storage: Storage, tmp_path: Path) -> None:
    for name in ("pfdm", "localonly"):
        open_finished(storage.folder(name)).save_sampler(tmp_path / name)
    (tmp_path / "localonly").rename(tmp_path / "moved")
    sampler = Sampler(tmp_path / "moved")
    assert sampler.of(0) is not None
    server = next((tmp_path / "moved").glob("server-*"))
    server.write_bytes(next((tmp_path / "pfdm").glob("server-*")).read_bytes())
    with pytest.raises(ValueError, match="is damaged: it is a copy of"):
        Sampler(tmp_path / "moved").of(1)
