"""The MLflow run of one trial: created or found again, and brought up to date with the trial's files."""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raydiff.experiment.study import Varying, trial_name
from raydiff.formats import rounding
from raydiff.formats.json_files import KEYED, dumps, flatten_tree, read_json, read_lines_from, read_outcome
from raydiff.formats.metric_records import Metric, read_metrics, select_shown
from raydiff.tracking.mlflow_store import (
    REMARK,
    RunClient,
    log_data,
    log_params,
    log_values,
    make_storable,
    mlflow_name,
)

STATUS = {"finished": "FINISHED", "stopped": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
"""Outcome -> MLflow's run status. A trial stopped early by a scheduler did what it was asked to."""
OUTCOME = "raydiff.outcome"  # the tag that a run gets last: with it the run is complete, without remarks
WITH_DISTANCE = {"all", "frechet", "kernel", "table"}  # metrics that give a trial a distance
LogSampler = Callable[[Any, str, Path], object]
"""(MlflowClient, run id, a finished trial's folder): log its sampler; raises ValueError where there is none."""


@dataclass
class SweepRun:
    """The sweep's own run, the parent of its trials' runs."""

    client: RunClient
    experiment_id: str
    tags: Mapping[str, str]  # of every run of the sweep
    swept: Varying
    names: dict[str, str] = field(default_factory=dict)  # of trials -> digest

    def name_of(self, tree: Mapping[str, Any], digest: str) -> str:
        """The name of a trial's run from its config: what was swept, and the digest if another trial has that name."""
        name = trial_name(flatten_tree(tree), self.swept)
        return name if self.names.setdefault(name, digest) == digest else f"{name} {digest}"


@dataclass
class TrialRun:
    """One trial's run, and what MLflow has of it."""

    sweep: SweepRun
    folder: Path
    run: str = ""
    step: int = -1  # last round that MLflow has
    read: int = 0  # bytes of metrics.jsonl that were read
    earlier_outcome: str = ""  # recorded by an earlier writer
    ended_ns: int | None = None  # modification time of the outcome.json that MLflow has
    client: RunClient = field(init=False)

    def attach(self, run: str | None) -> None:
        """Take this run or create one, log the trial's config, and read how far MLflow has got."""
        client = self.sweep.client.client
        tree = read_json(self.folder / "config.json", needs="data_digest")
        data = tree["data_digest"].removeprefix(KEYED)[:16]
        name = self.sweep.name_of(tree, self.folder.name)
        if run is None:
            tags = {
                "raydiff.trial": self.folder.name,
                "raydiff.kind": "trial",
                "mlflow.parentRunId": self.sweep.client.run,
            }
            tags |= {"raydiff.data": data, **self.sweep.tags}
            run = str(client.create_run(self.sweep.experiment_id, run_name=name, tags=tags).info.run_id)
            if tree["evaluation"] is not None:  # MLflow compares runs by what they got first: quality, not a round's.
                first = "distance_all" if {*tree["evaluation"]["metrics"]} & WITH_DISTANCE else "accuracy"
                with contextlib.suppress(Exception):
                    client.log_metric(run, first, math.nan, step=-1)
        else:
            client.set_tag(run, "mlflow.parentRunId", self.sweep.client.run)  # An earlier parent may have been deleted.
            client.update_run(run, name=name)  # An extended sweep varies more.
        logged = client.get_run(run)
        self.run = run
        self.client = RunClient(client, run)
        if not logged.inputs.dataset_inputs:
            for each in (run, self.sweep.client.run):  # MLflow keeps equal inputs of a run once.
                log_data(self.client, each, tree["data"]["name"], data)
        kept = logged.data.params  # MLflow's are write-once.
        log_params(self.client, run, {k: v for k, v in flatten_tree(tree).items() if mlflow_name(k) not in kept})
        if not logged.data.tags.get(REMARK):  # Else all once more: MLflow keeps equal values once.
            self.earlier_outcome = logged.data.tags.get(OUTCOME, "")
            self.step = max((metric.step for metric in client.get_metric_history(run, "round")), default=-1)

    def update(self) -> None:
        """Log the rounds that MLflow lacks, and the end if the trial has ended."""
        path = self.folder / "outcome.json"  # Read first: the next update sees rounds that are logged meanwhile.
        written = modified_ns(path)
        outcome = None
        if written:
            with contextlib.suppress(FileNotFoundError):  # A trial that is about to run again removes its outcome.
                outcome = read_outcome(self.folder)
        if outcome is not None and self.earlier_outcome == outcome["outcome"] in ("finished", "stopped"):
            self.ended_ns = written
            return
        if outcome is None and (self.earlier_outcome in STATUS or self.ended_ns is not None):
            self.client.update_run(self.run, status="RUNNING")
            self.earlier_outcome = ""
            self.ended_ns = None
        self._log_rounds()
        if outcome is not None:
            self._finish(outcome)
            self.ended_ns = written

    def _log_rounds(self) -> None:
        lines, read = read_lines_from(self.folder / "metrics.jsonl", self.read)
        new = {line["step"]: line for line in lines if line["step"] > self.step}
        rows: list[tuple[str, int, object]] = []
        for step in sorted(new):
            rows += [(f"round/{m.shown}", step, m.value) for m in read_metrics(new[step]["metrics"]) if m.shown]
            rows.append(("round", step, step))
        log_values(self.client, self.run, rows, at={step: line["time"] for step, line in new.items()})
        self.step = max(new, default=self.step)
        self.read = read

    def _finish(self, outcome: dict[str, Any]) -> None:
        from mlflow.entities import RunTag

        client = self.client
        run = self.run
        final = read_metrics(outcome.get("final", []))
        # At step 0 a metric has a bar for each run in MLflow's charts, at a later one a curve.
        values = ((name, 0, value) for name, value in select_shown(final).items())
        log_values(client, run, values, at={0: self.folder.stat().st_mtime})
        epsilon = rounding.up(outcome["server"]["epsilon"])
        reason = outcome.get("reason", "")
        released = outcome.get("released", "")
        tags = {"raydiff.privacy": outcome["text"], "raydiff.reason": reason, "raydiff.epsilon": epsilon}
        tags |= {"raydiff.released": released, REMARK: client.lacks}
        tags["mlflow.note.content"] = "\n\n".join(filter(None, (outcome["text"], released, reason)))
        client.log_batch(run, tags=[RunTag(k, make_storable(v)) for k, v in tags.items()])  # one write to the disk
        attach_artifacts(client, run, self.folder / "artifacts", final)
        client.set_terminated(run, STATUS[outcome["outcome"]])
        if not client.lacks:
            client.set_tag(run, OUTCOME, outcome["outcome"])

    def log_sampler(self, log: LogSampler) -> None:
        """Log the finished trial's sampler, or say in a tag why there is none."""
        self.client.attempt(self._attempt_sampler, log)

    def _attempt_sampler(self, log: LogSampler) -> None:
        try:
            log(self.client.client, self.run, self.folder)
        except ValueError as e:
            self.client.set_tag(self.run, "raydiff.sampler", make_storable(f"not logged: {e}"))


def attach_artifacts(client: Any, run: str, folder: Path, final: Sequence[Metric]) -> None:
    """Log a trial's tables and pictures, and its final metrics as a table."""
    tables = {path.name: read_json(path) for path in sorted(folder.glob("*.json"))}
    if final:
        rows = [[str(metric), str(metric.value)] for metric in final]
        tables["final.json"] = {"columns": ["name", "value"], "data": rows}
    for name, table in tables.items():
        client.log_dict(run, table, name)
    if tables:
        client.set_tag(run, "mlflow.loggedArtifacts", dumps([{"path": n, "type": "table"} for n in tables]))
    if (partition := folder / "partition.png").exists():
        client.log_artifact(run, str(partition))
    for name in ("samples", "unseen"):
        if (grid := folder / f"{name}.png").exists():
            from PIL import Image

            with Image.open(grid) as image:
                client.set_tag(run, f"raydiff.privacy.{name}", image.info.get("privacy", "none"))
                client.log_image(run, image.convert("RGB"), key=name, step=0)


def modified_ns(path: Path) -> int:
    """Time of the last write to a file, in ns; 0 if there is none."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime_ns
    return 0
