"""An MLflow store: created by one process at a time, moved with its storage, and never printed with its password."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path
from typing import Any

import pytest

from raydiff.tracking import mlflow_store


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("API request to https://me:p%40ss@host/api failed", "API request to https://me:***@host/api failed"),
        ("http://127.0.0.1:5000 (user@host)", "http://127.0.0.1:5000 (user@host)"),
    ],
)
def test_a_password_is_not_printed(text: str, shown: str) -> None:
    assert mlflow_store.redacted(text) == shown


def test_artifacts_follow_a_storage_that_was_moved(migrated: Path, tmp_path: Path) -> None:
    before, after, folder = tmp_path / "before", tmp_path / "after", tmp_path / "files"
    before.mkdir()
    folder.mkdir()
    shutil.copy(migrated, before / "mlflow.db")
    (folder / "a.txt").write_text("a")
    about: dict[str, Any] = {"experiment": "e", "name": "n", "tags": {}}

    def log(storage: Path) -> str:
        artifacts = f"file://{storage}/{mlflow_store.ARTIFACTS}"
        return mlflow_store.log_folder(f"sqlite:///{storage}/mlflow.db", folder, artifacts=artifacts, **about)

    first = log(before)
    before.rename(after)
    second = log(after)
    assert not before.exists()
    client = mlflow_store.connect(f"sqlite:///{after}/mlflow.db")
    for run in (first, second):
        assert client.get_run(run).info.artifact_uri.startswith(f"file://{after}/")
        assert [f.path for f in client.list_artifacts(run, "files")] == ["files/a.txt"]


def test_a_new_store_is_created_by_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the client's constructor creates the tables, the lock is held: another process would wait."""
    import mlflow

    path = tmp_path / "new" / "mlflow.db"
    refused = []

    def create(tracking_uri: str) -> str:
        with path.with_name("mlflow.db.lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        refused.append(True)
        return tracking_uri

    monkeypatch.setattr(mlflow, "MlflowClient", create)
    mlflow_store.connect(f"sqlite:///{path}")
    assert refused
    with path.with_name("mlflow.db.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it is released
