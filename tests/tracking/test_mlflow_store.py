"""An MLflow store: created by one process at a time, moved with its storage, and never printed with its password."""

import contextlib
import fcntl
import http.server
import re
import shlex
import shutil
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raydiff import process
from raydiff.runtime import sweep_folder
from raydiff.tracking import mlflow_store
from raydiff.tracking.mlflow_store import ARTIFACTS
from raydiff.tracking.mlflow_writer import Mlflow


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("API request to https://me:p%40ss@host/api failed", "API request to https://me:***@host/api failed"),
        ("http://127.0.0.1:5000 (user@host)", "http://127.0.0.1:5000 (user@host)"),
    ],
)
def test_a_password_is_not_printed(text: str, shown: str) -> None:
    assert mlflow_store.redact_passwords(text) == shown


def test_artifacts_follow_a_storage_that_was_moved(migrated: Path, tmp_path: Path) -> None:
    before, after, folder = tmp_path / "before", tmp_path / "after", tmp_path / "files"
    before.mkdir()
    folder.mkdir()
    shutil.copy(migrated, before / "mlflow.db")
    (folder / "a.txt").write_text("a")
    about: dict[str, Any] = {"experiment": "e", "name": "n", "tags": {}}

    def log(storage: Path) -> str:
        artifacts = f"file://{storage}/{ARTIFACTS}"
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


@pytest.fixture
def answers(tmp_path: Path, migrated: Path) -> Iterator[Any]:
    """Function: what answers -> the URI of a store that answers so."""
    with contextlib.ExitStack() as ends:

        class Answer(http.server.BaseHTTPRequestHandler):
            code, location = 200, ""

            def do_GET(self) -> None:
                self.send_response(200 if self.path == "/login" else self.code)
                if self.location:
                    self.send_header("Location", self.location)
                self.end_headers()
                self.wfile.write(b"<html><title>Sign in</title>\n</html>")

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        def uri(what: str) -> str:
            path = tmp_path / "mlflow.db"
            if what in ("schema", "locked", "deleted"):
                shutil.copy(migrated, path)
                db = ends.enter_context(contextlib.closing(sqlite3.connect(path, isolation_level=None)))
                db.execute(
                    "UPDATE alembic_version SET version_num = '451aebb31d03'" if what == "schema" else "SELECT 1"
                )
                if what == "deleted":
                    client = mlflow_store.connect(f"sqlite:///{path}")
                    client.delete_experiment(client.create_experiment("e"))
                db.execute("BEGIN EXCLUSIVE" if what == "locked" else "SELECT 1")
                return f"sqlite:///{path}"
            if what in ("text", "folder"):
                path.write_text("no database" * 100) if what == "text" else path.mkdir()
                return f"sqlite:///{path}"
            if what == "silence":
                server = ends.enter_context(socket.create_server(("127.0.0.1", 0)))
                return f"http://127.0.0.1:{server.getsockname()[1]}"
            if what.isdigit():
                redirect = {"code": int(what), "location": "/login" if what == "302" else ""}
                http_server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (Answer,), redirect))
                ends.callback(http_server.server_close)
                ends.callback(http_server.shutdown)
                threading.Thread(target=http_server.serve_forever, args=(0.01,), daemon=True).start()
                return f"http://127.0.0.1:{http_server.server_port}"
            return what

        yield uri


STORES = {
    "401": "it wants another login: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
    "403": "it wants another login",
    "404": "what answers there is no MLflow server",
    "500": "the server answers with errors",
    "429": "the server answers with errors",
    "200": "what answers there is no MLflow server: correct MLFLOW_TRACKING_URI",
    "302": "what answers there is no MLflow server: correct MLFLOW_TRACKING_URI",
    "silence": "a server is there and does not answer",
    "http://me:hunter2@127.0.0.1:9": "no server answers there",
    "http://no-such-host.invalid:5000": "no server answers there",
    "ftp://x/y": "unsupported URI 'ftp://x/y'",
    "./mlruns": "maintenance mode",
    "schema": "another version of MLflow wrote it: use that one, or `mlflow db upgrade` on a copy",
    "locked": "database is locked",
    "text": "file is not a database",
    "folder": "unable to open database file",
    "deleted": "its experiment e is deleted: name another by --experiment, or restore it by MLFLOW_TRACKING_URI=sqlite",
}
"""What answers at the URI -> the sentence that refuses the sweep."""
SLOW = {"locked": pytest.mark.slow, "silence": pytest.mark.slow}  # seconds until they give up


@pytest.mark.parametrize("what", [pytest.param(what, marks=SLOW.get(what, ())) for what in STORES])
def test_a_store_that_cannot_be_written_is_named_before_the_sweep_begins(
    what: str, answers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """In one short sentence, on time, with a word where it takes long."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setattr(process, "WAIT_S", 0.5)
    uri, begun = answers(what), time.monotonic()
    follower = Mlflow(uri, experiment="e", sweep=tmp_path, tags={}, artifacts=None, swept={})
    follower.start()
    shown = uri.replace("hunter2", "***")
    says = f"^the MLflow store {re.escape(shown)} cannot be written: .*{STORES[what]}"
    with pytest.raises(ValueError, match=says) as error:
        follower.wait_ready()
    assert len(str(error.value)) < 500 and "\n" not in str(error.value) and time.monotonic() - begun < 60
    out, err = capfd.readouterr()
    assert err == "" and (
        out.startswith(f"  waiting for the MLflow store {shown} (") or (out == "" and what != "silence")
    )


@pytest.mark.parametrize("name", ["run", "s p ü it's", "a;b&c=d:e+f"])
@pytest.mark.parametrize("blank", [None, "", " ", "\t\n"])
def test_a_store_lies_in_its_storage_folder_unless_another_is_named(
    name: str, blank: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the command that shows it names it so that a shell reads it. MLflow cannot keep a store in some folders."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    if blank is not None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", blank)
    storage = tmp_path / name
    assert sweep_folder.tracking_store(storage) == (f"sqlite:///{storage}/mlflow.db", (storage / ARTIFACTS).as_uri())
    page, _, command = sweep_folder.describe_view(storage / "sweeps" / "s", "1", "key").partition(" after: ")
    assert page.endswith(":5000/#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=key")
    program, *_, shown = shlex.split(command)
    assert (program, shown) == ("mlflow", f"sqlite:///{storage}/mlflow.db")
    for odd in ("#1", "?b", "%41y", "%"):
        with pytest.raises(ValueError, match=r"MLflow would write beside the storage folder .*MLFLOW_TRACKING_URI"):
            sweep_folder.tracking_store(tmp_path / (name + odd))


@pytest.mark.parametrize(("name", "store"), [("a;b&c=d:e+f s p ü it's", None), ("x%41y?b#1%", "elsewhere.db")])
def test_files_of_mlflow_stay_below_the_storage_folder(
    name: str, store: str | None, tmp_path: Path, migrated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store elsewhere keeps its files there whatever the folder is called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/{store}" if store else "")
    storage, files = tmp_path / name, tmp_path / "files"
    for folder in (storage, files):
        folder.mkdir()
    (files / "a.txt").write_text("a")
    shutil.copy(migrated, tmp_path / store if store else storage / "mlflow.db")
    uri, artifacts = sweep_folder.tracking_store(storage)
    run = mlflow_store.log_folder(uri, files, experiment="e", name="n", tags={}, artifacts=artifacts)
    assert list(storage.glob(f"mlflow-artifacts/{run}/artifacts/files/a.txt"))
    assert {path.name.partition(".")[0] for path in tmp_path.iterdir()} <= {name, "files", "elsewhere"}
