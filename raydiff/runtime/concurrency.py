"""Number of trials that run at once, while nodes come and go.

Ray Tune waits forever for a placement group that no node can hold. So capacity is checked every CHECK_EVERY_S, and a
fit ends early where it must: the caller starts another one with the trials that have no outcome.
"""

import time
from collections.abc import Iterable
from typing import Any

import ray
from ray import tune
from ray.tune.search import Searcher

from raydiff.experiment.config import Experiment
from raydiff.runtime import cluster, gauges, place
from raydiff.runtime.follow import SweepProgress
from raydiff.runtime.plan import Planned, serialize_experiment

CHECK_EVERY_S = 5.0
WAITING_S = 10.0  # A sweep without a running trial for so long prints what it waits for.
OVER: Any = object()  # No trial is left.
QUEUED_TRIALS = 5  # An autoscaler adds nodes for pending placement groups: at least so many are kept pending.


class ConcurrencyController(tune.Callback, tune.Stopper):
    """Keeps `limit`, the number of trials that may run at once, and ends a fit where it must.

    A fit ends after an interrupt, when a node has lost a GPU, when a new node does not see the storage, and when no
    node can hold a trial for `runtime.revive_s` and none may be added.
    """

    def __init__(self, plan: Planned, shape: place.Slot, progress: SweepProgress) -> None:
        self.plan = plan
        self.shape = shape
        self.progress = progress
        self._capacity_lost = False
        self._left_out = len(progress.left_out)
        self._active_at = time.monotonic()
        self._checked_nodes = set(cluster.list_nodes())
        self._printed = ""
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
        nodes = cluster.list_nodes(without=self.progress.left_out)
        grows = cluster.is_autoscaled()
        fitting = place.count_fitting(self.shape.bundles, list(nodes.values()))
        queued = max(QUEUED_TRIALS, fitting) if grows else 0
        most = self.plan.asked.concurrent or self.progress.total
        self.limit = max(1, min(fitting + queued, most))
        idle_s = self._checked_at - self._active_at
        self._print_state(min(fitting, most), idle_s)
        no_room = idle_s >= self.plan.base.runtime.revive_s and not fitting and not grows
        self._capacity_lost = self._capacity_lost or no_room or not self._sees_storage(set(nodes))

    def _print_state(self, count: int, idle_s: float) -> None:
        """Print how many trials fit at once, or what the sweep waits for, where that is new."""
        needed = f"a trial with {self.shape.workers} worker(s) needs {place.format_resources(self.shape.total)}"
        if not count:
            text = f"waiting for resources: {needed}, and no node is large enough"
        elif idle_s >= WAITING_S:
            text = f"waiting for resources, which other jobs may hold: {needed}"
        else:
            text = f"running up to {count} trial{'s' * (count != 1)} concurrently"
        if text != self._printed:
            print(f"  {text}", flush=True)
        self._printed = text

    def _sees_storage(self, ids: set[str]) -> bool:
        joined = ids - self._checked_nodes
        try:
            if joined:
                cluster.check_shared_storage(self.plan.folder.parents[1], joined)
            self._checked_nodes |= joined
        except ValueError:
            return False
        except ray.exceptions.RayError:  # The node is gone again, or too busy: ask again at the next check.
            pass
        return True


class LimitedSearcher(Searcher):
    """Suggests these trials in their order while fewer than `controller.limit` run.

    With more, as after a node was drained, the search ends for this fit: then Tune releases the processes of each
    trial that ends. A trial of None: none before another one has ended.
    """

    def __init__(self, trials: Iterable[Experiment | None], controller: ConcurrencyController) -> None:
        super().__init__()
        self._trials = iter(trials)
        self._controller = controller
        self._running = set[str]()

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles it at the start. Nothing restores it: a sweep's state is in its files.

    def suggest(self, trial_id: str) -> Any:
        """The next trial's config; None: not now; FINISHED: none in this fit."""
        self._controller.check_now_and_then()
        if len(self._running) > self._controller.limit or self._controller.stop_all():
            return Searcher.FINISHED
        if len(self._running) == self._controller.limit:
            return None
        experiment = next(self._trials, OVER)
        if experiment is OVER or (experiment is None and not self._running):
            return Searcher.FINISHED
        if experiment is None:
            return None
        self._running.add(trial_id)
        return {"experiment": serialize_experiment(experiment)}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self._running.discard(trial_id)
