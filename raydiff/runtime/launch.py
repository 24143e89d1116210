"""From a plan to its report: run the trials here or on Ray, log them to MLflow, report. A refused plan has no files."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from raydiff import process
from raydiff.experiment import spending, trial
from raydiff.experiment.study import Varying, varying_fields
from raydiff.formats.json_files import outcomes, read_json
from raydiff.process import waiting
from raydiff.results import chance
from raydiff.results.spent import composed_guarantee
from raydiff.runtime import one_process, search, sweep_folder
from raydiff.runtime.plan import Planned
from raydiff.storage import artifact_sync
from raydiff.storage.lease import hold_lease
from raydiff.storage.storage import storage_at
from raydiff.tracking.mlflow_store import redacted
from raydiff.tracking.writer import Mlflow, SweepSummary

HURRY_S = 10.0  # An interrupted report waits so long for MLflow.


@dataclass(frozen=True)
class Reporter:
    """Writes about a sweep that is over, from its folder."""

    describe: Callable[[Path], SweepSummary]
    """What the sweep's own MLflow run says."""
    write: Callable[[Path, Callable[[Path], str]], None] | None = None
    """(folder, what gives its composed epsilon as a sentence): print the table and write the files of the report."""


@dataclass(frozen=True)
class Ended:
    """How a sweep ended."""

    folder: Path
    interrupted: int  # the number of the signal that ended it, or 0
    failed: str = ""  # why the last trial failed now, or had no node to run on: the folder may not say it
    incomplete: str = ""  # what MLflow lacks

    @property
    def opened_by(self) -> str:
        """What opens its runs in the MLflow UI; follows "open the runs "."""
        return str(read_json(self.folder / "sweep.json", needs="opened_by")["opened_by"])

    @property
    def code(self) -> int:
        """The exit code: 0 where every trial finished, was stopped or was out of time, and MLflow has everything."""
        if self.interrupted:
            return 128 + self.interrupted
        badly = any(outcome["outcome"] in sweep_folder.UNFINISHED for _, outcome in outcomes(self.folder))
        return int(bool(self.failed) or badly or bool(sweep_folder.open_ended(self.folder)) or bool(self.incomplete))

    def print_incomplete(self) -> None:
        """Say what MLflow lacks, and what adds it."""
        if self.incomplete:
            again = f"once it can be written, add the rest by: {sweep_folder.resume_command(self.folder)}"
            print(f"MLflow is incomplete: {self.incomplete}; {again}", flush=True)


def start(
    planned: Planned,
    *,
    resume: bool = False,
    extend: bool = False,
    report: Reporter | None = None,
    track: bool = True,
    call: str = "",
) -> Ended:
    """Run the trials without an outcome, then report. A sweep of this name may exist (`resume`) and get more trials
    (`extend`). `call`: the Python call that starts it; "": this process's command line. Raises ValueError if the sweep
    may not start, or not here."""
    folder = sweep_folder.folder(planned.base, planned.folder.name)
    with contextlib.ExitStack() as stack:
        with waiting(f"the storage {storage_at(folder).describe('')}"):
            owner = stack.enter_context(hold_lease(folder))
            artifact_sync.get_sweep(folder)  # Only now: before, another driver of this machine may be at work there.
        if extend and not (folder / "sweep.json").exists():
            raise ValueError(f"there is no sweep {folder.name} in {folder.parent} to extend")
        about = _about(planned, resume=resume, extend=extend, call=call)
        planned = replace(planned, owner=owner)
        _announce(planned, report)
        mlflow = None
        if track:
            log = {"about": about, "samplers": planned.asked.samplers, "swept": _swept(planned)}
            mlflow = sweep_folder.mlflow(folder, planned.preset, planned.base, **log)
            mlflow.start()  # Opening a new store takes 10 s, in which Ray starts.
        return _run(planned, about, report, mlflow)


def _swept(planned: Planned) -> Varying:
    """By method, the fields that name its trials: those in which they differ; of a single trial a few."""
    trials = [planned.base, *planned.trials] if planned.suggested else planned.trials
    return varying_fields(trials, planned.space if planned.total > 1 else ("method.epsilon", "clients", "seed"))


def _about(planned: Planned, *, resume: bool, extend: bool, call: str) -> sweep_folder.Plan:
    """The content of sweep.json. Raises ValueError where the sweep may not continue so, or would overspend."""
    folder = planned.folder
    about = sweep_folder.plan(
        folder,
        trials=planned.trials,
        space=planned.space,
        search=planned.asked.search,
        resume=resume,
        extend=extend,
        secret=planned.secret,
        call=call,
    )
    if not (folder / "sweep.json").exists():  # In a resumed sweep each trial checks the budget for itself.
        spending.check(planned.trials, folder)
    about["experiment"] = sweep_folder.mlflow_experiment(folder, planned.base, asked=planned.asked.experiment)
    about |= {"metric": (planned.metric, planned.lower_is_better)} if planned.asked.metric else {}
    return about | ({"tuned": planned.tuned} if planned.tuned else {})


