"""A sweep from its plan to its report: place its trials, run them, follow them, finish. A refused plan has no files."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from raydiff import lookup, process
from raydiff.experiment import spending, trial
from raydiff.experiment.study import Varying, varying_fields
from raydiff.process import waiting
from raydiff.runtime import one_process, sweep_folder
from raydiff.runtime.finish import Ended, Finisher, Reporter
from raydiff.runtime.plan import Planned
from raydiff.storage import copies
from raydiff.storage.lease import Lease, hold_lease
from raydiff.storage.object_store import is_bucket
from raydiff.storage.storage import storage_at
from raydiff.tracking.mlflow_store import redact_passwords
from raydiff.tracking.mlflow_writer import Mlflow


def start(
    planned: Planned,
    *,
    resume: bool = False,
    extend: bool = False,
    report: Reporter | None = None,
    track: bool = True,
    call: str = "",
) -> Ended:
    """Run a sweep: its trials without an outcome, then the report.

    Args:
        planned: What to run.
        resume: Whether a sweep of this name may exist.
        extend: Whether that sweep gets more trials.
        report: What is written when the trials are over.
        track: Whether MLflow records the sweep.
        call: The Python call that starts the sweep; "": this process's command line.

    Returns:
        How the sweep ended.

    Raises:
        ValueError: If the sweep may not start, or not here.
    """
    named = {*planned.packages, *lookup.PACKAGES, *(lookup.ALLOWED.get() or ())}
    with contextlib.ExitStack() as stack:
        stack.enter_context(lookup.allowed_packages(named))  # Folders of other sweeps may name other people's code.
        planned = replace(planned, owner=_take(planned, stack))
        about = _describe(planned, resume=resume, extend=extend, call=call)
        _announce(planned, report)
        mlflow = _open_mlflow(planned, about) if track else None
        finisher = Finisher(planned.folder, mlflow, report)
        return finisher.report(_run(planned, Beginning(planned, about, mlflow), finisher))


def _take(planned: Planned, stack: contextlib.ExitStack) -> Lease:
    """Hold the sweep's lease, so that no other driver runs it."""
    folder = sweep_folder.create_folder(planned.base, planned.folder.name)
    with waiting(f"the storage {storage_at(folder).describe('')}"):
        lease = stack.enter_context(hold_lease(folder))
        copies.download_sweep(folder)  # Only now: before, another driver of this machine may be at work there.
    return lease


def _describe(planned: Planned, *, resume: bool, extend: bool, call: str) -> sweep_folder.Plan:
    """The content of sweep.json. Raises ValueError where the sweep may not continue so, or would overspend."""
    folder = planned.folder
    begun = (folder / "sweep.json").exists()
    if extend and not begun:
        raise ValueError(f"there is no sweep {folder.name} in {folder.parent} to extend")
    about = sweep_folder.describe_sweep(
        folder,
        trials=planned.trials,
        search=planned.search_record,
        resume=resume,
        extend=extend,
        secret=planned.secret,
        call=call,
    )
    if not begun:  # In a resumed sweep each trial checks the budget for itself.
        spending.check(planned.trials, folder)
    about["experiment"] = sweep_folder.mlflow_experiment(folder, planned.base, asked=planned.asked.experiment)
    if planned.search.metric:
        about["metric"] = (str(planned.metric), planned.lower_is_better)
    if planned.tuned:
        about["tuned"] = planned.tuned
    return about


def _announce(planned: Planned, report: Reporter | None) -> None:
    folder = planned.folder
    if is_bucket(planned.base.runtime.storage) and planned.base.runtime.noise_secret is None:
        print(f"only this machine has the noise secret, in {folder / 'secret'}: nothing goes on without it", flush=True)
    if report and report.write:
        print(f"sweep {folder.name}: {planned.total} trials in {folder}", flush=True)
        for line in (*planned.refused, *(f"tuned: {line}" for line in planned.tuned)):
            print(line, flush=True)


def _open_mlflow(planned: Planned, about: sweep_folder.Plan) -> Mlflow:
    """Start the writer of the sweep's MLflow runs: opening a new store takes 10 s, in which Ray starts."""
    mlflow = sweep_folder.build_writer(
        planned.folder,
        planned.preset,
        base=planned.base,
        about=about,
        swept=_swept(planned),
    )
    mlflow.start()
    return mlflow


def _swept(planned: Planned) -> Varying:
    """By method, the fields that name its trials: those in which they differ; of a single trial a few."""
    trials = [planned.base, *planned.trials] if planned.suggested else planned.trials
    return varying_fields(trials, planned.space if planned.total > 1 else ("method.epsilon", "clients", "seed"))


@dataclass
class Beginning:
    """Writes the sweep's folder and its MLflow run, once nothing is refused any more."""

    planned: Planned
    about: sweep_folder.Plan
    mlflow: Mlflow | None
    done: bool = False

    def __call__(self) -> None:
        folder = self.planned.folder
        if self.mlflow:
            with waiting(f"the MLflow store {redact_passwords(self.mlflow.uri)}"):
                self.mlflow.wait_ready()
            view = sweep_folder.describe_view(folder, self.mlflow.experiment_id, self.about["id"])
            self.about["opened_by"] = view
        sweep_folder.write_sweep(folder, self.about, self.planned.secret)
        self.done = True
        if self.mlflow:
            self.mlflow.begin()


def _run(planned: Planned, begin: Beginning, finisher: Finisher) -> Ended:
    """Run the trials, here or on Ray. After an interrupt, trials that began are killed."""
    folder = planned.folder
    ended = Ended(folder)
    try:
        if _finished(planned):
            begin()
            print(f"sweep {folder.name} is finished, nothing runs: its results are in {folder}", flush=True)
        elif planned.base.runtime.pool == "local" or planned.server_workers > 1:
            one_process.run_in_process(planned, begin)
        else:
            ended = _run_on_ray(planned, begin)
    except KeyboardInterrupt as e:
        if not begin.done:
            raise
        finisher.kill_open("interrupted")
        ended = Ended(folder, process.signal_of(e))
    except BaseException:  # The storage cannot be written any more, say, or code of the user's exits.
        if begin.done:
            finisher.close_mlflow("KILLED")
        raise
    return ended


def _finished(planned: Planned) -> bool:
    """Return whether each trial has an outcome that a resumed sweep keeps."""
    suggestions = planned.suggestions()
    trials = (*planned.trials, *suggestions.distinct.values())
    ends = [trial.Trial(experiment, planned.folder).outcome() for experiment in trials]
    kept = all(end and not {end["outcome"], end.get("reason")} & sweep_folder.UNFINISHED for end in ends)
    return kept and next(suggestions.more(), None) is None


def _run_on_ray(planned: Planned, begin: Callable[[], None]) -> Ended:
    from raydiff.runtime import tuner
    from raydiff.runtime.cluster import join_cluster
    from raydiff.runtime.follow import SweepProgress

    since = time.monotonic()
    with join_cluster() as nodes:
        slot = tuner.choose_slot(planned, nodes)
        begin()
        print(f"ready after {time.monotonic() - since:.0f} s: {slot.workers} worker(s) per trial", flush=True)
        progress = SweepProgress(planned)
        interrupted = tuner.run_on_tune(planned, slot, progress)
        return Ended(planned.folder, interrupted, progress.no_capacity or progress.why)
