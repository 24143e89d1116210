"""MLflow has one writer, a thread in the driver that follows the files of a sweep.

Trials never wait for MLflow and never import it (2 to 20 s per process). Because the files are the record, the follower
may start late, lose its server for a while, or be killed: the next one reads the same files, finds the same runs by
their tags and adds what is missing. How it is written is `mlflow_store`'s.
"""

from __future__ import annotations

import contextlib
import errno
import json
import threading
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from raydiff.federated import heartbeat
from raydiff.formats import rounding as bounds
from raydiff.formats.json_files import KEYED, flatten, read_json, read_lines
from raydiff.tracking import metric_names as told
from raydiff.tracking.mlflow_store import (
    all_runs,
    connect,
    first_line,
    log_data,
    log_params,
    log_tags,
    log_values,
    redacted,
    spelled,
)

ENDED = {"finished": "FINISHED", "stopped": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
"""Our outcome -> MLflow's run status. A trial stopped early by a scheduler did what it was asked to."""
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
LONGEST_WAIT_S = 60.0  # between attempts while MLflow cannot be reached
FINAL = "final.json"
TOLD = "raydiff.outcome"
"""The tag that a run gets last: a follower that finds it has nothing to add."""
WITHIN = "training/loss"
FIRST = "privacy/epsilon_server"
"""Of a run's metrics MLflow's page shows first what it got first."""
NOTE = 8000  # characters of a tag's value
LogSampler = Callable[[Any, str, Path], object]
"""(MlflowClient, run id, a finished trial's folder): log its sampler; raises ValueError where there is none to log."""


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
        self._data: set[tuple[str, str]] = set()  # what the parent is known to have: name and digest
        self._id = ""
        self._told_of: dict[str, int] = {}  # trial digest -> how far within a round MLflow has been told of its loss
        self._ready, self._begun, self._closing = threading.Event(), threading.Event(), threading.Event()

    def run(self) -> None:
        """Open the store, then look at the files until closed, waiting longer after each failure."""
        wait = told.PERIOD_S
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
                self.error, wait = None, told.PERIOD_S
            except Exception as e:  # whatever MLflow raises, the sweep goes on and the files keep everything
                self.error, wait = e, min(2 * wait, LONGEST_WAIT_S)
            if stopping:
                return
            self._closing.wait(wait)

    def wait_ready(self) -> None:
        """Wait for the first attempt. Raises ValueError, in one sentence, if MLflow cannot be written."""
        self._ready.wait()
        if self.error is not None:
            raise ValueError(f"the MLflow store {redacted(self.uri)} cannot be written: {first_line(self.error)}")

    def begin(self) -> None:
        """From now on there is a sweep to follow."""
        self._begun.set()

    def close(self, timeout_s: float = 120.0) -> None:
        """Catch up with the files once more, however long that takes, then stop. Gives up where in so many seconds
        MLflow was told of no trial's end."""
        self._closing.set()
        self._begun.set()
        self.join(timeout_s)
        ended = 0
        while self.is_alive() and ended < (ended := len(self._ended)):
            print(f"MLflow has been told of {ended} trials, and is told of the others", flush=True)
            self.join(timeout_s)
        if self.is_alive():
            self.error = TimeoutError(f"still writing after {timeout_s:g} s")

    def end(
        self,
        status: str,
        files: tuple[Path, ...] = (),
        *,
        note: str = "",
        means: Mapping[str, Mapping[str, object]] = types.MappingProxyType({}),
    ) -> str | None:
        """After `close`: attach files and a description in Markdown to the parent run, and set its status (FINISHED or
        KILLED). `means`: of each setting what becomes a run of its own (`_log_means`).

        Gives the reason, in a sentence, if MLflow has not got everything; the files have.
        """
        try:
            full = isinstance(self.error, OSError) and self.error.errno in DISK  # Artifacts lie there; MLflow goes on.
            if self.error is not None and not full:
                raise self.error
            for digest, run in self._runs.items():
                if digest not in self._ended:  # its outcome could not be written, as on a full disk
                    self._client.set_terminated(run, "KILLED")
                    self._client.set_tag(run, TOLD, "killed")
            assert self.parent is not None
            if self.error is not None:
                self._client.set_terminated(self.parent, "KILLED")
                raise self.error
            if note:
                self._client.set_tag(self.parent, "mlflow.note.content", note[:NOTE])
            self._log_means(means)
            self._client.set_terminated(self.parent, status)
            for path in files:
                self._client.log_artifact(self.parent, str(path))
        except Exception as e:
            return f"MLflow is behind the files ({type(e).__name__}); the same command with --resume catches up"
        return None

    def _log_means(self, means: Mapping[str, Mapping[str, object]]) -> None:
        """A finished run below the parent for each setting, in place of those of an earlier end: text is a parameter, a
        number a metric, in this order, for MLflow's page for comparing runs opens on the first ones.

        They are not found by the sweep's id, as the trials' runs are.
        """
        c, below = self._client, {"mlflow.parentRunId": str(self.parent), "raydiff.kind": "mean"}
        query = " and ".join(f"tags.`{k}` = '{v}'" for k, v in below.items())
        for earlier in all_runs(c, str(self.experiment_id), query):
            c.delete_run(earlier.info.run_id)
        for name, row in means.items():
            run = c.create_run(self.experiment_id, run_name=name[:200], tags={**below, **self.tags}).info.run_id
            log_params(c, run, {k: v for k, v in row.items() if isinstance(v, str)})
            log_values(c, run, ((spelled(k), 0, v) for k, v in told.telling(row).items()))
            c.set_terminated(run, "FINISHED")

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
        for run in all_runs(client, str(self.experiment_id), query):
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
        run, had = self._runs[digest], self._told.get(digest)
        if outcome is not None and had == outcome["outcome"] in ("finished", "stopped"):  # by an earlier follower
            self._ended[digest] = written
            return
        if outcome is None and (had in ENDED or digest in self._ended):  # it runs again
            self._client.update_run(run, status="RUNNING")
            self._told[digest] = ""
            self._ended.pop(digest, None)
        lines = [line for line in read_lines(folder / "metrics.jsonl") if line["step"] > self._logged[digest]]
        for line in sorted(lines, key=lambda line: line["step"]):
            step, own = line["step"], told.of_round(line)
            values = {k: own[k] for k in sorted(own, key=lambda k: k != FIRST)} | {"round": step}
            log_values(self._client, run, ((k, step, v) for k, v in values.items()), at=line["time"])
            self._logged[digest] = step
        if outcome is None:
            self._tell_within_a_round(folder, run)
        if outcome is not None:
            self._finish(folder, run, outcome)
            self._ended[digest] = written

    def _tell_within_a_round(self, folder: Path, run: str) -> None:
        """The mean loss of what is training now, where a round takes long: its step is a hundred for each round, and so
        much of the next one as is done, in twentieths."""
        number = self._logged[folder.name] + 1
        beats = [beat for beat in heartbeat.read(folder) if beat.round == number and beat.loss is not None]
        if not beats:
            return
        share, loss = beats[0].share, sum(beat.loss or 0.0 for beat in beats) / len(beats)
        step = 100 * number + 5 * int(20 * share)
        if step > self._told_of.get(folder.name, -1):
            log_values(self._client, run, [(WITHIN, step, loss)])
            self._told_of[folder.name] = step

    def _attach(self, folder: Path) -> None:
        """Find or create the trial's run, log its config, and see how far MLflow has got."""
        digest, c = folder.name, self._client
        tree = read_json(folder / "config.json", needs="data_digest")
        data = tree["data_digest"].removeprefix(KEYED)[:16]
        params, found = flatten(tree), None
        if digest in self._runs:
            found = c.get_run(self._runs[digest])
            params = {k: v for k, v in params.items() if k not in found.data.params}  # They are write-once.
        else:
            tags = {
                **self._identity(),
                "raydiff.trial": digest,
                "raydiff.kind": "trial",
                "mlflow.parentRunId": self.parent,
                "raydiff.data": data,
                **self.tags,
            }
            self._runs[digest] = c.create_run(self.experiment_id, run_name=told.run_name(tree), tags=tags).info.run_id
        run = self._runs[digest]
        if not (found and found.inputs.dataset_inputs):
            of = tree["data"]["name"], data
            log_data(c, run, *of)
            if of not in self._data:
                log_data(c, str(self.parent), *of)  # The same one again is not logged twice.
                self._data.add(of)
        self._told[digest] = found.data.tags.get(TOLD, "") if found else ""
        log_params(c, run, params)
        history = c.get_metric_history(run, "round") if found else []
        self._logged[digest] = max((m.step for m in history), default=-1)

    def _finish(self, folder: Path, run: str, outcome: dict[str, Any]) -> None:
        c = self._client
        last = self._logged[folder.name] + 1
        final = told.final(outcome)
        log_values(c, run, ((k, last, v) for k, v in told.telling(final).items()), at=folder.stat().st_mtime)
        spent = bounds.up(outcome["server"]["epsilon"])
        tags = {
            "raydiff.privacy": outcome["says"],
            "raydiff.reason": outcome.get("reason", ""),
            "raydiff.epsilon": spent,
        }
        tags["mlflow.note.content"] = "\n\n".join(filter(None, (outcome["says"], outcome.get("reason"))))
        log_tags(c, run, tags)
        c.update_run(run, name=told.run_name(read_json(folder / "config.json"), spent))
        self._attach_artifacts(folder / "artifacts", run, final)
        if outcome["outcome"] == "finished" and self.log_sampler is not None:
            try:
                self.log_sampler(c, run, folder)
            except ValueError as e:  # there is none for this trial; the others go on
                c.set_tag(run, "raydiff.sampler", f"not logged: {e}")
        c.set_terminated(run, ENDED[outcome["outcome"]])
        c.set_tag(run, TOLD, outcome["outcome"])

    def _attach_artifacts(self, folder: Path, run: str, final: Mapping[str, object]) -> None:
        c = self._client
        tables = sorted(folder.glob("*.json"))
        for table in tables:
            c.log_dict(run, read_json(table), table.name)
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


def _written(path: Path) -> int:
    """When a file was written last, in ns; 0: it is not there."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
