"""An MLflow store: open it, and write runs, parameters, metrics and files to it."""

import contextlib
import fcntl
import functools
import hashlib
import logging
import math
import os
import re
import shlex
import sqlite3
import time
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from raydiff.formats.json_files import dumps

ARTIFACTS = "mlflow-artifacts"  # the folder beside a SQLite store in which MLflow keeps files
PATH_COLUMNS = (("experiments", "artifact_location"), ("runs", "artifact_uri"), ("logged_models", "artifact_location"))
"""(table, column) in which MLflow 3 keeps absolute paths of that folder."""
SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # we wait and retry ourselves
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",  # MLflow's default of 120 s is a long silence
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # two lines for each run of a server
    "GIT_PYTHON_REFRESH": "quiet",
}
"""MLflow's environment variables, where the user has not set them."""
MOST_RUNS = 50_000  # that MLflow finds at once
# metrics and params per request; MLflow takes 1000 and 100
BATCH = 900
PARAMS = 100
NAME = 250  # characters of a name that MLflow takes
TEXT = 6000  # characters of a parameter or tag that MLflow takes
REMARK = "raydiff.remark"  # the tag with what MLflow lacks of a run, and why
CAUSES = {  # pattern of an error's text, or of its causes' types -> what it means, and the remedy
    "ConnectTimeout|NewConnection|NameResolution": "no server answers there; start it, or unset MLFLOW_TRACKING_URI",
    "ReadTimeout|RemoteDisconnected": "a server is there and does not answer; restart it, or unset MLFLOW_TRACKING_URI",
    "error code 40[13]|_DENIED": "it wants another login: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
    "error code 404|not in a valid JSON": "what answers there is no MLflow server: correct MLFLOW_TRACKING_URI",
    "too many [45]": "the server answers with errors, which its log explains",
    "out-of-date database": "another version of MLflow wrote it: use that one, or `mlflow db upgrade` on a copy",
    "The experiment [^']* 'active'": "its experiment was deleted; `mlflow experiments restore` brings it back",
}


def connect(uri: str) -> Any:
    """An MlflowClient that prints nothing. Creates a SQLite store that does not exist."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it logs every migration of a new store
    from mlflow import MlflowClient

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # it logs tracebacks of what it raises
    if (path := sqlite_file(uri)) is None:
        return MlflowClient(tracking_uri=uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as lock:  # creating a store's tables is not atomic
        fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA schema_version")  # raises at once, where MLflow tries for two minutes
        client = MlflowClient(tracking_uri=uri)
        _follow_move(path)
    return client


def sqlite_file(uri: str) -> Path | None:
    """The file of a SQLite store; None for another store."""
    path = uri.removeprefix("sqlite:///").partition("?")[0]
    return Path(unquote(path)) if uri.startswith("sqlite:///") else None


def _follow_move(path: Path) -> None:
    """Replace the old folder in a SQLite store's tables, if its storage was moved: MLflow would create it again."""
    here = path.parent / ARTIFACTS
    if not here.is_dir():
        return
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        for (location,) in db.execute("SELECT DISTINCT artifact_location FROM experiments").fetchall():
            old = Path(unquote(str(location).removeprefix("file://")))
            if old.name == ARTIFACTS and old != here and not old.exists():
                for table, column in PATH_COLUMNS:
                    db.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", (location, here.as_uri()))


def redact_passwords(text: str) -> str:
    """The text without the password of any URL in it."""
    return re.sub(r"(://[^\s/:@]*:)[^\s@]+@", r"\1***@", text)


def describe_unwritable(uri: str, error: BaseException) -> ValueError:
    """The error of an MLflow store, in one sentence."""
    return ValueError(f"the MLflow store {redact_passwords(uri)} cannot be written: {explain_error(error)}")


def explain_error(error: BaseException) -> str:
    """What an error of a store means and what to do, as in CAUSES; else its `first_line`."""
    text = ""
    cause = error.__cause__ or error.__context__
    while cause is not None:
        text = f"{text} {type(cause).__name__}"
        cause = cause.__cause__ or cause.__context__
    text += f" {type(error).__name__} {error}"
    return next((why for pattern, why in CAUSES.items() if re.search(pattern, text)), first_line(error))


def first_line(error: BaseException) -> str:
    """The start of an error's first line with passwords removed."""
    return redact_passwords((str(error).strip() or type(error).__name__).splitlines()[0])[:300]


