"""From a plan to its report: what `raydiff sweep`, `raydiff run` and the functions of `raydiff.api` do.

`start` runs the trials of a `plan`, here or on Ray, follows them for MLflow and writes the report. What is refused has
left nothing.
"""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raydiff.experiment import spending, trial
from raydiff.experiment.config import Experiment
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
from raydiff.storage.atomic_files import LeaseLost, write_text
from raydiff.storage.lease import held
from raydiff.storage.storage import storage_at

HURRY_S = 10.0
"""How long an interrupted report waits for MLflow to be told of a trial's end."""


@dataclass(frozen=True)
class Ended:
    """How it went."""

    folder: Path
    interrupted: bool
    failed: bool = False
    """Whether a trial failed now, or could not begin for want of room: the folder may not say so itself."""

    @property
    def opened_by(self) -> str:
        """What opens its runs in the MLflow UI, to be said after "open the runs "."""
        return str(read_json(self.folder / "sweep.json").get("opened_by", f"with: raydiff report {self.folder}"))

    @property
    def code(self) -> int:
        """The exit code: 0 where all trials that there was time for finished, or were stopped by the scheduler."""
        if self.interrupted:
            return 130
        ended_so = sweep_folder.ended(self.folder, "failed", "killed") or sweep_folder.open_ended(self.folder)
        return int(self.failed or bool(ended_so))


Begin = Callable[[float | None], None]
"""To be called once nothing is refused any more; takes the share of a GPU that was measured."""


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
    """Run what has no outcome yet, and report. Raises ValueError where the sweep may not start, or not here.

    `resume` continues the sweep of this name if it exists; `extend`: it may have grown; `retry` runs what failed, and
    only that. `report`: what writes the table, the picture and the page; `track`: log to MLflow. `since`: when it
    was asked for (`time.monotonic`).
    """
    since = since or time.monotonic()
    folder = sweep_folder.folder(planned.base, planned.folder.name)
    with held(folder) as owner:
        readable.get_sweep(folder)  # Not before it is held: another driver of this machine may be at work there.
        if (retry or extend) and not (folder / "sweep.json").exists():
            raise ValueError(f"there is no sweep {folder.name} in {folder.parent} to retry or extend")
        planned = replace(planned, owner=owner)
        this = _about(planned, folder, resume=resume, extend=extend)
        if retry:
            planned = replace(planned, trials=_failed(planned), asked=replace(planned.asked, search="grid"))
            if not planned.trials:
                print(f"no trial of {folder.name} has failed")
                return Ended(folder, False)
        whole = report is not None and report.write is not None
        _announce(planned, folder, whole=whole)
        followers = SweepCallbacks(planned, folder, this["experiment"], report=report, track=track)

        def begin(share: float | None) -> None:
            this.update(followers.ready())
            if share is not None:
                this["share"] = share  # A resumed sweep goes on with this share.
            sweep_folder.write(folder, this, planned.secret, again=not retry)
            followers.begin()

        interrupted = failed = False
        try:
            if planned.base.runtime.pool == "local" or planned.base.runtime.server_workers > 1:
                _here(planned, begin, retry=retry)
            else:
                share = None if extend else this.get("share")  # What an earlier start has measured.
                interrupted, failed = _on_ray(planned, begin, share, retry=retry, since=since if whole else None)
        except KeyboardInterrupt:
            if not (folder / "sweep.json").exists():
                raise
            interrupted = True
            for digest in sweep_folder.open_ended(folder):
                trial.cut_short(folder / "trials" / digest, "killed", reason="interrupted")
        except ValueError:  # The storage cannot be written, say. What was refused before it began has left nothing.
            if followers.begun:
                followers.close()
                followers.end("KILLED", "")
            raise
        try:
            _tell(folder, followers, "KILLED" if interrupted else "FINISHED", report=report)
        except KeyboardInterrupt:
            print(f"interrupted while reporting; to make the report: raydiff report {folder}", flush=True)
            followers.close(HURRY_S)
            followers.end("KILLED", "")
            interrupted = True
        return Ended(folder, interrupted, failed)


