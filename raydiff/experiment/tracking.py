"""Where results go. A trial writes JSON lines; MLflow has one writer, a thread in the driver that follows those files.

Trials never wait for MLflow and never import it (2 to 20 s per process). Because the files are the record, the follower
may start late, lose its server for a while, or be killed: the next one reads the same files, finds the same runs by
their tags and adds what is missing. Beside `runs.py` the only home of mlflow.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import math
import os
import re
import sqlite3
import threading
import time
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from raydiff.report.files import KEYED, flatten, published, read_json, read_lines

ENDED = {"finished": "FINISHED", "stopped": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
"""Our outcome -> MLflow's run status. A trial stopped early by a scheduler did what it was asked to."""
ARTIFACTS = "mlflow-artifacts"
"""The folder beside a SQLite store in which MLflow keeps files."""
MOVED = (("experiments", "artifact_location"), ("runs", "artifact_uri"), ("logged_models", "artifact_location"))
"""(table, column) in which MLflow 3 keeps whole paths of that folder."""
PERIOD_S = 2.0  # between looks at the files
LONGEST_WAIT_S = 60.0  # between attempts while MLflow cannot be reached
BATCH, PARAMS = 900, 100  # metrics and params per request; MLflow takes 1000 and 100
FINAL = "final.json"
NOTE = 8000  # characters of a tag's value
QUALIFIES = re.compile(
    r"_(low|high|spread|real)$|(?<!all)(?<!minor)_floor$|/kd_\w+/\w+_floor$|/(ddim|ancestral|dpmsolver|class|client)/(?!best/)|/sanity$"
    r"|/(major|cluster_[ab])$|/attack/[^/]+/(?!best/)|/(precision|recall|density|coverage)/(?!all)"
    r"|/(threshold|timestep_index|n_members|n_nonmembers|tpr_calibrated|balanced_accuracy|fpr_reached\S*|tpr_at_0\S*)$"
)
"""Final numbers that qualify others: they are in the run's table `final.json`, and no metrics, of which a page shows
few. Nor are what single clients report of a round, which `raydiff tables` has."""
LogSampler = Callable[[Any, str, Path], object]
"""(MlflowClient, run id, a finished trial's folder): log its sampler; raises ValueError where there is none to log."""


