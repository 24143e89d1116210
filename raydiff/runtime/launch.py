"""From a plan to its report: the work of `raydiff sweep`, `raydiff run` and the functions of `raydiff.api`.

`start` runs the trials of a plan, in this process or on Ray, logs them to MLflow and writes the report. A plan that is
refused leaves no files.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raydiff.experiment import spending, trial
from raydiff.experiment.study import varying
from raydiff.federated import heartbeat
from raydiff.federated.rounds import ClientExecutor
from raydiff.formats.json_files import read_json
from raydiff.models.training import Train
from raydiff.results import chance
from raydiff.results.spent import composed
from raydiff.runtime import sweep_folder
from raydiff.runtime.callbacks import Reporter, SweepCallbacks
from raydiff.runtime.eta import EVERY_S, duration
from raydiff.runtime.plan import Planned
from raydiff.runtime.slots import cap_memory
from raydiff.storage import artifact_sync as readable
from raydiff.storage.atomic_files import LeaseLost
from raydiff.storage.lease import held
from raydiff.storage.storage import storage_at

HURRY_S = 10.0  # An interrupted report waits so long for MLflow.


@dataclass(frozen=True)
class Ended:
    """How a sweep ended."""

    folder: Path
    interrupted: bool
    failed: bool = False
    """Whether a trial failed now, or had no node to run on: then the folder may not say so."""

    @property
    def opened_by(self) -> str:
        """What opens its runs in the MLflow UI; follows "open the runs "."""
        return str(read_json(self.folder / "sweep.json").get("opened_by", f"with: raydiff report {self.folder}"))

    @property
    def code(self) -> int:
        """The exit code: 0 where every trial finished, was stopped by the scheduler, or was out of time."""
        if self.interrupted:
            return 130
        ended_so = sweep_folder.ended(self.folder, "failed", "killed") or sweep_folder.open_ended(self.folder)
        return int(self.failed or bool(ended_so))


Begin = Callable[[], None]
"""To be called once nothing is refused any more."""


def start(
    planned: Planned,
    *,
    resume: bool = False,
    extend: bool = False,
    retry: bool = False,
    report: Reporter | None = None,
    track: bool = True,
    since: float | None = None,
) -> Ended:
    """Run the trials without an outcome, then report.

    Args:
        planned: the trials.
        resume: continue the sweep of this name if it exists.
        extend: the resumed sweep may have more trials than before.
        retry: run the failed trials, and only those.
        report: writes the table, the picture and the page.
        track: log to MLflow.
        since: when the command began (`time.monotonic`); None: now.

    Raises:
        ValueError: the sweep may not start, or not here.
    """
    since = since or time.monotonic()
    folder = sweep_folder.folder(planned.base, planned.folder.name)
    with held(folder) as owner:
        readable.get_sweep(folder)  # Only now: before, another driver of this machine may be at work there.
        if (retry or extend) and not (folder / "sweep.json").exists():
            raise ValueError(f"there is no sweep {folder.name} in {folder.parent} to retry or extend")
        planned = replace(planned, owner=owner)
        this = _about(planned, folder, resume=resume, extend=extend)
        if retry and not (planned := _retried(planned)).trials:
            print(f"no trial of {folder.name} has failed")
            return Ended(folder, False)
        whole = report is not None and report.write is not None
        _announce(planned, folder, whole=whole)
        callbacks = SweepCallbacks(planned, folder, this["experiment"], report=report, track=track)

        def begin() -> None:
            this.update(callbacks.ready())
            sweep_folder.write(folder, this, planned.secret, again=not retry)
            for experiment in planned.trials if retry else ():
                (folder / "trials" / experiment.digest / "outcome.json").unlink()
            callbacks.begin()

        ended = Ended(folder, False)
        try:
            if planned.base.runtime.pool == "local" or planned.base.numerics.server_workers > 1:
                _run_here(planned, begin)
            else:
                ended = _run_on_ray(planned, begin, since=since if whole else None)
        except KeyboardInterrupt:
            if not callbacks.begun:
                raise
            ended = Ended(folder, True)
            for digest in sweep_folder.open_ended(folder):
                trial.cut_short(folder / "trials" / digest, "killed", reason="interrupted")
        except ValueError:  # The storage cannot be written any more, say.
            if callbacks.begun:
                callbacks.end("KILLED")
            raise
        try:
            _report(folder, callbacks, "KILLED" if ended.interrupted else "FINISHED", report=report)
        except KeyboardInterrupt:
            print(f"interrupted while reporting; to make the report: raydiff report {folder}", flush=True)
            callbacks.end("KILLED", timeout_s=HURRY_S)
            ended = replace(ended, interrupted=True)
        return ended


def _report(folder: Path, callbacks: SweepCallbacks, status: str, *, report: Reporter | None) -> None:
    table = report.write(folder, composed) if report and report.write else ""
    try:
        readable.put(folder)
    except OSError as e:
        print(f"the report is only on this machine, in {folder / 'report'}: {e}", flush=True)
    callbacks.end(status, table)
    if noise := chance.noise(folder):
        print(noise, flush=True)


def _about(planned: Planned, folder: Path, *, resume: bool, extend: bool) -> sweep_folder.Plan:
    """The content of sweep.json. Raises ValueError where the sweep may not continue so, or would overspend."""
    this = sweep_folder.plan(
        folder,
        trials=planned.trials,
        space=planned.space,
        search=" ".join([planned.asked.search, *planned.asked.also]),
        resume=resume,
        extend=extend,
        secret=planned.secret,
    )
    if not (folder / "sweep.json").exists():  # In a resumed sweep each trial checks the budget for itself.
        spending.check(planned.trials, folder)
    if planned.tuned:
        this["tuned"] = planned.tuned
    experiment = sweep_folder.mlflow_experiment(folder, planned.base, asked=planned.asked.experiment)
    return {**this, "experiment": experiment}


def _announce(planned: Planned, folder: Path, *, whole: bool) -> None:
    if whole:
        print(f"sweep {folder.name}: {planned.total} trials in {folder}", flush=True)
    if storage_at(folder).remote and planned.base.runtime.noise_secret is None:
        print(f"only this machine has the noise secret, in {folder / 'secret'}: nothing goes on without it", flush=True)
    for line in planned.tuned if whole else ():
        print(f"tuned: {line}", flush=True)


def _retried(planned: Planned) -> Planned:
    """The sweep's failed trials alone, on the resources that this command asks for."""
    failed = sweep_folder.ended(planned.folder, "failed")
    trials = tuple(replace(e, runtime=planned.base.runtime) for e in failed)
    return replace(planned, trials=trials, asked=replace(planned.asked, search="grid"))