def _tell(folder: Path, followers: SweepCallbacks, status: str, *, report: Reporter | None) -> None:
    """What the sweep has shown, to whoever ran it, and to those who follow it."""
    followers.close()
    table = report.write(folder, composed(folder)) if report and report.write else ""
    try:
        readable.put(folder)
    except OSError as e:
        print(f"the report is on this machine alone, in {folder / 'report'}: {e}", flush=True)
    followers.end(status, table)
    if noise := chance.noise(folder):
        print(noise, flush=True)


def _about(planned: Planned, folder: Path, *, resume: bool, extend: bool) -> sweep_folder.Plan:
    """What sweep.json is to say. Raises ValueError where the sweep may not go on so, or would overspend."""
    asked = planned.asked
    this = sweep_folder.plan(
        folder,
        trials=planned.trials,
        space=planned.space,
        search=" ".join([asked.search, *asked.also]),
        resume=resume,
        extend=extend,
        secret=planned.secret,
    )
    if not (folder / "sweep.json").exists():  # Else some are charged, and each of the others is asked by itself.
        spending.check(planned.trials, folder)
    if planned.tuned:
        this["tuned"] = planned.tuned
    experiment = sweep_folder.mlflow_experiment(folder, planned.base, asked=asked.experiment)
    return {**this, "experiment": experiment}


def _announce(planned: Planned, folder: Path, *, whole: bool) -> None:
    if whole:
        print(f"sweep {folder.name}: {planned.total} trials in {folder}", flush=True)
    if storage_at(folder).remote and planned.base.runtime.noise_secret is None:
        print(f"only this machine has the noise secret, in {folder / 'secret'}: nothing goes on without it", flush=True)
    if whole:
        for line in planned.tuned:
            print(f"tuned: {line}", flush=True)


def _failed(planned: Planned) -> tuple[Experiment, ...]:
    """The sweep's failed trials, to be run where this command says."""
    found, here = sweep_folder.ended(planned.folder, "failed"), planned.base.runtime
    return tuple(replace(e, runtime=replace(here, threads=e.runtime.threads)) for e in found)


# --- in this process ---


def _here(planned: Planned, begin: Begin, *, retry: bool) -> None:
    """One trial after the other, with the coordinator in this process."""
    asked = planned.asked
    if asked.search in ("optuna", "asha"):
        raise ValueError(f"--search {asked.search} is Ray Tune's: set runtime.pool to ray")
    if asked.budget_s is not None:
        raise ValueError("--time-budget is Ray Tune's: set runtime.pool to ray")
    if planned.base.runtime.server_workers > 1 and len(planned.trials) > 1:
        raise ValueError("runtime.server_workers must be 1 in a sweep: several train the server of raydiff run alone")
    named, begun = varying(planned.trials), False
    for number, experiment in enumerate(planned.trials, 1):
        this = trial.Trial(experiment, planned.folder, planned.owner)
        if begun and not retry and this.outcome() is not None:
            continue
        with _means(this) as (pool, train):
            if not begun:
                begin(None)
                begun = True
            if retry:
                (this.folder / "outcome.json").unlink()
            if this.outcome() is None:
                if len(planned.trials) > 1:
                    print(f"[{number}/{len(planned.trials)}] {named(experiment)}", flush=True)
                try:
                    _rounds(this, pool, train)
                except OSError as e:  # Its outcome cannot be written either: without one it is run again.
                    if says := sweep_folder.not_writable(e, planned.folder):
                        raise ValueError(says) from None
                    raise
        if asked.stop_on_error and (this.outcome() or {}).get("outcome") == "failed":
            return