class Jsonl:
    """One JSON object per line: step, time (Unix seconds) and the metrics, and whatever else is said of a step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lines = {line["step"]: line for line in read_lines(path)}
        if path.exists() and not path.read_bytes().endswith(b"\n"):  # cut short by a crash: the next line is its own
            with path.open("a") as f:
                f.write("\n")

    def log(self, step: int, metrics: Mapping[str, object]) -> None:
        """Append a round; a replayed one is ignored."""
        if step in self._lines:
            return
        line = {"step": step, "time": time.time(), **metrics}
        self._lines[step] = line
        with self.path.open("a") as f:
            f.write(json.dumps(line) + "\n")

    def total(self, name: str) -> float:
        """Sum of a metric over the recorded rounds."""
        return sum(float(line.get(name, 0.0)) for line in self._lines.values())


class Mlflow(threading.Thread):
    """Follows a sweep's folder and keeps its MLflow runs up to date: a parent, and one nested run per trial.

    Start it, `wait_ready`, then `begin`; `close` it after the sweep's last file is written. Before `begin` it makes no
    run, so that a sweep that is refused leaves none.
    """

    def __init__(
        self,
        uri: str,
        *,
        experiment: str,
        sweep: Path,
        tags: Mapping[str, str],
        artifacts: str | None,
        log_sampler: LogSampler | None = None,
    ) -> None:
        super().__init__(name="mlflow", daemon=True)
        self.uri, self.experiment, self.sweep, self.tags, self.artifacts = uri, experiment, sweep, dict(tags), artifacts
        self.log_sampler = log_sampler
        self.parent: str | None = None
        self.experiment_id: str | None = None
        self.error: Exception | None = None
        self._client: Any = None
        self._runs: dict[str, str] = {}  # trial digest -> run id
        self._logged: dict[str, int] = {}  # trial digest -> last step that MLflow has
        self._ended: dict[str, int] = {}  # trial digest -> when the outcome was written that MLflow now has
        self._told: dict[str, str] = {}  # trial digest -> the outcome that MLflow had when this follower came
        self._id = ""
        self._ready, self._begun, self._closing = threading.Event(), threading.Event(), threading.Event()

    def run(self) -> None:
        """Open the store, then look at the files until closed, waiting longer after each failure."""
        wait = PERIOD_S
        try:
            self._open()
        except Exception as e:
            self.error = e
        self._ready.set()
        self._begun.wait()
        while True:
            stopping = self._closing.is_set()
            try:
                if self._client is None:
                    self._open()
                if self.parent is None:
                    self._find_runs()
                self._look()
                self.error, wait = None, PERIOD_S
            except Exception as e:  # whatever MLflow raises, the sweep goes on and the files keep everything
                self.error, wait = e, min(2 * wait, LONGEST_WAIT_S)
            if stopping:
                return
            self._closing.wait(wait)

    def wait_ready(self) -> None:
        """Wait for the first attempt. Raises ValueError, in one sentence, if MLflow cannot be written."""
        self._ready.wait()
        if self.error is not None:
            raise ValueError(f"the MLflow store {redacted(self.uri)} cannot be written: {_first_line(self.error)}")

    def begin(self) -> None:
        """From now on there is a sweep to follow."""
        self._begun.set()

    def close(self, timeout_s: float = 120.0) -> None:
        """Catch up with the files once more, then stop."""
        self._closing.set()
        self._begun.set()
        self.join(timeout_s)
        if self.is_alive():
            self.error = TimeoutError(f"still writing after {timeout_s:g} s")

    def end(
        self,
        status: str,
        files: tuple[Path, ...] = (),
        *,
        note: str = "",
        metrics: Mapping[str, float] = types.MappingProxyType({}),
    ) -> str | None:
        """After `close`: attach files, a description in Markdown and metrics to the parent run, and set its status
        (FINISHED or KILLED).

        Gives the reason, in a sentence, if MLflow has not got everything; the files have.
        """
        try:
            if self.error is not None:
                raise self.error
            for digest, run in self._runs.items():
                if digest not in self._ended:  # its outcome could not be written, as on a full disk
                    self._client.set_tag(run, "raydiff.outcome", "killed")
                    self._client.set_terminated(run, "KILLED")
            assert self.parent is not None
            if note:
                self._client.set_tag(self.parent, "mlflow.note.content", note[:NOTE])
            log_values(self._client, self.parent, ((spelled(k), 0, v) for k, v in metrics.items()))
            self._client.set_terminated(self.parent, status)
            for path in files:
                self._client.log_artifact(self.parent, str(path))
        except Exception as e:
            return f"MLflow is behind the files ({type(e).__name__}); the same command with --resume catches up"
        return None

    def _open(self) -> None:
        client = connect(self.uri)
        found = client.get_experiment_by_name(self.experiment)
        if found is None:
            try:
                client.create_experiment(self.experiment, artifact_location=self.artifacts)
            except Exception:  # another sweep may have made it just now; whatever else it was, shows in what follows
                if client.get_experiment_by_name(self.experiment) is None:
                    raise
            found = client.get_experiment_by_name(self.experiment)
        self.experiment_id = found.experiment_id
        self._client = client

    def _find_runs(self) -> None:
        """This sweep's runs by its own id, for names are given again; the parent is made if there is none."""
        client = self._client
        self._id = read_json(self.sweep / "sweep.json", needs="id")["id"]
        parent = None
        query = f"tags.`raydiff.id` = '{self._id}'"
        for run in client.search_runs([self.experiment_id], query, max_results=10_000):
            if digest := run.data.tags.get("raydiff.trial"):
                self._runs[digest] = run.info.run_id
            else:
                parent = run.info.run_id
        if parent is None:
            tags = {**self._identity(), "raydiff.kind": "sweep", **self.tags}
            parent = client.create_run(self.experiment_id, run_name=self.sweep.name, tags=tags).info.run_id
        client.update_run(parent, status="RUNNING")
        self.parent = parent

    def _identity(self) -> dict[str, str]:
        return {"raydiff.sweep": self.sweep.name, "raydiff.id": self._id}

    def _look(self) -> None:
        for folder in sorted((self.sweep / "trials").glob("*")):
            if (folder / "config.json").exists() and self._ended.get(folder.name) != _written(folder / "outcome.json"):
                self._follow(folder)

    def _follow(self, folder: Path) -> None:
        digest = folder.name
        outcome_path = folder / "outcome.json"  # read first: rounds logged after this look are seen in the next
        written, outcome = _written(outcome_path), None
        if written:
            # The trial is about to run again, and its outcome was removed this moment.
            with contextlib.suppress(FileNotFoundError):
                outcome = read_json(outcome_path, needs="outcome")
        if digest not in self._logged:
            self._attach(folder)
        run, told = self._runs[digest], self._told.get(digest)
        if outcome is not None and told == outcome["outcome"] in ("finished", "stopped"):  # by an earlier follower
            self._ended[digest] = written
            return
        if outcome is None and (told in ENDED or digest in self._ended):  # it runs again
            self._client.update_run(run, status="RUNNING")
            self._told[digest] = ""
            self._ended.pop(digest, None)
        lines = [line for line in read_lines(folder / "metrics.jsonl") if line["step"] > self._logged[digest]]
        for line in sorted(lines, key=lambda line: line["step"]):
            step, at = line["step"], line["time"]
            own = (k for k in line if k not in ("step", "time") and not k.startswith("client/"))
            values = {k: line[k] for k in own} | {"round": step}
            log_values(self._client, run, ((k, step, v) for k, v in values.items()), at=at)
            self._logged[digest] = line["step"]
        if outcome is not None:
            self._finish(folder, run, outcome)
            self._ended[digest] = written

    def _attach(self, folder: Path) -> None:
        """Find or create the trial's run, log its config, and see how far MLflow has got."""
        digest, c = folder.name, self._client
        tree = published(read_json(folder / "config.json", needs="method"))
        if digest not in self._runs:
            tags = {
                **self._identity(),
                "raydiff.trial": digest,
                "raydiff.kind": "trial",
                "mlflow.parentRunId": self.parent,
                **({"raydiff.data": tree["data_digest"].removeprefix(KEYED)[:16]} if "data_digest" in tree else {}),
                **self.tags,
            }
            self._runs[digest] = c.create_run(self.experiment_id, run_name=_run_name(tree), tags=tags).info.run_id
            if "data_digest" in tree:
                of = tree["data"]["name"], tree["data_digest"].removeprefix(KEYED)[:16]
                for run in (self._runs[digest], str(self.parent)):  # The same one again is not logged twice.
                    log_data(c, run, *of)
        run = self._runs[digest]
        data = c.get_run(run).data
        self._told[digest] = data.tags.get("raydiff.outcome", "")
        log_params(c, run, {k: v for k, v in flatten(tree).items() if k not in data.params})  # They are write-once.
        self._logged[digest] = max((m.step for m in c.get_metric_history(run, "round")), default=-1)

    def _finish(self, folder: Path, run: str, outcome: dict[str, Any]) -> None:
        c = self._client
        last = self._logged[folder.name] + 1
        final = {f"final/{k}": v for k, v in outcome.get("final", {}).items()}
        telling = ((k, last, v) for k, v in final.items() if not QUALIFIES.search(k))
        log_values(c, run, telling, at=folder.stat().st_mtime)
        c.set_tag(run, "raydiff.outcome", outcome["outcome"])
        c.set_tag(run, "raydiff.privacy", outcome["says"])
        c.set_tag(run, "raydiff.reason", outcome.get("reason", ""))
        spent = f"{outcome['server']['epsilon']:.4g}"
        c.set_tag(run, "raydiff.epsilon", spent)
        c.update_run(run, name=_run_name(json.loads((folder / "config.json").read_text()), spent))
        self._attach_artifacts(folder / "artifacts", run, final)
        if outcome["outcome"] == "finished" and self.log_sampler is not None:
            try:
                self.log_sampler(c, run, folder)
            except ValueError as e:  # there is none for this trial; the others go on
                c.set_tag(run, "raydiff.sampler", f"not logged: {e}")
        c.set_terminated(run, ENDED[outcome["outcome"]])

    def _attach_artifacts(self, folder: Path, run: str, final: Mapping[str, object]) -> None:
        c = self._client
        tables = sorted(folder.glob("*.json"))
        for table in tables:
            c.log_artifact(run, str(table))
        if final:
            c.log_dict(run, {"columns": ["name", "value"], "data": [[k, str(v)] for k, v in final.items()]}, FINAL)
        logged = [{"path": name, "type": "table"} for name in (*(t.name for t in tables), *[FINAL] * bool(final))]
        if logged:
            c.set_tag(run, "mlflow.loggedArtifacts", json.dumps(logged))
        if (partition := folder / "partition.png").exists():
            c.log_artifact(run, str(partition))
        for name in ("samples", "newcomers"):
            if (grid := folder / f"{name}.png").exists():
                from PIL import Image

                with Image.open(grid) as image:
                    c.set_tag(run, f"raydiff.privacy.{name}", image.info.get("privacy", "none"))
                    c.log_image(run, image.convert("RGB"), key=name, step=0)


