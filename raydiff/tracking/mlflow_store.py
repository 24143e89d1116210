"""An MLflow store: open it, and write runs, parameters, metrics and files to it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import math
import os
import re
import sqlite3
import time
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ARTIFACTS = "mlflow-artifacts"  # the folder beside a SQLite store in which MLflow keeps files
PATH_COLUMNS = (("experiments", "artifact_location"), ("runs", "artifact_uri"), ("logged_models", "artifact_location"))
"""(table, column) in which MLflow 3 keeps absolute paths of that folder."""
REFUSED = ("ConnectionRefusedError", "ConnectTimeout", "NewConnectionError", "NameResolutionError")
"""Names of errors of an address without a server: Python's, and those of requests and urllib3."""
PAGE = 1000  # runs
BATCH, PARAMS = 900, 100  # metrics and params per request; MLflow takes 1000 and 100


def connect(uri: str) -> Any:
    """An MlflowClient that prints nothing. Creates a SQLite store that does not exist."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # we wait and retry ourselves
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # two lines for each run of a server
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it logs every migration of a new store
    from mlflow import MlflowClient

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    if not uri.startswith("sqlite:///"):
        return MlflowClient(tracking_uri=uri)
    path = Path(uri.removeprefix("sqlite:///"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as lock:  # creating a store's tables is not atomic
        fcntl.flock(lock, fcntl.LOCK_EX)
        client = MlflowClient(tracking_uri=uri)
        _follow_move(path)
    return client


def _follow_move(path: Path) -> None:
    """Replace the old folder in a SQLite store's tables, if its storage was moved: MLflow would create it again."""
    here = path.parent / ARTIFACTS
    if not here.is_dir():
        return
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        for (location,) in db.execute("SELECT DISTINCT artifact_location FROM experiments").fetchall():
            old = Path(str(location).removeprefix("file://"))
            if old.name != ARTIFACTS or old == here or old.exists():
                continue
            for table, column in PATH_COLUMNS:
                rest = f"substr({column}, {len(location) + 1})"
                db.execute(
                    f"UPDATE {table} SET {column} = ? || {rest} WHERE substr({column}, 1, ?) = ?",
                    (f"file://{here}", len(location), location),
                )


def redacted(text: str) -> str:
    """The text without the password of any URL in it."""
    return re.sub(r"(://[^\s/:@]*:)[^\s@]+@", r"\1***@", text)


def cannot_be_written(uri: str, error: Exception) -> ValueError:
    """The error of an MLflow store, in one sentence."""
    return ValueError(f"the MLflow store {redacted(uri)} cannot be written: {first_line(error)}")


def first_line(error: Exception) -> str:
    """First line of an error with passwords removed; of a refused connection that no server answers."""
    cause: BaseException | None = error
    while cause is not None:
        if type(cause).__name__ in REFUSED:
            return "no server answers there; start it, or unset MLFLOW_TRACKING_URI"
        cause = cause.__cause__ or cause.__context__
    return redacted((str(error).strip() or type(error).__name__).splitlines()[0])


def all_runs(client: Any, experiment: str, query: str) -> list[Any]:
    """All runs of an experiment that match a query, from as many pages as MLflow has."""
    runs, token = [], None
    while True:
        page = client.search_runs([experiment], query, max_results=PAGE, page_token=token)
        runs += page
        if not (token := page.token):
            return runs


def delete_runs(client: Any, experiment: str, tags: Mapping[str, str]) -> None:
    """Delete the runs of an experiment that have all these tags."""
    for run in all_runs(client, experiment, " and ".join(f"tags.`{k}` = '{v}'" for k, v in tags.items())):
        client.delete_run(run.info.run_id)


def log_data(client: Any, run: str, name: str, digest: str) -> None:
    """Log the run's data set. The digest is keyed: it identifies no records without the key."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    dataset = Dataset(name=Path(name).name, digest=digest, source_type="raydiff", source=json.dumps({"name": name}))
    client.log_inputs(run, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])


def experiment_id(client: Any, name: str, artifacts: str | None) -> str:
    """The id of an experiment, which is created with this artifact location if there is none."""
    if (existing := client.get_experiment_by_name(name)) is None:
        try:
            return str(client.create_experiment(name, artifact_location=artifacts))
        except Exception:  # Another process may have created it just now.
            if (existing := client.get_experiment_by_name(name)) is None:
                raise
    return str(existing.experiment_id)


def log_params(client: Any, run: str, params: Mapping[str, object]) -> None:
    """Log parameters, each cut to the length that MLflow takes."""
    from mlflow.entities import Param

    batch = [Param(k, str(v)[:6000]) for k, v in params.items()]
    for i in range(0, len(batch), PARAMS):
        client.log_batch(run, params=batch[i : i + PARAMS])


def log_values(client: Any, run: str, values: Iterable[tuple[str, int, object]], *, at: float | None = None) -> None:
    """Log those of (name, step, value) that are finite numbers, at Unix time `at` (default: now). MLflow stores an
    infinite epsilon as 1.8e308, which flattens every chart; it is the tag raydiff.epsilon instead."""
    from mlflow.entities import Metric

    ms = int((time.time() if at is None else at) * 1000)
    usable = [(k, step, v) for k, step, v in values if isinstance(v, (int, float)) and math.isfinite(v)]
    # MLflow takes these letters in a metric's name.
    metrics = [Metric(re.sub(r"[^\w\-. :/]", "", k)[:250], float(v), ms, step) for k, step, v in usable]
    for i in range(0, len(metrics), BATCH):
        client.log_batch(run, metrics=metrics[i : i + BATCH])


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
    """Log a folder as the artifact `folder.name` of a new, finished run, with metrics (name, step, value); returns its
    id. Raises ValueError if MLflow cannot be written."""
    try:
        client = connect(uri)
        at = experiment_id(client, experiment, artifacts)
        run = str(client.create_run(at, run_name=name, tags=dict(tags)).info.run_id)
        log_params(client, run, params)
        log_values(client, run, metrics)
        client.log_artifacts(run, str(folder), folder.name)
        client.set_terminated(run, "FINISHED")
        return run
    except Exception as e:  # whatever MLflow raises
        raise cannot_be_written(uri, e) from e
