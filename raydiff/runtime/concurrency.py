"""How many trials run side by side, while nodes come and go and other jobs share them.

Tune waits for ever for a placement group that fits nowhere, and gives none back while it has trials left, for the next
one begins in the warm processes of the last. So it is told anew every few seconds how many trials it may have.
"""

from __future__ import annotations

import time
from typing import Any

import ray
from ray import tune

from raydiff.runtime import cluster
from raydiff.runtime.plan import Planned
from raydiff.runtime.progress import Progress
from raydiff.runtime.slots import Slot, say, share, storage_is_shared

EVERY_S = 5.0
GPU_LOST = "gpu_lost"  # In a trial's result: (the node, the sentence).
AHEAD = 5  # An autoscaler sees what waits: as many trials as fit already, and at least so many.


class ConcurrencyController(tune.Callback, tune.Stopper):
    """Sets `limit.max_concurrent`, of the search algorithm that Tune asks for trials.

    Ends Tune's loop where a node that joins does not see the storage, or one has lost a GPU; and once nothing has run
    for `runtime.revive_s` and no node has room for the slot, unless an autoscaler may bring one: a sweep goes on with
    fewer workers to a trial then, whose number changes no result.
    """

    def __init__(self, plan: Planned, shape: Slot, progress: Progress, limit: Any) -> None:
        self.plan, self.shape, self.progress, self.limit = plan, shape, progress, limit
        self.over = False
        self._busy = time.monotonic()
        self._known = set(cluster.present())  # checked before the sweep began
        self._said: tuple[int, int] | None = None
        self._look()

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """In every turn of Tune's loop, before it asks for trials."""
        now = time.monotonic()
        if not trials or any(trial.status == "RUNNING" for trial in trials):
            self._busy = now
        if now - self._looked >= EVERY_S:
            self._look()

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """No trial is stopped for its result here; but it may tell that it has found its GPU lost."""
        if GPU_LOST in result and self.progress.leave_out(*result[GPU_LOST]):
            self.over = True
        return False

    def stop_all(self) -> bool:
        """Asked by Tune in every turn of its loop."""
        return self.over

    def _look(self) -> None:
        self._looked = now = time.monotonic()
        there = cluster.present(without=self.progress.left_out)
        others, grows = cluster.groups_of_others(), cluster.grows()
        nodes = list(there.values())
        fits, own = share(self.shape, nodes, []), share(self.shape, nodes, [(g.job, g.bundles) for g in others])
        most = self.plan.asked.concurrent or self.progress.total
        self.progress.have(max(1, min(own, most, self.progress.total)))
        # Where another job waits for nodes already, asking for more than one's own would be taking them from it.
        ahead = max(AHEAD, fits) if grows and not any(group.waits for group in others) else 0
        self.limit.max_concurrent = max(1, min(own + ahead, most))
        self._say(fits, own, len({group.job for group in others}), grows=grows)
        idle = now - self._busy >= self.plan.base.runtime.revive_s
        self.over = self.over or (idle and not fits and not grows) or not self._sees_storage(set(there))

    def _sees_storage(self, ids: set[str]) -> bool:
        try:
            if joined := ids - self._known:
                storage_is_shared(self.plan.folder.parents[1], joined)
        except ValueError:
            return False
        except ray.exceptions.RayError:  # It has left again, or is too busy: it is asked once more.
            return True
        self._known |= joined
        return True

    def _say(self, fits: int, own: int, jobs: int, *, grows: bool) -> None:
        """A line where something has changed; at the start, where all is as it was planned, none."""
        before, self._said = self._said, (fits, jobs)
        if self._said == (before or (max(fits, 1), 0)):
            return
        if fits:
            beside = f", beside {jobs} other job(s) on the cluster" if jobs else ""
            print(f"  there is room for {own} trial(s) side by side{beside}", flush=True)
        elif grows:
            needs = f"a trial needs {say(self.shape.total)}, {self.shape.workers} worker(s)"
            print(f"  {needs}, and no node has room for it: waiting for the autoscaler", flush=True)
