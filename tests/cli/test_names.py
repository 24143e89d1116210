"""Every command takes the same names of runs and sweeps, and the storage folder by either spelling of its option."""

import functools
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import MODULES, parsed

import raydiff as rd
from raydiff.__main__ import COMMANDS
from raydiff.cli import ls, rm
from raydiff.cli.options import parse_options
from raydiff.cli.report import FinishedSweepOptions
from raydiff.experiment.overrides import override
from raydiff.formats.json_files import trial_folders
from raydiff.runtime import sweep_folder
from raydiff.tracking import mlflow_models

NEEDS = {
    "attack": "--out o",
    "audit": "adult --out o",
    "canary": "",
    "personalize": "--classes 2",
    "pretrain": "--out o",
    "reconstruct": "--out o",
}
"""What a command needs beside a name of a run or sweep, to be parsed."""
NAMED = [*COMMANDS["finished trials"], *COMMANDS["finished sweeps"], "ls", "rm", "logs", "canary"]
NO_STORAGE = {"account", "calibrate"}


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage folder with a run, one, and a sweep of two trials, two."""
    at = tmp_path_factory.mktemp("storage")
    changes = {"method.local.steps": 1, "method.server.steps": 1, "evaluation": None, "runtime.pool": "local"}
    base = override(rd.preset("digits").experiment, {**changes, "runtime.storage": str(at)})
    rd.run(base, name="one", track=False)
    rd.sweep(base, grid={"seed": (1, 2)}, name="two", track=False)
    return at


@pytest.mark.parametrize("name", NAMED)
def test_every_command_on_runs_or_sweeps_looks_its_name_up_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class LookedUp(Exception):
        pass

    def find(name: str, storage: Path) -> Path:
        raise LookedUp(name, storage)

    monkeypatch.setattr(sweep_folder, "find_folder", find)
    main = __import__(MODULES[name], fromlist=["main"]).main
    for spelling in ("--storage", "--runtime.storage"):
        with pytest.raises(LookedUp) as end:
            main(["some-name", *NEEDS.get(name, "").split(), spelling, "/some/where"])
        assert end.value.args == ("some-name", Path("/some/where"))


@pytest.mark.parametrize("name", sorted(set(MODULES) - NO_STORAGE))
def test_the_storage_has_two_spellings_and_both_mean_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    preset = {"canary": ["digits"], "preview": ["digits"], "init": ["digits"], "audit": [], "pretrain": []}
    words = [*preset.get(name, ["some-name"] if name in NAMED else []), *NEEDS.get(name, "").split()]
    one, two = (parsed(name, [*words, option, "/s"], monkeypatch) for option in ("--storage", "--runtime.storage"))
    assert vars(one[0]) == vars(two[0]) and one[1] == two[1]
    assert Path("/s") == Path(one[1].get("runtime.storage") or one[0].storage)


def test_all_names_of_a_run_and_of_a_sweep(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = storage / "sweeps" / "one", storage / "sweeps" / "two"
    (trial,), (first, _) = trial_folders(one), trial_folders(two)
    ids = {"a" * 32: f"one/{trial.name}", "b" * 32: "two"}
    monkeypatch.setattr(mlflow_models, "find_trial", lambda uri, run, sweeps: ids[run])
    for name in (trial, trial.name, trial.name[:8], f"one/{trial.name[:6]}", "a" * 32, "one", one):
        assert sweep_folder.trial_named(str(name), storage) == trial
        assert sweep_folder.sweep_named(str(name), storage) == one
        assert rd.open(str(name), storage=storage) == rd.Run(trial)
    for name in ("two", two, "b" * 32):
        assert rd.open(str(name), storage=storage) == rd.Sweep(two)
        with pytest.raises(ValueError, match=r"^two may be two/.*: say which, as SWEEP/DIGEST$"):
            sweep_folder.trial_named(str(name), storage)
    options = parse_options(FinishedSweepOptions, [first.name, "--storage", str(storage)], "")
    assert options.folder == two
    for look_up in (functools.partial(rd.open, storage=storage), lambda n: sweep_folder.sweep_named(n, storage)):
        with pytest.raises(
            ValueError, match=r"^there is no run or sweep nix in \S+: give a name that raydiff ls lists"
        ):
            look_up("nix")


def test_one_trial_of_a_sweep_removes_nothing(storage: Path, tmp_path: Path, capsys: Any) -> None:
    shutil.copytree(storage / "sweeps", tmp_path / "sweeps")
    two = tmp_path / "sweeps" / "two"
    with pytest.raises(ValueError, match="is a trial of two, and a sweep is removed as a whole"):
        rm.main([trial_folders(two)[0].name, "--yes", "--storage", str(tmp_path)])
    assert len(trial_folders(two)) == 2
    assert ls.main([str(two), "--runtime.storage", str(tmp_path)]) == 0
    assert rm.main([str(two), "--yes", "--storage", str(tmp_path)]) == 0 and not two.exists()
