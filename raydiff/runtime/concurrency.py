"""Number of trials that run at once, while nodes come and go and other jobs use the cluster.

Ray Tune waits forever for a placement group that no node can hold. So capacity is checked every CHECK_EVERY_S, and a
fit ends early where it must: the caller starts another one with the trials that have no outcome.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import ray
from ray import tune
from ray.tune.search import Searcher

from raydiff.experiment.config import Experiment
from raydiff.runtime import cluster, gauges
from raydiff.runtime.cluster import HEAD
from raydiff.runtime.plan import Planned, written
from raydiff.runtime.progress import SweepProgress
from raydiff.runtime.slots import Slot, fair_slots, format_resources, free_slots

CHECK_EVERY_S = 5.0
WAITING_S = 10.0  # A sweep without a running trial for so long prints what it waits for.
QUEUED_TRIALS = 5  # An autoscaler adds nodes for pending placement groups: at least so many are kept pending.


class ConcurrencyController(tune.Callback, tune.Stopper):
    """Keeps `limit`, the number of trials that may run at once, and ends a fit: after an interrupt, or when a node lost
    a GPU, a new one does not see the storage, or none can hold a trial for `runtime.revive_s` or may be added."""

    def __init__(self, plan: Planned, shape: Slot, progress: SweepProgress) -> None:
        self.plan, self.shape, self.progress = plan, shape, progress
        self._capacity_lost, self._left_out = False, len(progress.left_out)
        self._active_at = time.monotonic()
        self._checked_nodes = set(cluster.present())
        self._reported, self._begun = "", False
        self._check()

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Check the cluster now and then; Tune calls this in every turn of its loop."""
        if not trials or any(trial.status == "RUNNING" for trial in trials):
            self._active_at = time.monotonic()
        self.check_now_and_then()

    def check_now_and_then(self) -> None:
        """Check the cluster if the last check is long ago. While no trial runs, Tune calls nothing but the searcher."""
        if time.monotonic() - self._checked_at >= CHECK_EVERY_S:
            self._check()

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        """Whether this fit ends now."""
        return self.progress.ending or self._capacity_lost or len(self.progress.left_out) > self._left_out

    def _check(self) -> None:
        self._checked_at = time.monotonic()
        gauges.export_sweep(self.plan.folder.name, self.progress.counts)
        nodes, grows = cluster.present(without=self.progress.left_out), cluster.grows()
        others, resources = cluster.groups_of_others(), list(nodes.values())
        fitting, fair = (fair_slots(self.shape, resources, of) for of in ([], others.placed + others.waiting))
        # While another job waits for nodes too, pending groups beyond the fair part would take them from it.
        queued = max(QUEUED_TRIALS, fitting) if grows and not others.waiting else 0
        most = self.plan.asked.concurrent or self.progress.total
        free, _ = free_slots(self.shape, resources, others.placed)
        waiting_before = len(others.sweeps_before - {job for job, bundles in others.placed if HEAD not in bundles[0]})
        # Ray places pending groups in any order, so only the first sweep in line has one.
        self._begun = self._begun or others.holds_slot
        is_next = self._begun or grows or free > waiting_before or not waiting_before
        self.limit = max(1, min(fair + queued, most)) if is_next else 0
        self._active_at = self._active_at if is_next else self._checked_at
        idle_s = self._checked_at - self._active_at
        jobs, before = len({job for job, _ in others.placed + others.waiting}), len(others.sweeps_before)
        beside = f", beside {jobs} other job(s) on the cluster" if jobs else ""
        starts = self._begun or (is_next and free > 0)
        if fitting and starts and idle_s < WAITING_S:
            count = max(1, min(fair, most))
            text = f"running up to {count} trial{'s' * (count != 1)} concurrently{beside}"
        elif fitting and before and not starts:
            text = f"waiting for slots: {before} sweep{'s' * (before != 1)} before this one"
        else:
            what = "the processes of a trial" if starts and free else "resources"
            needs = f"a trial with {self.shape.workers} worker(s) needs {format_resources(self.shape.total)}"
            text = f"waiting for {what}: {needs}{beside if fitting else ', and no node is large enough'}"
        if text != self._reported:
            print(f"  {text}", flush=True)
        self._reported = text
        no_room = idle_s >= self.plan.base.runtime.revive_s and not fitting and not grows
        self._capacity_lost = self._capacity_lost or no_room or not self._sees_storage(set(nodes))

    def _sees_storage(self, ids: set[str]) -> bool:
        try:
            if joined := ids - self._checked_nodes:
                cluster.storage_is_shared(self.plan.folder.parents[1], joined)
            self._checked_nodes |= joined
        except ValueError:
            return False
        except ray.exceptions.RayError:  # The node is gone again, or too busy: ask again at the next check.
            pass
        return True


class LimitedSearcher(Searcher):
    """Suggests these trials in their order while fewer than `controller.limit` run. With more, the search ends for this
    fit: then Tune releases the processes of each trial that ends to other jobs."""

    def __init__(self, trials: Iterable[Experiment], controller: ConcurrencyController) -> None:
        super().__init__()
        self._trials, self._controller, self._running = iter(trials), controller, set[str]()

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles it at the start. Nothing restores it: a sweep's state is in its files.

    def suggest(self, trial_id: str) -> Any:
        """The next trial's config; None: not now; FINISHED: none in this fit."""
        self._controller.check_now_and_then()
        if len(self._running) > self._controller.limit or self._controller.stop_all():
            return Searcher.FINISHED
        if len(self._running) == self._controller.limit:
            return None
        if (experiment := next(self._trials, None)) is None:
            return Searcher.FINISHED
        self._running.add(trial_id)
        return {"experiment": written(experiment)}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self._running.discard(trial_id)
