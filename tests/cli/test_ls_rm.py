"""`raydiff ls` and `raydiff rm`: what there is, and that nothing goes that is run or not meant."""

import shutil
from pathlib import Path

import pytest
from buckets import objects

import raydiff as rd
from raydiff.__main__ import _fetch_sweeps
from raydiff.cli import ls, rm
from raydiff.experiment.config import Experiment
from raydiff.experiment.overrides import override
from raydiff.storage.lease import hold_lease


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage folder with a run."""
    storage = tmp_path_factory.mktemp("storage")
    changes = {"method.local.steps": 1, "method.server.steps": 1, "evaluation": None, "runtime.pool": "local"}
    changes["runtime.storage"] = str(storage)
    rd.run(override(rd.preset("digits").experiment, changes), name="one", track=False)
    return storage


@pytest.fixture
def storage(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished / "sweeps", tmp_path / "sweeps")
    return tmp_path


def test_sweeps_are_listed(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ls.main(["--storage", str(storage)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "  one  1 finished of 1  " in line and line.endswith(" MB")


def test_a_sweeps_trials_are_listed_with_their_guarantees(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ls.main(["one", "--storage", str(storage)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    (folder,) = (storage / "sweeps" / "one" / "trials").iterdir()
    assert line.startswith(f"{folder.name}  PFDM  finished  ") and "B  epsilon 9.71 (per example" in line
    (folder / "outcome.json").unlink()
    assert ls.main(["one", "--storage", str(storage)]) == 0 and "  not ended  " in capsys.readouterr().out
    with pytest.raises(ValueError, match="there is no run or sweep two"):
        ls.main(["two", "--storage", str(storage)])


def test_of_a_cache_only_what_is_made_again_goes(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = storage / "sweeps" / "one" / "cache"
    for name in ("cnn-1", "shadow-1", "shadow-log-losses-1", "client-1"):
        (cache / f"{name}.safetensors").write_text("12345")
    kept = sorted(cache.glob("client-*"))
    assert rm.main(["one", "--cache", "--storage", str(storage)]) == 0
    assert "3 files, 15 B\nnothing was removed" in capsys.readouterr().out
    assert len(list(cache.iterdir())) == 3 + len(kept)
    assert rm.main(["one", "--cache", "--yes", "--storage", str(storage)]) == 0
    assert sorted(cache.iterdir()) == kept and len(kept) > 1


def test_what_would_be_lost_is_printed_and_goes_only_on_request(
    storage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rm.main(["one", "--storage", str(storage)]) == 0
    output = capsys.readouterr().out
    assert "1 finished of 1" in output and "epsilon 9.71 (per example" in output and "nothing was removed" in output
    with hold_lease(storage / "sweeps" / "one"), pytest.raises(ValueError, match="is being run by process"):
        rm.main(["one", "--yes", "--storage", str(storage)])
    assert (storage / "sweeps" / "one" / "secret").exists()
    assert rm.main(["one", "--yes", "--storage", str(storage)]) == 0
    assert "epsilon 9.71" in capsys.readouterr().out and not list((storage / "sweeps").iterdir())


@pytest.mark.parametrize("given", [True, False])
def test_a_sweep_in_a_bucket_goes_with_this_machines_copies(
    given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Experiment
) -> None:
    """With its secret in the environment, and without."""
    monkeypatch.setenv("RAYDIFF_CACHE", str(tmp_path / "copies"))
    if given:
        monkeypatch.setenv("RAYDIFF_NOISE_SECRET", "ab" * 32)
    uri = f"file://{tmp_path / 'bucket'}"
    changes = {"evaluation": None, "runtime.pool": "local", "runtime.storage": uri}
    for name in ("one", "one-more"):
        rd.run(override(tiny, changes), name=name, track=False)
    assert rm.main(_fetch_sweeps(["one", "--storage", uri])) == 0
    kept = {path for path in objects(tmp_path) if "/one-more/" in str(path)}
    assert {path for path in objects(tmp_path) if "/one/" in str(path)} and kept
    assert rm.main(_fetch_sweeps(["one", "--yes", "--storage", uri])) == 0
    assert {path for path in objects(tmp_path) if path.name not in (".gitignore", ".rayignore")} == kept
    assert not [path for path in (tmp_path / "copies").rglob("one/*") if path.is_file()]
    with pytest.raises(ValueError, match="there is no run or sweep one"):
        rm.main(_fetch_sweeps(["one", "--yes", "--storage", uri]))


@pytest.mark.parametrize("name", ["two", "..", "../sweeps/one", "one/trials"])
def test_only_names_of_sweeps_are_taken(storage: Path, name: str) -> None:
    with pytest.raises(ValueError, match="there is no run or sweep"):
        rm.main([name, "--yes", "--storage", str(storage)])
    assert (storage / "sweeps" / "one" / "sweep.json").exists()