@dataclass
class RunClient:
    """An MlflowClient for one run: an error of `log_...` is a remark on the run, and the rest of the run goes on."""

    client: Any
    run: str
    lacks: str = ""  # why MLflow lacks something of the run

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)
        return functools.partial(self.attempt, method) if name.startswith("log_") else method

    def attempt(self, log: Callable[..., object], *args: Any, **options: Any) -> None:
        """Call a function that logs. Raises where the run takes no remark either: it is deleted, or the store fails."""
        try:
            log(*args, **options)
        except Exception as e:  # whatever MLflow or the store of artifacts raises
            if (why := first_line(e)) not in self.lacks:
                self.lacks = make_storable(f"{self.lacks}; {why}".removeprefix("; "))
            self.client.set_tag(self.run, REMARK, self.lacks)


def delete_runs(client: Any, experiment: str, tags: Mapping[str, str]) -> None:
    """Delete the runs of an experiment that have all these tags."""
    query = " and ".join(f"tags.`{k}` = '{v}'" for k, v in tags.items())
    for run in client.search_runs([experiment], query, max_results=MOST_RUNS):
        client.delete_run(run.info.run_id)


def log_data(client: Any, run: str, name: str, digest: str) -> None:
    """Log the run's data set. The digest is keyed: it identifies no records without the key."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    dataset = Dataset(name=Path(name).name, digest=digest, source_type="raydiff", source=dumps({"name": name}))
    client.log_inputs(run, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])


def experiment_id(client: Any, name: str, artifacts: str | None) -> str:
    """The id of an experiment, created with this artifact location if there is none. Raises ValueError if deleted."""
    if (existing := client.get_experiment_by_name(name)) is None:
        try:
            return str(client.create_experiment(name, artifact_location=artifacts))
        except Exception:  # Another process may have created it just now.
            if (existing := client.get_experiment_by_name(name)) is None:
                raise
    if existing.lifecycle_stage == "deleted":
        raise ValueError(
            f"its experiment {name} is deleted: name another by --experiment, or restore it by MLFLOW_TRACKING_URI="
            f"{shlex.quote(redact_passwords(client.tracking_uri))} mlflow experiments restore --experiment-id "
            f"{existing.experiment_id}"
        )
    return str(existing.experiment_id)


def log_params(client: Any, run: str, params: Mapping[str, object]) -> None:
    """Log parameters, each cut to the length that MLflow takes."""
    from mlflow.entities import Param

    batch = [Param(mlflow_name(k), make_storable(v)) for k, v in params.items()]
    for i in range(0, len(batch), PARAMS):
        client.log_batch(run, params=batch[i : i + PARAMS])


def log_values(
    client: Any,
    run: str,
    values: Iterable[tuple[str, int, object]],
    *,
    at: Mapping[int, float] = types.MappingProxyType({}),
) -> None:
    """Log those of (name, step, value) that are finite numbers, at the Unix time `at` of their step (default: now).

    MLflow stores an infinite epsilon as 1.8e308, which flattens every chart; it is the tag raydiff.epsilon instead.
    """
    from mlflow.entities import Metric

    now = time.time()
    usable = [(k, step, v) for k, step, v in values if isinstance(v, (int, float)) and math.isfinite(v)]
    metrics = [Metric(mlflow_name(k), float(v), int(at.get(step, now) * 1000), step) for k, step, v in usable]
    for i in range(0, len(metrics), BATCH):
        client.log_batch(run, metrics=metrics[i : i + BATCH])


def mlflow_name(name: str) -> str:
    """Return a name that MLflow takes: the same where it can be.

    Else it has `_` for the letters that MLflow refuses, and a digest of the name at its end, so that no two names
    become one.
    """
    allowed = "/".join(word for word in re.sub(r"[^\w\-. :/]", "_", name).split("/") if word.strip("."))
    if allowed == name and 0 < len(name) <= NAME:
        return name
    return f"{allowed[: NAME - 9]}-{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:8]}"


def make_storable(value: object) -> str:
    """The text of a value as every store takes it: cut, in UTF-8, without NUL."""
    return str(value).encode(errors="replace").decode().replace("\0", "?")[:TEXT]


def log_folder(
    uri: str,
    folder: Path,
    *,
    experiment: str,
    name: str,
    tags: Mapping[str, str],
    artifacts: str | None,
    params: Mapping[str, object] = types.MappingProxyType({}),
    metrics: Sequence[tuple[str, int, float]] = (),
) -> str:
    """Log a folder as the artifact `folder.name` of a new, finished run, and return the run's id.

    The metrics are (name, step, value). Raises ValueError if MLflow cannot be written.
    """
    try:
        client = connect(uri)
        at = experiment_id(client, experiment, artifacts)
        run = str(client.create_run(at, run_name=name, tags=dict(tags)).info.run_id)
        log_params(client, run, params)
        log_values(client, run, metrics)
        client.set_terminated(run, "FINISHED")
        client.log_artifacts(run, str(folder), folder.name)
        return run
    except Exception as e:  # whatever MLflow raises
        raise describe_unwritable(uri, e) from e