def log_data(client: Any, run: str, name: str, digest: str) -> None:
    """Name the run's data set, where MLflow has a column for it; the digest is of nobody's records alone (`keyed`)."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    dataset = Dataset(name=Path(name).name, digest=digest, source_type="raydiff", source=json.dumps({"name": name}))
    client.log_inputs(run, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])


def spelled(name: str) -> str:
    """A metric's name in the letters that MLflow takes."""
    return re.sub(r"[^\w\-. :/]", "", name)[:250]


def log_params(client: Any, run: str, params: Mapping[str, object]) -> None:
    """Log these, of each what MLflow has room for."""
    from mlflow.entities import Param

    found = [Param(k, str(v)[:6000]) for k, v in params.items()]
    for i in range(0, len(found), PARAMS):
        client.log_batch(run, params=found[i : i + PARAMS])


def log_values(client: Any, run: str, values: Iterable[tuple[str, int, object]], *, at: float | None = None) -> None:
    """Log those of (name, step, value) that are finite numbers, as of the time `at`, by default now.

    An infinite epsilon would be stored as 1.8e308 and flatten every chart: it is the tag raydiff.epsilon instead.
    """
    from mlflow.entities import Metric

    ms = int((time.time() if at is None else at) * 1000)
    usable = [(k, step, v) for k, step, v in values if isinstance(v, (int, float)) and math.isfinite(v)]
    metrics = [Metric(k, float(v), ms, step) for k, step, v in usable]
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
    """Log a folder's files as the artifact `folder.name` of a new, finished run with this name; gives the run's id.

    `metrics` are (name, step, value); of those that are not finite nothing is logged, MLflow has no number for them.
    Raises ValueError, in one sentence, if MLflow cannot be written.
    """
    try:
        client = connect(uri)
        found = client.get_experiment_by_name(experiment)
        at = found.experiment_id if found else client.create_experiment(experiment, artifact_location=artifacts)
        run = str(client.create_run(at, run_name=name, tags=dict(tags)).info.run_id)
        log_params(client, run, params)
        log_values(client, run, metrics)
        client.log_artifacts(run, str(folder), folder.name)
        client.set_terminated(run, "FINISHED")
        return run
    except Exception as e:  # whatever MLflow raises
        raise ValueError(f"the MLflow store {redacted(uri)} cannot be written: {_first_line(e)}") from e


