"""A sweep: many trials through Ray Tune.

Tune schedules, searches and stops; the trials' folders are the only state. A resumed sweep, and a fit after one that
lost its capacity, runs the trials without an outcome, each after its last committed round.
"""

import contextlib
import itertools
import logging
import math
import os
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ray import tune
from ray.tune.schedulers import TrialScheduler

from raydiff import process
from raydiff.experiment import overrides
from raydiff.experiment.config import Experiment
from raydiff.experiment.trial import Trial, end_unfinished
from raydiff.runtime import cluster, concurrency, device_faults, finish, schedulers, sweep_folder
from raydiff.runtime.coordinator import Coordinator
from raydiff.runtime.follow import SweepProgress
from raydiff.runtime.place import Slot, cap_memory, check_bundles_fit, shape_slot
from raydiff.runtime.plan import Planned
from raydiff.runtime.search import Suggestions
from raydiff.storage import copies, staging

TUNE_SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # The trials' own JSON lines are the record.
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # Validation distances come every few rounds only.
    "RAY_AIR_NEW_OUTPUT": "0",  # The new output prints tables even where verbose is 0.
    "TUNE_MAX_PENDING_TRIALS_PG": "200",  # `LimitedSearcher` limits them; Tune's limit for searchers is 1.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # `SweepProgress.interrupt` handles it.
}
"""Tune's environment variables, where the user has not set them."""


def slot_for(plan: Planned, nodes: Sequence[Mapping[str, float]]) -> Slot:
    """Return the slot that holds each of the plan's trials."""
    return shape_slot(plan.base.runtime, threads=plan.base.numerics.threads, clients=plan.most_clients, nodes=nodes)


def choose_slot(plan: Planned, nodes: Sequence[Mapping[str, float]]) -> Slot:
    """Return the sweep's slot. Raises ValueError if no node can hold it, or one does not see the storage."""
    shape = slot_for(plan, nodes)
    if not cluster.is_autoscaled():
        check_bundles_fit(shape.bundles, shape.total, nodes)
    if len(nodes) > 1:
        cluster.check_shared_storage(plan.folder.parents[1])
    return shape


def run_on_tune(plan: Planned, shape: Slot, progress: SweepProgress) -> finish.Ended:
    """Run the trials that have no outcome within the time budget."""
    for name, value in TUNE_SETTINGS.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # `SweepProgress` prints each error in a line.
    cap_memory(0)  # The driver keeps off the GPUs, which belong to the trials.
    with process.stop_signals(progress.interrupt):
        _run_fits(plan, shape, progress)
    return finish.Ended(plan.folder, progress.interrupted, progress.no_capacity or progress.why)


class NoCapacity(Exception):
    """No node can hold a trial any more."""


def _run_fits(plan: Planned, shape: Slot, progress: SweepProgress) -> None:
    """Run one fit after the other, each on the slots that the cluster has then: one, where no capacity is lost."""
    progress.deadline = time.monotonic() + (plan.asked.budget_s or math.inf)
    scheduler = _scheduler(plan)
    suggestions = plan.suggestions()
    try:
        for count in itertools.count():
            pending = _without_outcome(plan, suggestions, progress)
            if not (pending or suggestions.left) or progress.ending:
                break
            shape = _refit(plan, shape, progress) if count else shape
            tuned = tune.TuneConfig(num_samples=-1, reuse_actors=True, scheduler=scheduler)  # until the searcher ends
            _fit(plan, shape, progress, tuned, itertools.chain(pending, suggestions.more()))
            progress.total = len(plan.trials) + len(suggestions.distinct) + suggestions.left
    except NoCapacity as e:
        progress.give_up(str(e))
    except RuntimeError:  # Tune 2.60 raises it where Ray kills a process that is starting.
        reason = cluster.explain_memory_kill()
        if not reason:
            raise
        progress.give_up(reason)
    if plan.suggested:
        print(suggestions.summary(lower_is_better=plan.lower_is_better), flush=True)
    _end_open_trials(plan, progress)


