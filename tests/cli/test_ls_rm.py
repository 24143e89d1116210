"""`raydiff ls` and `raydiff rm`: what there is, and that nothing goes that is run or not meant."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import raydiff as rd
from raydiff.cli import ls, rm
from raydiff.experiment.overrides import override
from raydiff.experiment.owner import held


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage folder with a run."""
    storage = tmp_path_factory.mktemp("storage")
    changes = {"method.local.steps": 1, "method.server.steps": 1, "evaluation": None, "runtime.pool": "local"}
    changes["runtime.storage"] = str(storage)
    rd.run(override(rd.preset("digits").experiment, changes), name="one", track=False)
    return storage


@pytest.fixture
def storage(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "sweeps", tmp_path / "sweeps")
    return tmp_path


def test_sweeps_are_listed(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ls.main(["--storage", str(storage)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "  one  1 finished of 1  " in line and line.endswith(" MB")


def test_what_would_be_lost_is_said_and_stays(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rm.main(["one", "--storage", str(storage)]) == 0
    said = capsys.readouterr().out
    assert "1 finished of 1" in said and "epsilon 9.71 (per example" in said and "nothing was removed" in said
    assert (storage / "sweeps" / "one" / "secret").exists()


def test_a_sweep_goes_with_all_its_files(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rm.main(["one", "--yes", "--storage", str(storage)]) == 0
    assert "epsilon 9.71" in capsys.readouterr().out and not list((storage / "sweeps").iterdir())


def test_one_that_is_run_is_refused(storage: Path) -> None:
    with held(storage / "sweeps" / "one"), pytest.raises(ValueError, match="is being run by process"):
        rm.main(["one", "--yes", "--storage", str(storage)])
    assert (storage / "sweeps" / "one" / "sweep.json").exists()


@pytest.mark.parametrize("name", ["two", "..", "../sweeps/one", "one/trials"])
def test_only_names_of_sweeps_are_taken(storage: Path, name: str) -> None:
    with pytest.raises(ValueError, match="there is no sweep"):
        rm.main([name, "--yes", "--storage", str(storage)])
    assert (storage / "sweeps" / "one" / "sweep.json").exists()


def test_a_folder_without_sweeps_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are no sweeps"):
        ls.main(["--storage", str(tmp_path)])
