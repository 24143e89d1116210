"""A sweep: many trials, one after the other and side by side, through Ray Tune.

`Federation` is the trainable and the coordinator: it consumes `trial.run`, the same generator as a single run. The
store of each trial is the truth. Tune schedules, searches and stops, but keeps no checkpoints of its own: a trial that
starts again, for whatever reason, continues after its last committed round, and a sweep that is resumed runs the
trials that have no outcome yet.
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
from ray.tune.execution import class_cache
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter
from ray.tune.stopper import CombinedStopper

from raydiff import process
from raydiff.experiment import config as configuration
from raydiff.experiment import overrides
from raydiff.experiment import trial as trials
from raydiff.experiment.config import Experiment
from raydiff.experiment.trial import Trial, cut_short
from raydiff.runtime import device_faults as lost
from raydiff.runtime import failures as failed
from raydiff.runtime import gpu_memory
from raydiff.runtime import search as searched
from raydiff.runtime.actors import RayExecutor, WorkersLost, start_workers
from raydiff.runtime.cluster import NODE, grows, nodes
from raydiff.runtime.concurrency import GPU_LOST, ConcurrencyController
from raydiff.runtime.gauges import Gauges
from raydiff.runtime.plan import Planned, experiment_of, written
from raydiff.runtime.progress import Progress
from raydiff.runtime.schedulers import Asha, InOrder
from raydiff.runtime.slots import Slot, cap_memory, fitting, slot, storage_is_shared
from raydiff.storage import artifact_sync as readable
from raydiff.storage.atomic_files import LeaseLost
from raydiff.storage.lease import Lease
from raydiff.storage.staging import StorageCredentials


class Federation(tune.Trainable):
    """One trial. Reused for the next one (`reset_config`): the processes stay, all state is replaced."""

    _given: StorageCredentials | None = None
    _measured: float
    _results: Iterator[dict[str, Any]]
    _round: int
    _trial: Trial | None

    def setup(self, config: dict[str, Any], given: StorageCredentials | None = None) -> None:
        """Start the workers in this trial's own placement group, then begin. `given`: the storage is a bucket, and this
        process works in a folder of its own."""
        process.begin()
        self._given = given
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
        """One round. An error of the experiment ends the trial with its reason; lost processes are Tune's to retry; of
        a lost GPU `ConcurrencyController` hears, and ends Tune's loop."""
        try:
            result = next(self._results)
        except (WorkersLost, LeaseLost):
            raise
        except lost.GpuLost as e:
            result = {"finished": False, "round": self._round, GPU_LOST: (e.node, str(failed.cause(e)))}
            self._results = itertools.repeat(result)
        except torch.OutOfMemoryError as e:
            number, share = self._round + 1, self._gpu_server
            error = gpu_memory.OutOfMemory("the server", number, "gpu_server", share) if share else e
            result = failed.said(self._trial, error)
        except Exception as e:
            result = failed.said(self._trial, e)
        self._round = result.get("round", self._round)
        if self._trial is not None:
            self._gauges.tell(self._trial, result)
        # Searchers want their metric in every result: the last one measured, the worst before the first.
        self._measured = result.get(self._metric, self._measured)
        return {self._metric: self._measured, "done": result["finished"], **result}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: the store has everything."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Nothing: the store has everything."""

    def _begin(self, config: dict[str, Any]) -> None:
        self._trial, self._metric, self._measured, self._round = None, config["metric"], config["worst"], -1
        # A generator: its errors are raised in `step`, which knows what to do with them.
        self._results = self._run(config)

    def _run(self, config: dict[str, Any]) -> Iterator[dict[str, Any]]:
        experiment = experiment_of(config)
        sweep, number = Path(config["sweep"]), config["owner"]
        owner = None if number is None else Lease(sweep, number)
        self._trial = trials.localized(Trial(experiment, sweep, owner, self._given))
        if config.get("values"):  # What Optuna has chosen is resolved here; the driver has resolved all else.
            self._trial = trials.open_trial(experiment, self._trial.sweep, self._trial.owner)
        else:
            trials.begin(self._trial)
        lost.check_gpu(self._gpu_server)
        with lost.exit_on_device_error(self._trial.folder, "the coordinator"):
            cap_memory(self._gpu_server)
            pool = RayExecutor(self._workers, self._trial, gpu=self._gpu)
            for result in trials.run(self._trial, pool):
                yield {"digest": self._trial.experiment.digest, **result}