def _scheduler(plan: Planned) -> TrialScheduler | None:
    """What stops trials early, by rounds."""
    if not plan.search.scheduler:
        return None
    rounds = max(e.method.rounds for e in (plan.base, *plan.trials))
    return schedulers.build_scheduler(
        plan.search.scheduler, objective=plan.objective, lower_is_better=plan.lower_is_better, rounds=rounds
    )


def _without_outcome(plan: Planned, suggestions: Suggestions, progress: SweepProgress) -> list[Experiment]:
    """Trials to run, interrupted ones first."""
    trials = [*plan.trials, *suggestions.distinct.values()]
    pending = progress.begin_fit((e, Trial(e, plan.folder).outcome()) for e in trials)
    return sorted(pending, key=lambda e: not (plan.folder / "trials" / e.digest / "config.json").exists())


def _refit(plan: Planned, shape: Slot, progress: SweepProgress) -> Slot:
    """The slot with as many workers as still fit: their number changes no result. Raises NoCapacity."""
    free = replace(plan, base=overrides.override(plan.base, {"runtime.workers": None}))
    try:
        refitted = choose_slot(free, list(cluster.list_nodes(without=progress.left_out).values()))
    except ValueError as e:
        raise NoCapacity(str(e)) from None
    if refitted.workers >= shape.workers:
        return shape
    print(f"nodes were lost: going on with {refitted.workers} worker(s) per trial", flush=True)
    return refitted


def _end_open_trials(plan: Planned, progress: SweepProgress) -> None:
    """Give every trial that began an outcome: the rest was stopped by the scheduler or the clock, or killed."""
    if plan.owner is not None:
        plan.owner()  # Raises where another driver owns the sweep now, and with it the trials.
    with contextlib.suppress(OSError):
        copies.download_sweep(plan.folder)
    for digest in sweep_folder.list_open_trials(plan.folder):
        folder = plan.folder / "trials" / digest
        outcome, reason = _outcome_of(digest, device_faults.read_losses(folder), progress)
        with contextlib.suppress(OSError):  # on a full disk
            end_unfinished(folder, outcome, reason=reason)


def _outcome_of(digest: str, losses: Sequence[str], progress: SweepProgress) -> tuple[str, str]:
    """Return the outcome of a trial that began and did not end, and its reason."""
    if progress.interrupted:
        return "killed", "interrupted"
    if digest in progress.stopped:
        return "stopped", "scheduler"
    if time.monotonic() >= progress.deadline:
        return "stopped", "time budget"
    why = [*filter(None, [progress.no_capacity]), *losses][-1:]
    return "killed", ": ".join(["its processes were lost", *why])


def _fit(
    plan: Planned, shape: Slot, progress: SweepProgress, tuned: tune.TuneConfig, trials: Iterable[Experiment | None]
) -> None:
    """Run trials through Tune, as many at once as `ConcurrencyController` allows."""
    controller = concurrency.ConcurrencyController(plan, shape, progress)
    tuned.search_alg = concurrency.LimitedSearcher(trials, controller)
    trainable: Any = Coordinator
    if credentials := staging.read_credentials(plan.folder):  # Not in the config, which Tune writes to disk.
        trainable = tune.with_parameters(Coordinator, credentials=credentials)
    left_out = f"!in({','.join(sorted(progress.left_out))})"
    selector = [{cluster.NODE: left_out}] * len(shape.bundles) if progress.left_out else None
    group = tune.PlacementGroupFactory(shape.bundles, strategy="PACK", bundle_label_selector=selector)
    # Tune raises where it cannot write its own state: kept apart from the storage folder, which may be full.
    with tempfile.TemporaryDirectory(prefix="raydiff-tune-", ignore_cleanup_errors=True) as folder:
        tune.Tuner(
            tune.with_resources(trainable, group),
            param_space={"sweep": plan.folder, "slot": shape, "owner": plan.owner},
            tune_config=tuned,
            run_config=tune.RunConfig(
                name="tune",
                storage_path=folder,
                verbose=0,
                callbacks=[progress, controller],
                stop=controller,
                failure_config=tune.FailureConfig(max_failures=plan.base.runtime.failures),
            ),
        ).fit()