def _rounds(this: trial.Trial, pool: Callable[[], ClientExecutor], train: Train | None) -> None:
    trial.begin(this)
    try:
        with _told_of(this):
            for result in trial.run(this, pool(), train=train):
                if not result["finished"]:
                    _say_round(result, this.experiment.method.rounds)
    except LeaseLost:  # Another driver owns the sweep now, and writes how the trial ends.
        raise
    except Exception as e:  # Every trial that began gets an outcome.
        trial.cut_short(this.folder, "failed", reason=str(e) or type(e).__name__)


@contextlib.contextmanager
def _told_of(this: trial.Trial) -> Iterator[None]:
    """Within, a line now and then says where a long round is; and one, that nothing is heard: nobody else is there to
    end a process that hangs."""
    over, rounds, most = threading.Event(), this.experiment.method.rounds, this.experiment.runtime.client_timeout_s
    heard, silent = heartbeat.Heard(), False

    def tell() -> None:
        nonlocal silent
        while not over.wait(EVERY_S):
            before, silent = silent, (seconds := heard.silent_s(this.folder)) > most
            if silent and not before:
                print(f"  nothing heard for {duration(seconds)}: it may hang; interrupt it, and --resume", flush=True)
            for beat in [] if silent else heartbeat.read(this.folder)[:1]:
                left = f"about {duration(beat.left_s)} left in this round"
                print(f"  round {beat.round + 1}/{rounds}: {beat}, {left}", flush=True)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def _say_round(result: dict[str, Any], rounds: int) -> None:
    loss = next((f", {k} {result[k]:.4f}" for k in ("train/loss", "server/loss") if k in result), "")
    print(f"round {result['round'] + 1}/{rounds}: {result['time/seconds']:.1f} s{loss}", flush=True)
    for who, why in result["rejected"].items():
        print(f"  rejected {who}: {why}", flush=True)


@contextlib.contextmanager
def _means(this: trial.Trial) -> Iterator[tuple[Callable[[], ClientExecutor], Train | None]]:
    """Where it runs: in this process alone, or with help from a Ray."""
    given = this.experiment.runtime
    if given.server_workers > 1:
        from raydiff.runtime import data_parallel

        with data_parallel.means(this) as found:
            yield found
    else:
        cap_memory(1.0 if given.gpu_per_worker == "auto" else max(given.worker_share, given.gpu_server))
        yield functools.partial(trial.local_executor, this), None


# --- on Ray ---


def _on_ray(
    planned: Planned, begin: Begin, share: float | None, *, retry: bool, since: float | None
) -> tuple[bool, bool]:
    """Through Ray Tune; whether it was interrupted, and whether a trial failed that had not failed before, or found no
    room."""
    from raydiff.runtime import retry as again
    from raydiff.runtime import tuner
    from raydiff.runtime.cluster import cluster
    from raydiff.runtime.progress import Progress

    with cluster() as nodes:
        measured = planned.base.runtime.gpu_per_worker == "auto"
        planned = tuner.sized(planned, nodes, share=share)
        slot = tuner.check(planned, nodes)
        begin(planned.base.runtime.worker_share if measured else None)
        if since is not None:
            print(f"ready after {time.monotonic() - since:.0f} s: {slot.workers} worker(s) per trial", flush=True)
        if retry:
            return again.run(planned, nodes), False
        progress = Progress(planned)
        interrupted = tuner.run(planned, slot, progress)
        if since is not None and (split := progress.split()):
            _say_split(planned.folder, split)
        return interrupted, progress.failed > 0 or progress.without_room


def _say_split(folder: Path, split: Mapping[str, float]) -> None:
    """Print where the time went, and keep it as split.json."""
    write_text(folder / "split.json", json.dumps(split, indent=1))
    share = {k: split[k] / split["slots_s"] for k in ("working", "waiting", "outside")}
    print(
        f"of the time of {split['slots']:.3g} slot(s) since the first trial began, {share['working']:.0%} went into "
        f"training, sampling and evaluation, {share['outside']:.0%} into changing trials, "
        f"{share['waiting']:.0%} into waiting for the last ones"
    )
