"""The storage folder: refused where it cannot work, and never taken by git or a Ray job."""

import errno
import os
import shlex
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray._private.runtime_env.packaging import create_package

from raydiff.experiment.config import Experiment
from raydiff.runtime import sweep_folder
from raydiff.storage import staging


def at(storage: Path, base: Experiment) -> Experiment:
    return replace(base, runtime=replace(base.runtime, storage=str(storage)))


@pytest.mark.parametrize("number", ["EPERM", "ENOTSUP", "EOPNOTSUPP", "EMLINK", "ENOSYS", "EINVAL", "EACCES"])
def test_a_file_system_without_hard_links_is_refused_at_the_start(
    tmp_path: Path, tiny: Experiment, monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    def refuse(source: Path, link: Path) -> None:
        code = getattr(errno, number)
        raise OSError(code, os.strerror(code), str(source), None, str(link))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(ValueError, match=r"needs hard links, which exFAT .* lack \(set runtime.storage ") as error:
        sweep_folder.create_folder(at(tmp_path / "card", tiny), "s")
    assert "\n" not in str(error.value) and list((tmp_path / "card").iterdir()) == []


@pytest.mark.parametrize("number", ["EROFS", "EACCES", "ENOSPC", "EDQUOT", "ENAMETOOLONG", "EIO"])
def test_a_folder_that_cannot_be_written_is_refused(
    tmp_path: Path, tiny: Experiment, monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    error = OSError(getattr(errno, number), os.strerror(getattr(errno, number)))

    def refuse(*_: Any) -> None:
        raise error

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(ValueError, match=rf"^the storage folder {tmp_path} cannot be written: {error.strerror}$"):
        sweep_folder.create_folder(at(tmp_path, tiny), "s")
    assert sweep_folder.not_writable(error, tmp_path)


def test_a_file_or_too_long_a_path_is_no_storage(tmp_path: Path, tiny: Experiment) -> None:
    (tmp_path / "file").touch()
    for path, says in {
        "file": "it is a file",
        "file/below": "Not a directory",
        "x" * 300: "File name too long",
    }.items():
        with pytest.raises(ValueError, match=f"cannot be written: {says}$"):
            sweep_folder.create_folder(at(tmp_path / path, tiny), "s")
    with pytest.raises(ValueError, match="name must be at most 200 letters"):
        sweep_folder.locate_sweep(tiny, "x" * 201)


# --- a storage folder inside a checkout ---


def staged(checkout: Path) -> set[str]:
    for argv in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", "-C", str(checkout), *argv], check=True, capture_output=True)
    listed = subprocess.run(["git", "-C", str(checkout), "ls-files", "-z"], check=True, capture_output=True, text=True)
    return set(filter(None, listed.stdout.split("\0")))


def packed(checkout: Path, *, gitignore: bool) -> set[str]:
    """What `ray job submit --working-dir .` takes."""
    archive = checkout.parent / f"package-{gitignore}.zip"
    create_package(str(checkout), archive, include_gitignore=gitignore, excludes=[".git"])
    return {name for name in zipfile.ZipFile(archive).namelist() if not name.endswith("/")}


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("name", ["storage", "a #?%41 b", "-x", "\n", "ü"])
def test_neither_git_nor_ray_takes_a_file_of_it(tmp_path: Path, tiny: Experiment, name: str, *, existing: bool) -> None:
    """Where it existed, the user's own files in it are taken as before."""
    checkout, storage, expected = tmp_path / "checkout", tmp_path / "checkout" / name, {"code.py"}
    storage.mkdir(parents=True)
    (checkout / "code.py").touch()
    if existing:
        (storage / "notes.txt").touch()
        (storage / ".gitignore").write_text("*.log\n")
        expected |= {f"{name}/notes.txt", f"{name}/.gitignore"}
    for _ in range(2):
        sweep = sweep_folder.create_folder(at(storage, tiny), "s")
        sweep_folder.write_sweep(sweep, {"trials": []}, bytes(32))
    for file in ("sweeps/s/trials/a/commit-00000.json", "previews/x.png", "budgets/x/00001.json", "mlflow-artifacts/m"):
        (storage / file).parent.mkdir(parents=True, exist_ok=True)
        (storage / file).touch()
    assert (storage / "sweeps" / "s" / "secret").exists()
    assert staged(checkout) == expected and {*checkout.iterdir()} == {checkout / n for n in (".git", "code.py", name)}
    assert packed(checkout, gitignore=True) == packed(checkout, gitignore=False) == expected


def test_a_buckets_working_folder_is_ignored_too(tmp_path: Path) -> None:
    staging.begin_working_copy(tmp_path / "cache", f"file://{tmp_path}/bucket")
    (tmp_path / "cache" / "sweeps").mkdir()
    (tmp_path / "cache" / "sweeps" / "secret").touch()
    assert staged(tmp_path) == set()


@pytest.mark.parametrize("storage", ["a b", "#?%41", "it's", "-x", "\n"])
def test_printed_commands_are_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, storage: str) -> None:
    argv = ["run", "digits", "--runtime.storage", storage]
    monkeypatch.setattr(sys, "argv", ["raydiff", *argv, "--resume"])
    about = sweep_folder.describe_sweep(
        tmp_path / "s", trials=[], search={"search": ["grid", {}]}, secret=bytes(32), data="digits", resume=True
    )
    sweep_folder.write_sweep(tmp_path / "s", about, bytes(32))
    printed = sweep_folder.resume_command(tmp_path / "s")
    assert shlex.split(printed) == ["raydiff", *argv, "--name", "s", "--resume"]