def slot_of(plan: Planned, nodes: Sequence[Mapping[str, float]]) -> Slot:
    """The slot of all its trials, and of what may be searched from its base."""
    return slot(plan.base.runtime, clients=max(e.clients for e in (plan.base, *plan.trials)), nodes=nodes)


def check(plan: Planned, nodes: Sequence[Mapping[str, float]]) -> Slot:
    """The sweep's slot. Raises ValueError when it cannot run here: too large, where nothing adds nodes, or storage that
    not all nodes share."""
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
    """Run what has no outcome yet; returns when all is done, the time is up, or after an interrupt (True)."""
    _quiet()
    cap_memory(0)  # The driver keeps off the GPUs, which belong to the trials.
    trials.noise_secret(plan.folder, plan.base)  # The secret is made once, here, before any trial asks for it.
    with _heard(progress.interrupt):
        _go_on(plan, shape, progress)
    return progress.interrupted


@contextlib.contextmanager
def _heard(interrupt: Callable[..., None]) -> Iterator[None]:
    """Within, SIGINT and SIGTERM, which `ray job stop` sends, are this function's. In a thread beside the main one,
    which cannot have them, they are what they were."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _go_on(plan: Planned, shape: Slot, progress: Progress) -> None:
    started = time.monotonic()
    left = budget = plan.asked.budget_s
    while _has_lost_its_room(plan, shape, progress, budget_s=left):
        left = None if budget is None else budget - (time.monotonic() - started)
        if progress.ending or (left is not None and left <= 0):
            break
        try:
            shape = fitted(plan, nodes(without=progress.left_out), most=shape.workers)
        except ValueError as e:
            print(f"no trial can go on: {e}; continue with --resume once there is room", flush=True)
            progress.without_room = True
            break
        print(f"nodes were lost: going on with {shape.workers} worker(s) per trial", flush=True)
    _close(plan, progress, out_of_time=budget is not None and time.monotonic() - started >= budget)


def fitted(plan: Planned, found: Sequence[Mapping[str, float]], *, most: int | None) -> Slot:
    """The sweep's slot with as many workers as still fit, at most so many: their number changes no result.

    Raises ValueError where no slot fits.
    """
    shape = check(replace(plan, base=overrides.override(plan.base, {"runtime.workers": None})), found)
    return replace(shape, workers=min(shape.workers, most or shape.workers))


def _has_lost_its_room(plan: Planned, shape: Slot, progress: Progress, *, budget_s: float | None) -> bool:
    """Run what has no outcome yet; True when it ended because the slot has no room any more, as `_fit`."""
    fixed: dict[str, Any] = {"sweep": str(plan.folder), "slot": asdict(shape), "metric": searched.metric(plan)}
    fixed["worst"] = math.inf if plan.lower_is_better else -math.inf
    fixed["owner"] = plan.owner.number if plan.owner else None
    suggested = _suggested_before(plan)
    known = [*plan.trials, *suggested]
    outcomes = [(e, Trial(e, plan.folder).outcome()) for e in known]
    waiting = [e for e, outcome in outcomes if outcome is None]
    progress.have_ended([(e, outcome) for e, outcome in outcomes if outcome is not None])
    if waiting:
        space = {"experiment": tune.grid_search([written(e) for e in waiting]), **fixed}
        asha = _asha(plan) if plan.asked.search == "asha" else None
        if _fit(plan, shape, space, progress, budget_s=budget_s, scheduler=asha):
            return True
    left = plan.suggested - len(suggested)
    if left > 0 and not progress.ending:
        space = {"experiment": written(plan.base), "values": searched.space(plan), **fixed}
        optuna = searched.optuna_of(plan, len(suggested))
        return _fit(plan, shape, space, progress, budget_s=budget_s, search=optuna, samples=left)
    return False


def _close(plan: Planned, progress: Progress, *, out_of_time: bool) -> None:
    """Every trial that began has an outcome: what is left over was stopped by the scheduler or the clock, or killed."""
    if plan.owner is not None:
        plan.owner()  # It raises where another driver owns the sweep by now: the trials are that one's.
    with contextlib.suppress(OSError):
        readable.get_sweep(plan.folder)
    for folder in (plan.folder / "trials").glob("*"):
        if (folder / "config.json").exists() and not (folder / "outcome.json").exists():
            stopped = folder.name in progress.stopped or out_of_time
            words = lost.last_reason(folder)
            lost_so = "its processes were lost" + (f": {words}" if words else "")
            outcome, reason = "killed", "interrupted" if progress.interrupted else lost_so
            if stopped and not progress.interrupted:
                outcome, reason = "stopped", "scheduler" if folder.name in progress.stopped else "time budget"
            with contextlib.suppress(OSError):  # on a full disk
                cut_short(folder, outcome, reason=reason)


def _fit(
    plan: Planned,
    shape: Slot,
    space: dict[str, Any],
    progress: Progress,
    *,
    budget_s: float | None,
    scheduler: Any = None,
    search: Any = None,
    samples: int = 1,
) -> bool:
    """Through Tune; True when it ended because there was no room any more, or none on a node that has lost a GPU."""
    limit = BasicVariantGenerator(max_concurrent=1) if search is None else ConcurrencyLimiter(search, max_concurrent=1)
    room, order = ConcurrencyController(plan, shape, progress, limit), scheduler or InOrder()
    order.limit = limit
    given = StorageCredentials.of(plan.folder)
    # Not by the config, which Tune writes down: it has the secret.
    told: Any = Federation if given is None else tune.with_parameters(Federation, given=given)
    where: dict[str, Any] = {"strategy": "PACK"}
    if progress.left_out:
        where["bundle_label_selector"] = [{NODE: f"!in({','.join(sorted(progress.left_out))})"}] * len(shape.bundles)
    trainable = tune.with_resources(told, tune.PlacementGroupFactory(shape.bundles, **where))
    # Tune's own notes lie elsewhere: on a full storage folder it would raise for want of them.
    with tempfile.TemporaryDirectory(prefix="raydiff-tune-", ignore_cleanup_errors=True) as own:
        tuner = tune.Tuner(
            trainable,
            param_space=space,
            tune_config=tune.TuneConfig(
                num_samples=samples,
                reuse_actors=True,
                scheduler=order,
                search_alg=limit,
                time_budget_s=budget_s,
            ),
            run_config=tune.RunConfig(
                name="tune",
                storage_path=own,
                verbose=0,
                callbacks=[failed.OutcomeWriter(plan.folder), progress, room],
                stop=CombinedStopper(progress, room),
                failure_config=tune.FailureConfig(max_failures=plan.base.runtime.failures),
            ),
        )
        with _no_variables():
            tuner.fit()
    return room.over


@contextlib.contextmanager
def _no_variables() -> Iterator[None]:
    """Tune gives trainables, and so all that these start, an environment variable for PyTorch Lightning. Without it
    they take the processes that Ray has ready; with it each is started anew, by a Python of its own that imports Ray
    too."""
    before = dict(class_cache.DEFAULT_ENV_VARS)
    class_cache.DEFAULT_ENV_VARS.clear()
    try:
        yield
    finally:
        class_cache.DEFAULT_ENV_VARS.update(before)


def _asha(plan: Planned) -> Any:
    longest = max(e.method.rounds for e in plan.trials)
    metric = searched.metric(plan)
    return Asha(time_attr="round", metric=metric, mode=searched.mode(plan), max_t=longest, grace_period=1)


def _suggested_before(plan: Planned) -> list[Experiment]:
    """What Optuna has suggested before the sweep was resumed: the trials that are not in the plan."""
    planned = {e.digest for e in plan.trials}
    folders = sorted(f for f in (plan.folder / "trials").glob("*/config.json") if f.parent.name not in planned)
    return [configuration.read(f) for f in (folders if plan.suggested else [])]


def _quiet() -> None:
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # Our JSON lines are the record.
    # Validation distances come every few rounds only.
    os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")
    os.environ.setdefault("TUNE_PRINT_ALL_TRIAL_ERRORS", "0")  # `Progress` says each error in a line.
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault(
        "TUNE_MAX_PENDING_TRIALS_PG", "200"
    )  # `ConcurrencyController` says how many; with Optuna it would be one.
    os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")  # `Progress.interrupt` ends the sweep, for SIGTERM too
    os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "inf")  # What Tune could restore a sweep from grows with it.
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
