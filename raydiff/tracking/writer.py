"""MLflow has one writer, a thread in the driver that follows the files of a sweep.

Trials never wait for MLflow and never import it (2 to 20 s per process). The files are the record, so the writer may
start late, lose its server for a while, or be killed: the next one reads the same files, finds the same runs by their
tags and adds what is missing.
"""

from __future__ import annotations

import errno
import threading
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raydiff.formats import metric_names
from raydiff.formats.json_files import read_json, trial_folders
from raydiff.tracking import mlflow_store
from raydiff.tracking.trial_run import OUTCOME, LogSampler, SweepRun, TrialRun, modified_ns

PERIOD_S = 2.0  # between two updates from the files
LONGEST_WAIT_S = 60.0  # between two attempts while MLflow cannot be reached
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
NOTE = 8000  # characters of a tag's value


class Mlflow(threading.Thread):
    """Follows a sweep's folder and keeps its MLflow runs up to date: a parent, and one nested run per trial.

    Start it, `wait_ready`, then `begin`; `close` it after the sweep's last file is written. It creates no run before
    `begin`, so that a sweep that is refused leaves none.
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
        self.experiment_id = ""
        self.error: Exception | None = None
        self._client: Any = None
        self._sweep_run: SweepRun | None = None
        self._runs: dict[str, str] = {}  # trial digest -> run id
        self._trials: dict[str, TrialRun] = {}  # by digest
        self._ready, self._begun, self._closing = threading.Event(), threading.Event(), threading.Event()

    def run(self) -> None:
        """Open the store, then update it from the files until closed, waiting longer after each failure."""
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
                if self._sweep_run is None:
                    self._find_runs()
                self._update()
                self.error, wait = None, PERIOD_S
            except Exception as e:  # Whatever MLflow raises, the sweep goes on and the files keep everything.
                self.error, wait = e, min(2 * wait, LONGEST_WAIT_S)
            if stopping:
                return
            self._closing.wait(wait)

    def wait_ready(self) -> None:
        """Wait for the first attempt. Raises ValueError, in one sentence, if MLflow cannot be written."""
        self._ready.wait()
        if self.error is not None:
            raise mlflow_store.cannot_be_written(self.uri, self.error)

    def begin(self) -> None:
        """Start following the sweep's folder."""
        self._begun.set()

    def close(self, timeout_s: float = 120.0) -> None:
        """Bring MLflow up to date with the files, then stop; give up after `timeout_s` without a finished trial."""
        self._closing.set()
        self._begun.set()
        self.join(timeout_s)
        ended = 0
        while self.is_alive() and ended < (ended := self._ended()):
            print(f"MLflow has {ended} finished trials, the others follow", flush=True)
            self.join(timeout_s)
        if self.is_alive():
            self.error = TimeoutError(f"still writing after {timeout_s:g} s")

    def _ended(self) -> int:
        return sum(trial.ended_ns is not None for trial in self._trials.values())

    def end(
        self,
        status: str,
        files: tuple[Path, ...] = (),
        *,
        note: str = "",
        means: Mapping[str, Mapping[str, object]] = types.MappingProxyType({}),
    ) -> str | None:
        """After `close`, end the parent run with a status (FINISHED or KILLED), files, a description in Markdown, and
        runs of the settings' means (`_log_means`). Returns the reason if MLflow lacks something that the files have."""
        try:
            disk_full = isinstance(self.error, OSError) and self.error.errno in DISK  # MLflow may lie elsewhere.
            if self.error is not None and not disk_full:
                raise self.error
            for digest, run in self._runs.items():
                if digest not in self._trials or self._trials[digest].ended_ns is None:  # It has no outcome.json.
                    self._client.set_terminated(run, "KILLED")
                    self._client.set_tag(run, OUTCOME, "killed")
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
        number a metric. Their order is kept, since MLflow's page for comparing runs opens on the first ones."""
        client, tags = self._client, {"mlflow.parentRunId": str(self.parent), "raydiff.kind": "mean"}
        mlflow_store.delete_runs(client, self.experiment_id, tags)
        for name, row in means.items():
            run = client.create_run(self.experiment_id, run_name=name[:200], tags={**tags, **self.tags}).info.run_id
            mlflow_store.log_params(client, run, {k: v for k, v in row.items() if isinstance(v, str)})
            mlflow_store.log_values(client, run, ((k, 0, v) for k, v in metric_names.shown(row).items()))
            client.set_terminated(run, "FINISHED")

    def _open(self) -> None:
        client = mlflow_store.connect(self.uri)
        self.experiment_id = mlflow_store.experiment_id(client, self.experiment, self.artifacts)
        self._client = client

    def _find_runs(self) -> None:
        """Find this sweep's runs by its id, for names are given again; create the parent if there is none."""
        client, parent = self._client, None
        identity = read_json(self.sweep / "sweep.json", needs="id")["id"]
        for run in mlflow_store.all_runs(client, self.experiment_id, f"tags.`raydiff.id` = '{identity}'"):
            if digest := run.data.tags.get("raydiff.trial"):
                self._runs[digest] = run.info.run_id
            else:
                parent = run.info.run_id
        tags = {"raydiff.sweep": self.sweep.name, "raydiff.id": identity, **self.tags}
        if parent is None:
            parent_tags = {"raydiff.kind": "sweep", **tags}
            parent = client.create_run(self.experiment_id, run_name=self.sweep.name, tags=parent_tags).info.run_id
        client.update_run(parent, status="RUNNING")
        self.parent = parent
        self._sweep_run = SweepRun(client, self.experiment_id, parent, tags, self.log_sampler)

    def _update(self) -> None:
        for folder in trial_folders(self.sweep):
            followed = self._trials.get(folder.name)
            if followed is None or followed.ended_ns != modified_ns(folder / "outcome.json"):
                self._update_trial(folder)

    def _update_trial(self, folder: Path) -> None:
        assert self._sweep_run is not None
        if folder.name not in self._trials:
            trial = TrialRun(self._sweep_run, folder)
            try:
                trial.attach(self._runs.get(folder.name))
            finally:
                if trial.run:  # A run that was created before an error is found again.
                    self._runs[folder.name] = trial.run
            self._trials[folder.name] = trial
        self._trials[folder.name].update()
