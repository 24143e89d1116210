"""MLflow has one writer, a thread in the driver that follows the files of a sweep.

Trials never wait for MLflow and never import it (2 to 20 s per process). The files are the record, so the writer may
start late, lose its server for a while, or be killed: the next one reads the same files, finds the same runs by their
tags and adds what is missing.
"""

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raydiff import __version__, process
from raydiff.experiment.study import Varying
from raydiff.formats.json_files import outcomes, read_json, trial_folders
from raydiff.formats.metric_records import read_metrics, select_shown
from raydiff.tracking import mlflow_store, shared_view
from raydiff.tracking.mlflow_store import RunClient, make_storable, redact_passwords
from raydiff.tracking.trial_run import OUTCOME, LogSampler, SweepRun, TrialRun, modified_ns

PERIOD_S = 2.0  # between two updates from the files
LONGEST_WAIT_S = 60.0  # between two attempts while MLflow cannot be reached
SILENCE_S = 10.0  # Whoever waits longer for MLflow is told so.
BEST = "raydiff.best"  # tag of the sweep's own run: the id of the best trial's
# in the description, which MLflow does not scale; pixels
PICTURE = "frontier-small.png"
PICTURE_WIDTH = 640
OPENING_S = 180.0  # A busy machine creates a SQLite store in a minute; a database server may never answer.