def _announce(planned: Planned, report: Reporter | None) -> None:
    folder = planned.folder
    if storage_at(folder).remote and planned.base.runtime.noise_secret is None:
        print(f"only this machine has the noise secret, in {folder / 'secret'}: nothing goes on without it", flush=True)
    if report and report.write:
        same = f" (repeated settings left out: {planned.repeats})" * (planned.repeats > 0)
        print(f"sweep {folder.name}: {planned.total} trials{same} in {folder}", flush=True)
        print("".join(f"tuned: {line}\n" for line in planned.tuned), end="", flush=True)


def _run(planned: Planned, about: sweep_folder.Plan, report: Reporter | None, mlflow: Mlflow | None) -> Ended:
    """Write the sweep's folder, run the trials and report. After an interrupt, trials that began are killed."""
    folder, runtime, begun = planned.folder, planned.base.runtime, threading.Event()

    def begin() -> None:
        if mlflow:
            with waiting(f"the MLflow store {redacted(mlflow.uri)}"):
                mlflow.wait_ready()
            about["opened_by"] = sweep_folder.opened_by(folder, mlflow.experiment_id, about["id"])
        sweep_folder.write(folder, about, planned.secret)
        begun.set()
        if mlflow:
            mlflow.begin()

    ended = Ended(folder, 0)
    try:
        if _finished(planned):
            begin()
            print(f"sweep {folder.name} is finished, nothing runs: its results are in {folder}", flush=True)
        elif runtime.pool == "local" or planned.server_workers > 1:
            one_process.run(planned, begin)
        else:
            ended = _run_on_ray(planned, begin, functools.partial(_head_lost, folder, mlflow, report))
    except KeyboardInterrupt as e:
        if not begun.is_set():
            raise
        ended = Ended(folder, process.signal_of(e))
        _kill_open(folder, "interrupted")
    except BaseException:  # The storage cannot be written any more, say, or code of the user's exits.
        if begun.is_set():
            _close(mlflow, folder, report, "KILLED")
        raise
    try:
        with waiting("the report, and for the storage and MLflow to have it"):
            incomplete = _report(mlflow, folder, report, "KILLED" if ended.interrupted else "FINISHED")
    except KeyboardInterrupt as e:
        print(f"interrupted while reporting; to make the report: raydiff report {quote(str(folder))}", flush=True)
        incomplete = _close(mlflow, folder, report, "KILLED", timeout_s=HURRY_S)
        ended = replace(ended, interrupted=process.signal_of(e))
    if ended.interrupted or ended.failed:
        why = "interrupted" if ended.interrupted else "trials failed"
        print(f"{why}; continue with: {sweep_folder.resume_command(folder)}", flush=True)
    return replace(ended, incomplete=incomplete)


def _finished(planned: Planned) -> bool:
    """Return whether each trial has an outcome that a resumed sweep keeps."""
    if planned.suggested and not (planned.folder / search.LOG).exists():
        return False
    suggestions = search.Suggestions(planned)
    trials = (*planned.trials, *suggestions.distinct.values())
    ends = [trial.Trial(experiment, planned.folder).outcome() for experiment in trials]
    kept = all(end and not {end["outcome"], end.get("reason")} & sweep_folder.UNFINISHED for end in ends)
    return kept and not suggestions.left and not suggestions.refused


def _kill_open(folder: Path, reason: str) -> None:
    for digest in sweep_folder.open_ended(folder):
        trial.cut_short(folder / "trials" / digest, "killed", reason=reason)


def _head_lost(folder: Path, mlflow: Mlflow | None, report: Reporter | None, reason: str) -> None:
    """End the sweep from a second thread: the first may wait for Ray, which soon ends this process."""
    _kill_open(folder, reason)
    _close(mlflow, folder, report, "KILLED", timeout_s=HURRY_S)
    print(f"{reason}; continue on a new Ray with: {sweep_folder.resume_command(folder)}", flush=True)
    os._exit(1)


def _report(mlflow: Mlflow | None, folder: Path, report: Reporter | None, status: str) -> str:
    if report and report.write:
        report.write(folder, composed_guarantee)
    try:
        artifact_sync.put(folder)
    except OSError as e:
        print(f"the report is only on this machine, in {folder / 'report'}: {e}", flush=True)
    incomplete = _close(mlflow, folder, report, status)
    if noise := chance.noise(folder):
        print(noise, flush=True)
    return incomplete


def _close(mlflow: Mlflow | None, folder: Path, report: Reporter | None, status: str, timeout_s: float = 120.0) -> str:
    """Let MLflow catch up with the trials' files, attach the report, and return what MLflow lacks."""
    if mlflow is None:
        return ""
    mlflow.close(timeout_s)
    summary = report.describe(folder) if report else SweepSummary()
    return mlflow.end(status, tuple(sorted((folder / "report").glob("*"))), summary) or ""


def _run_on_ray(planned: Planned, begin: Callable[[], None], lost: Callable[[str], None]) -> Ended:
    from raydiff.runtime import tuner
    from raydiff.runtime.cluster import cluster, head_watched
    from raydiff.runtime.progress import SweepProgress

    since = time.monotonic()
    with cluster() as nodes:
        slot = tuner.check(planned, nodes)
        begin()
        print(f"ready after {time.monotonic() - since:.0f} s: {slot.workers} worker(s) per trial", flush=True)
        progress = SweepProgress(planned)
        with head_watched(lost):
            interrupted = tuner.run(planned, slot, progress)
        return Ended(planned.folder, interrupted, progress.no_capacity or progress.why)