# --- in this process ---


def _run_here(planned: Planned, begin: Begin) -> None:
    """Run one trial after the other, with the coordinator in this process."""
    runtime, asked, named = planned.base.runtime, planned.asked, varying(planned.trials)
    if asked.search in ("optuna", "asha"):
        raise ValueError(f"--search {asked.search} is Ray Tune's: set runtime.pool to ray")
    if asked.budget_s is not None:
        raise ValueError("--time-budget is Ray Tune's: set runtime.pool to ray")
    trials = [trial.Trial(e, planned.folder, planned.owner) for e in planned.trials]
    if planned.base.numerics.server_workers > 1:
        if len(trials) > 1:
            raise ValueError("numerics.server_workers must be 1 in a sweep: it is for the server of raydiff run")
        from raydiff.runtime import data_parallel

        with data_parallel.means(trials[0]) as (pool, train):
            begin()
            _run_trial(trials[0], pool, train)
        return
    cap_memory(max(runtime.gpu_per_worker, runtime.gpu_server))
    begin()
    for number, this in enumerate(trials, 1):
        if len(trials) > 1 and this.outcome() is None:
            print(f"[{number}/{len(trials)}] {named(this.experiment)}", flush=True)
        _run_trial(this, functools.partial(trial.local_executor, this), None)
        if asked.stop_on_error and (this.outcome() or {}).get("outcome") == "failed":
            return


def _run_trial(this: trial.Trial, pool: Callable[[], ClientExecutor], train: Train | None) -> None:
    """Run a trial without an outcome. Raises ValueError where the storage cannot be written any more."""
    if this.outcome() is not None:
        return
    try:
        trial.begin(this)
        try:
            with _progress_lines(this):
                for result in trial.run(this, pool(), train=train):
                    _print_round(result, this.experiment.method.rounds)
        except LeaseLost:  # Another driver owns the sweep now, and writes how the trial ends.
            raise
        except Exception as e:  # Every trial that began gets an outcome.
            trial.cut_short(this.folder, "failed", reason=str(e) or type(e).__name__)
    except OSError as e:  # The outcome cannot be written either: without one the trial is run again.
        if reason := sweep_folder.not_writable(e, this.sweep):
            raise ValueError(reason) from None
        raise


def _print_round(result: dict[str, Any], rounds: int) -> None:
    if not result["finished"]:
        loss = next((f", {k} {result[k]:.4f}" for k in ("train/loss", "server/loss") if k in result), "")
        print(f"round {result['round'] + 1}/{rounds}: {result['time/seconds']:.1f} s{loss}", flush=True)
        for who, why in result["rejected"].items():
            print(f"  rejected {who}: {why}", flush=True)


@contextlib.contextmanager
def _progress_lines(this: trial.Trial) -> Iterator[None]:
    """Print the step of a long round every EVERY_S, or once that its heartbeat stopped."""
    over, listener, timeout_s = threading.Event(), heartbeat.Heard(), this.experiment.runtime.client_timeout_s

    def report() -> None:
        hangs = False
        while not over.wait(EVERY_S):
            before, hangs = hangs, (silent_s := listener.silent_s(this.folder)) > timeout_s
            if hangs and not before:
                advice = "it may hang; interrupt it, and continue with --resume"
                print(f"  no heartbeat for {duration(silent_s)}: {advice}", flush=True)
            for beat in [] if hangs else heartbeat.read(this.folder)[:1]:
                remaining = f"about {duration(beat.left_s)} of this round remaining"
                print(f"  round {beat.round + 1}/{this.experiment.method.rounds}: {beat}, {remaining}", flush=True)

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# --- on Ray ---


def _run_on_ray(planned: Planned, begin: Begin, *, since: float | None) -> Ended:
    from raydiff.runtime import tuner
    from raydiff.runtime.cluster import cluster
    from raydiff.runtime.progress import Progress

    with cluster() as nodes:
        slot = tuner.check(planned, nodes)
        begin()
        if since is not None:
            print(f"ready after {time.monotonic() - since:.0f} s: {slot.workers} worker(s) per trial", flush=True)
        progress = Progress(planned)
        interrupted = tuner.run(planned, slot, progress)
        return Ended(planned.folder, interrupted, progress.failed > 0 or progress.no_capacity)
