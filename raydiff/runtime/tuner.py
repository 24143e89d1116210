"""A sweep: many trials through Ray Tune.

`Federation` is the trainable and the coordinator: it consumes `trial.run`, the same generator as a single run. Tune
schedules, searches and stops, but keeps no checkpoints: the trial's folder is the only state. A trial that starts
again continues after its last committed round, and a sweep that is resumed runs the trials without an outcome. Nor does
Tune keep the sweep: a fit that lost its capacity is followed by another one, with the trials that remain.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search import Searcher

from raydiff import process
from raydiff.experiment import config as configuration
from raydiff.experiment import overrides
from raydiff.experiment import trial as trials
from raydiff.experiment.config import Experiment
from raydiff.experiment.trial import Trial, cut_short
from raydiff.runtime import device_faults, failures, gpu_memory, search, sweep_folder
from raydiff.runtime.actors import RayExecutor, WorkersLost, start_workers
from raydiff.runtime.cluster import NODE, grows, nodes
from raydiff.runtime.concurrency import GPU_LOST, ConcurrencyController, LimitedSearcher
from raydiff.runtime.gauges import Gauges
from raydiff.runtime.plan import Planned, experiment_of, written
from raydiff.runtime.progress import Progress
from raydiff.runtime.slots import Slot, cap_memory, fitting, slot, storage_is_shared
from raydiff.storage import artifact_sync as readable
from raydiff.storage.atomic_files import LeaseLost
from raydiff.storage.lease import Lease
from raydiff.storage.staging import StorageCredentials

TUNE_SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # The trials' own JSON lines are the record.
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # Validation distances come every few rounds only.
    "RAY_AIR_NEW_OUTPUT": "0",  # The new output prints tables even where verbose is 0.
    "TUNE_MAX_PENDING_TRIALS_PG": "200",  # `LimitedSearcher` limits them; Tune's limit for searchers is 1.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # `Progress.interrupt` handles it.
}
"""Tune's environment variables, where the user has not set them."""


class Federation(tune.Trainable):
    """Runs one trial. Reused for the next one (`reset_config`): the processes stay, all state is replaced."""

    _credentials: StorageCredentials | None = None
    _results: Iterator[dict[str, Any]]
    _round: int
    _trial: Trial | None

    def setup(self, config: dict[str, Any], credentials: StorageCredentials | None = None) -> None:
        """Start the workers in this trial's own placement group, then begin. `credentials`: of a bucket; this process
        then works in a folder of its own."""
        process.begin()
        self._credentials = credentials
        shape = Slot(**config["slot"])
        self._gpu, self._gpu_server = shape.gpu_per_worker, shape.gpu_server
        self._workers = start_workers(shape, ray.util.get_current_placement_group())
        self._gauges = Gauges()
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take the next trial in the same processes."""
        self._begin(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Run one round. An error of the experiment is the trial's last result; after lost processes Tune starts the
        trial again; a lost GPU is reported to `ConcurrencyController`, which ends the fit."""
        try:
            result = next(self._results)
        except (WorkersLost, LeaseLost):
            raise
        except device_faults.GpuLost as e:
            result = {"finished": False, "round": self._round, GPU_LOST: (e.node, str(failures.cause(e)))}
            self._results = itertools.repeat(result)
        except torch.OutOfMemoryError as e:
            number, share = self._round + 1, self._gpu_server
            error = gpu_memory.OutOfMemory("the server", number, "gpu_server", share) if share else e
            result = failures.failure_result(self._trial, error)
        except Exception as e:
            result = failures.failure_result(self._trial, e)
        self._round = result.get("round", self._round)
        if self._trial is not None:
            self._gauges.tell(self._trial, result)
        # The metric is measured after some rounds only: searchers read the last value from each result.
        self._measured |= {k: result[k] for k in [self._metric] if k in result}
        return {**self._measured, "done": result["finished"], **result}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: the trial's folder has everything. Tune calls it when a trial ends."""

    def _begin(self, config: dict[str, Any]) -> None:
        self._trial, self._metric, self._measured, self._round = None, config["metric"], dict[str, Any](), -1
        # A generator: its errors are raised in `step`, which handles them.
        self._results = self._run(config)

    def _run(self, config: dict[str, Any]) -> Iterator[dict[str, Any]]:
        experiment = experiment_of(config)
        sweep, number = Path(config["sweep"]), config["owner"]
        owner = None if number is None else Lease(sweep, number)
        self._trial = trials.localized(Trial(experiment, sweep, owner, self._credentials))
        if config.get("values"):  # The driver has resolved every experiment but Optuna's.
            self._trial = trials.open_trial(experiment, self._trial.sweep, self._trial.owner)
        else:
            trials.begin(self._trial)
        device_faults.check_gpu(self._gpu_server)
        with device_faults.exit_on_device_error(self._trial.folder, "the coordinator"):
            cap_memory(self._gpu_server)
            pool = RayExecutor(self._workers, self._trial, gpu=self._gpu)
            for result in trials.run(self._trial, pool):
                yield {"digest": self._trial.experiment.digest, **result}