@dataclass(frozen=True)
class SweepSummary:
    """What the sweep's own run says at its end."""

    conclusion: str = ""  # Markdown, above the picture of the frontier
    details: str = ""  # Markdown, below it
    means: Mapping[str, Mapping[str, object]] = field(default_factory=dict)  # `Mlflow._log_means`
    best: str = ""  # digest of the best trial
    measure: str = ""  # by which it is the best, and its value


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
        swept: Varying,
        log_sampler: LogSampler | None = None,
    ) -> None:
        super().__init__(name="mlflow", daemon=True)
        self.uri = uri
        self.experiment = experiment
        self.sweep = sweep
        self.artifacts = artifacts
        self.tags = {name: make_storable(value) for name, value in tags.items()}
        self.swept = swept
        self.log_sampler = log_sampler
        self.parent: str | None = None
        self.experiment_id = self._identity = ""
        self.error: Exception | None = None
        self._client: Any = None
        self._sweep_run: SweepRun | None = None
        self._runs: dict[str, str] = {}  # trial digest -> run id
        self._trials: dict[str, TrialRun] = {}  # by digest
        self._failed: dict[str, str] = {}  # trial digest -> why it could not be logged, though others were
        self._ready = threading.Event()
        self._begun = threading.Event()
        self._closing = threading.Event()

    def run(self) -> None:
        """Open the store, then update it from the files until closed, waiting longer after each failure."""
        wait = PERIOD_S
        try:
            self._open()
        except Exception as e:
            self.error = e
        self._ready.set()
        self._begun.wait()
        while self._client is not None:
            stopping = self._closing.is_set()
            try:
                if self._sweep_run is None or stopping:  # At the end once more: runs may have been deleted.
                    self._find_runs()
                self._update()
                self.error = None
            except Exception as e:  # Whatever MLflow raises, the sweep goes on and the files keep everything.
                self.error = e
            if stopping:
                return
            wait = min(2 * wait, LONGEST_WAIT_S) if self.error or self._failed else PERIOD_S
            self._closing.wait(wait)

    def wait_ready(self) -> None:
        """Wait for the first attempt. Raises ValueError, in one sentence, if MLflow cannot be written."""
        with process.waiting(f"the MLflow store {redact_passwords(self.uri)}"):
            if not self._ready.wait(OPENING_S):
                self.error = TimeoutError(f"no answer within {OPENING_S:g} s")
        if self.error is not None:
            raise mlflow_store.describe_unwritable(self.uri, self.error)

    def begin(self) -> None:
        """Start following the sweep's folder."""
        self._begun.set()

    def close(self, timeout_s: float = 120.0) -> None:
        """Bring MLflow up to date with the files, then stop; give up after `timeout_s` without a finished trial."""
        self._closing.set()
        self._begun.set()
        self.join(min(SILENCE_S, timeout_s))
        ended = -1
        while self.is_alive() and ended < (ended := self._ended()):
            print(f"waiting for MLflow, which has {ended} finished trials; the others follow", flush=True)
            self.join(timeout_s)
        if self.is_alive():
            self.error = TimeoutError(f"still writing after {timeout_s:g} s")

    def _ended(self) -> int:
        return sum(trial.ended_ns is not None for trial in self._trials.values())

    def end(self, status: str, files: tuple[Path, ...] = (), summary: SweepSummary = SweepSummary()) -> str | None:
        """After `close`, end the parent run with a status (FINISHED or KILLED), files and a summary.

        Returns what MLflow lacks of what the files have, or None.
        """
        try:
            if self._sweep_run is None or self.is_alive():
                raise self.error or TimeoutError("it was never opened")
            client = self._sweep_run.client
            parent = client.run
            client.set_terminated(parent, status if self.error is None else "KILLED")
            for digest, run in self._runs.items():
                if digest not in self._trials or self._trials[digest].ended_ns is None:  # It has no outcome.json.
                    client.set_terminated(run, "KILLED")
                    client.set_tag(run, OUTCOME, "killed")
            if self.error is not None:
                raise self.error
            for path in files:
                client.log_artifact(parent, str(path))
            picture = next((path for path in files if path.name == "frontier.png"), None)
            if status == "FINISHED" and self.log_sampler is not None:
                self._log_best_sampler(client, summary.best, self.log_sampler)
            self._log_summary(client, summary, picture)
            self._log_means(client, summary.means)
            final = [read_metrics(end["final"]) for _, end in outcomes(self.sweep) if end.get("final")]
            self._log_view([select_shown(metrics) for metrics in final])
            gaps = {name: trial.client.lacks for name, trial in self._trials.items()} | self._failed
            lacking = [f"{name}: {gap}" for name, gap in {**gaps, "sweep": client.lacks}.items() if gap]
            where = redact_passwords(client.get_experiment(self.experiment_id).artifact_location)
            begin = f"{len(lacking)} of {len(gaps) + 1} runs lack parts (artifacts belong in {where})"
            return f"{begin}, for one {lacking[0]}" if lacking else None
        except Exception as e:
            return mlflow_store.explain_error(self.error or e)

    def _log_summary(self, client: RunClient, summary: SweepSummary, picture: Path | None) -> None:
        """Write the parent's description, with the best trial's link and the frontier."""
        blocks = [summary.conclusion]
        best = self._trials.get(summary.best)
        if best is not None:
            name = client.get_run(best.run).info.run_name
            at = f"#/experiments/{self.experiment_id}/runs/{best.run}"
            blocks.insert(0, f"Best trial by {summary.measure}: [{name}]({at})")
            client.set_tag(client.run, BEST, best.run)
        if picture is not None:
            from PIL import Image

            with Image.open(picture) as image:
                image.thumbnail((PICTURE_WIDTH, PICTURE_WIDTH))
                client.log_image(client.run, image.convert("RGB"), artifact_file=PICTURE)
            blocks.append(f"![frontier](get-artifact?path={PICTURE}&run_uuid={client.run})")
        if note := "\n\n".join(filter(None, (*blocks, summary.details))):
            client.set_tag(client.run, "mlflow.note.content", make_storable(note))

    def _log_best_sampler(self, client: RunClient, digest: str, log: LogSampler) -> None:
        """Log the sampler of the best trial, or of the only one, in place of an earlier best trial's."""
        only = next(iter(self._trials)) if len(self._trials) == 1 else ""
        best = self._trials.get(digest or only)
        if best is None or client.get_run(best.run).outputs.model_outputs:
            return
        best.log_sampler(log)
        before = client.get_run(client.run).data.tags.get(BEST)
        if before not in (None, best.run):
            earlier = f"name = 'sampler' and source_run_id = '{before}'"
            for model in client.search_logged_models([self.experiment_id], earlier):
                client.delete_logged_model(model.model_id)

    def _log_view(self, trials: Sequence[Mapping[str, Any]] = ()) -> None:
        """MLflow's shared view of the sweep, a convenience that may fail."""
        with contextlib.suppress(Exception):
            view = shared_view.build_view(str(self.parent), self._identity, self.swept, trials)
            self._client.set_experiment_tag(self.experiment_id, f"{shared_view.TAG}{self._identity}", view)
            self._client.set_experiment_tag(self.experiment_id, "mlflow.experimentKind", "custom_model_development")

    def _log_means(self, client: RunClient, means: Mapping[str, Mapping[str, object]]) -> None:
        """Log a finished run below the parent for each setting, in place of those of an earlier end.

        Text is a parameter, a number a metric, in this order.
        """
        assert self._sweep_run is not None
        tags = {"mlflow.parentRunId": client.run, "raydiff.kind": "mean"}
        mlflow_store.delete_runs(client, self.experiment_id, tags)
        tags |= self._sweep_run.tags
        for name, row in means.items():
            run = client.create_run(self.experiment_id, run_name=name[:200], tags=tags).info.run_id
            mlflow_store.log_params(client, run, {k: v for k, v in row.items() if isinstance(v, str)})
            mlflow_store.log_values(client, run, ((k, 0, v) for k, v in row.items()))
            client.set_terminated(run, "FINISHED")

    def _open(self) -> None:
        client = mlflow_store.connect(self.uri)
        self.experiment_id = mlflow_store.experiment_id(client, self.experiment, self.artifacts)
        client.set_experiment_tag(self.experiment_id, "raydiff.version", __version__)  # raises where one may only read
        self._client = client

    def _find_runs(self) -> None:
        """Find this sweep's runs by its id, for names are given again; create the parent if there is none.

        Trials whose run is not found, or lacks something, are logged again.
        """
        client = self._client
        parent = None
        identity = self._identity = read_json(self.sweep / "sweep.json", needs="id")["id"]
        self._runs = {}
        query = f"tags.`raydiff.id` = '{identity}'"
        for run in client.search_runs([self.experiment_id], query, max_results=mlflow_store.MOST_RUNS):
            if digest := run.data.tags.get("raydiff.trial"):
                self._runs[digest] = run.info.run_id
            elif run.data.tags["raydiff.kind"] == "sweep":
                parent = run.info.run_id
        tags = {"raydiff.sweep": self.sweep.name, "raydiff.id": identity, **self.tags}
        if parent is None:
            parent_tags = {"raydiff.kind": "sweep", **tags}
            parent = client.create_run(self.experiment_id, run_name=self.sweep.name, tags=parent_tags).info.run_id
        client.update_run(parent, status="RUNNING")
        if parent != self.parent:
            self.parent = parent
            self._trials = {}
            client = RunClient(client, parent)
            self._sweep_run = SweepRun(client, self.experiment_id, tags, self.swept)
            self._log_view()
        kept = [t for t in self._trials.values() if self._runs.get(t.folder.name) == t.run and not t.client.lacks]
        self._trials = {trial.folder.name: trial for trial in kept}

    def _update(self) -> None:
        for folder in trial_folders(self.sweep):
            followed = self._trials.get(folder.name)
            if followed is None or followed.ended_ns != modified_ns(folder / "outcome.json"):
                try:
                    self._update_trial(folder)
                except Exception as e:
                    self._find_runs()  # raises where MLflow takes nothing; else it is this trial's trouble
                    self._failed[folder.name] = mlflow_store.first_line(e)
                    with contextlib.suppress(Exception):
                        self._update_trial(folder)

    def _update_trial(self, folder: Path) -> None:
        assert self._sweep_run is not None
        if folder.name not in self._trials:
            trial = TrialRun(self._sweep_run, folder)
            trial.attach(self._runs.get(folder.name))  # A run that was created before an error is found again.
            self._runs[folder.name], self._trials[folder.name] = trial.run, trial
        self._trials[folder.name].update()
        self._failed.pop(folder.name, None)