def _written(path: Path) -> int:
    """When a file was written last, in ns; 0: it is not there."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def keep_private() -> None:
    """What this process writes from now on, and what those that it starts write, is for its user alone: files 600,
    folders 700, on a mount that others see too."""
    os.umask(0o077)


def redacted(text: str) -> str:
    """The text as it may be printed: without the password of any URL in it."""
    return re.sub(r"(://[^\s/:@]*:)[^\s@]+@", r"\1***@", text)


def _first_line(error: Exception) -> str:
    return redacted((str(error).strip() or type(error).__name__).splitlines()[0])


def connect(uri: str) -> Any:
    """An MlflowClient that does not talk."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # we wait and retry ourselves
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # two lines for each run of a server
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    logging.getLogger("alembic").setLevel(logging.WARNING)  # the first opening tells of every migration
    from mlflow import MlflowClient

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    if not uri.startswith("sqlite:///"):
        return MlflowClient(tracking_uri=uri)
    path = Path(uri.removeprefix("sqlite:///"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as lock:  # two who make a new store's tables would collide
        fcntl.flock(lock, fcntl.LOCK_EX)
        client = MlflowClient(tracking_uri=uri)
        _follow_move(path)
    return client


def _follow_move(path: Path) -> None:
    """Where the storage folder of this SQLite store was moved, its tables name the old one, which MLflow would make
    anew: they are told the new one."""
    here = path.parent / ARTIFACTS
    if not here.is_dir():
        return
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        for (there,) in db.execute("SELECT DISTINCT artifact_location FROM experiments").fetchall():
            old = Path(str(there).removeprefix("file://"))
            if old.name != ARTIFACTS or old == here or old.exists():
                continue
            for table, column in MOVED:
                rest = f"substr({column}, {len(there) + 1})"
                db.execute(
                    f"UPDATE {table} SET {column} = ? || {rest} WHERE substr({column}, 1, ?) = ?",
                    (f"file://{here}", len(there), there),
                )


def _run_name(tree: Mapping[str, Any], spent: str | None = None) -> str:
    """`spent` is the epsilon of the ledger; while there is none, what was asked for is named as such."""
    method = tree["method"]
    model = method["model"]
    parts = [method["kind"], f"{tree['clients']} clients", flatten(model).get("schedule", model["kind"])]
    if spent is not None:
        parts.insert(1, f"epsilon {spent}")
    elif "epsilon" in method:
        parts.insert(1, "no noise" if method["epsilon"] is None else f"target epsilon {method['epsilon']:g}")
    return ", ".join([*parts, f"seed {tree['seed']}"])