def slot_of(plan: Planned, nodes: Sequence[Mapping[str, float]]) -> Slot:
    """The slot that holds each of the plan's trials."""
    clients = max(e.clients for e in (plan.base, *plan.trials))
    return slot(plan.base.runtime, threads=plan.base.numerics.threads, clients=clients, nodes=nodes)


def check(plan: Planned, nodes: Sequence[Mapping[str, float]]) -> Slot:
    """The sweep's slot. Raises ValueError where no node can hold it and no autoscaler adds any, or where some node does
    not see the storage."""
    shape = slot_of(plan, nodes)
    try:
        fitting(shape, nodes)
    except ValueError:
        if not grows():
            raise
    if len(nodes) > 1:
        storage_is_shared(plan.folder.parents[1])
    return shape


def run(plan: Planned, shape: Slot, progress: Progress) -> bool:
    """Run the trials that have no outcome, until all have one or the time budget is spent. Returns whether an interrupt
    ended it."""
    _configure_tune()
    cap_memory(0)  # The driver keeps off the GPUs, which belong to the trials.
    trials.noise_secret(plan.folder, plan.base)  # Made once, here, before any trial reads it.
    with _signals_handled(progress.interrupt):
        _run_fits(plan, shape, progress)
    return progress.interrupted


@contextlib.contextmanager
def _signals_handled(interrupt: Callable[..., None]) -> Iterator[None]:
    """Handle SIGINT and SIGTERM, which `ray job stop` sends, by this function; outside the main thread do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_fits(plan: Planned, shape: Slot, progress: Progress) -> None:
    """Run one fit after the other, each on the slots that the cluster has then.

    One fit is enough where no capacity is lost. Optuna continues its study, and ASHA is one scheduler for all fits.
    """
    budget, deadline = plan.asked.budget_s, time.monotonic() + (plan.asked.budget_s or math.inf)
    scheduler = _asha(plan) if plan.asked.search == "asha" else None
    for number in itertools.count():
        pending, suggested = _without_outcome(plan, progress)
        # A trial that failed before it had a folder counts too.
        samples = 0 if pending else min(plan.suggested - suggested, plan.total - progress.done - progress.failed)
        if not (pending or samples > 0) or progress.ending or time.monotonic() >= deadline:
            break
        try:
            if number and shape.workers > (shape := _refitted(plan, shape, progress)).workers:
                print(f"nodes were lost: going on with {shape.workers} worker(s) per trial", flush=True)
        except ValueError as e:
            print(f"no trial can go on: {e}; continue with --resume on a larger cluster", flush=True)
            progress.no_capacity = True
            break
        configs = [{"experiment": written(e)} for e in pending]
        source = search.PlannedTrials(configs) if pending else search.optuna_of(plan, suggested)
        tuned = tune.TuneConfig(
            num_samples=len(pending) or samples,
            reuse_actors=True,
            scheduler=scheduler if pending else None,
            time_budget_s=None if budget is None else deadline - time.monotonic(),
        )
        _fit(plan, shape, progress, source, tuned)
    _close(plan, progress, out_of_time=time.monotonic() >= deadline)


def _without_outcome(plan: Planned, progress: Progress) -> tuple[list[Experiment], int]:
    """Trials to run, interrupted ones first, and how many Optuna has suggested so far."""
    planned = {e.digest for e in plan.trials}
    files = sorted(plan.folder.glob("trials/*/config.json")) if plan.suggested else []
    suggested = [configuration.read(f) for f in files if f.parent.name not in planned]
    every = [(e, Trial(e, plan.folder)) for e in (*plan.trials, *suggested)]
    outcomes = [(e, this.folder, this.outcome()) for e, this in every]
    progress.begin_fit((e, outcome) for e, _, outcome in outcomes if outcome is not None)
    pending = [(e, at) for e, at, outcome in outcomes if outcome is None and e.digest not in progress.ended]
    pending.sort(key=lambda one: not (one[1] / "config.json").exists())
    return [e for e, _ in pending], len(suggested)


def _refitted(plan: Planned, shape: Slot, progress: Progress) -> Slot:
    """The sweep's slot with as many workers as still fit, at most as many as before: their number changes no result.

    Raises ValueError where no slot fits.
    """
    free = overrides.override(plan.base, {"runtime.workers": None})
    refitted = check(replace(plan, base=free), nodes(without=progress.left_out))
    return replace(refitted, workers=min(refitted.workers, shape.workers))


def _close(plan: Planned, progress: Progress, *, out_of_time: bool) -> None:
    """Give every trial that began an outcome: the rest was stopped by the scheduler or the clock, or killed."""
    if plan.owner is not None:
        plan.owner()  # Raises where another driver owns the sweep now, and with it the trials.
    with contextlib.suppress(OSError):
        readable.get_sweep(plan.folder)
    for digest in sweep_folder.open_ended(plan.folder):
        folder = plan.folder / "trials" / digest
        fault = device_faults.last_reason(folder)
        outcome, reason = "killed", "its processes were lost" + (f": {fault}" if fault else "")
        if progress.interrupted:
            reason = "interrupted"
        elif digest in progress.stopped or out_of_time:
            outcome, reason = "stopped", "scheduler" if digest in progress.stopped else "time budget"
        with contextlib.suppress(OSError):  # on a full disk
            cut_short(folder, outcome, reason=reason)


def _fit(plan: Planned, shape: Slot, progress: Progress, source: Searcher, tuned: tune.TuneConfig) -> None:
    """Run trials through Tune, as many at once as `ConcurrencyController` allows."""
    controller = ConcurrencyController(plan, shape, progress)
    tuned.search_alg = LimitedSearcher(source, controller)
    credentials = StorageCredentials.of(plan.folder)
    # Not in the config, which Tune writes to disk.
    trainable: Any = Federation if credentials is None else tune.with_parameters(Federation, credentials=credentials)
    where: dict[str, Any] = {"strategy": "PACK"}
    if progress.left_out:
        where["bundle_label_selector"] = [{NODE: f"!in({','.join(sorted(progress.left_out))})"}] * len(shape.bundles)
    config = {
        "experiment": written(plan.base),  # of Optuna's trials
        "sweep": str(plan.folder),
        "slot": asdict(shape),
        "metric": search.metric(plan),
        "owner": plan.owner.number if plan.owner else None,
    }
    # Tune raises where it cannot write its own state: kept apart from the storage folder, which may be full.
    with tempfile.TemporaryDirectory(prefix="raydiff-tune-", ignore_cleanup_errors=True) as folder:
        tune.Tuner(
            tune.with_resources(trainable, tune.PlacementGroupFactory(shape.bundles, **where)),
            param_space=config,
            tune_config=tuned,
            run_config=tune.RunConfig(
                name="tune",
                storage_path=folder,
                verbose=0,
                callbacks=[failures.OutcomeWriter(plan.folder), progress, controller],
                stop=controller,
                failure_config=tune.FailureConfig(max_failures=plan.base.runtime.failures),
            ),
        ).fit()


def _asha(plan: Planned) -> ASHAScheduler:
    longest = max(e.method.rounds for e in plan.trials)
    return ASHAScheduler("round", search.metric(plan), search.mode(plan), max_t=longest, grace_period=1)


def _configure_tune() -> None:
    for name, value in TUNE_SETTINGS.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # `Progress` prints each error in a line.
