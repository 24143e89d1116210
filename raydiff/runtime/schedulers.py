"""Which trial Tune starts next."""

from __future__ import annotations

from typing import Any

from ray.tune.schedulers import ASHAScheduler, FIFOScheduler


class _NewestFirst(FIFOScheduler):
    """Who takes over the processes of a trial that has ended: one that was cut off, else the newest that waits.

    Tune's own order is the oldest first: that may be one whose processes are just starting on a node that has joined,
    which Tune then ends. Where trials end more often than processes start, such a node would never be used.
    """

    limit: Any = None
    """What has `max_concurrent`, see `ConcurrencyController`; None: there is none."""

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """The trial that Tune is to start next, if one waits. Where none does, and none may be added, no slot is kept
        for it: another job may wait for that."""
        _let_go(tune_controller._tune_controller)
        trials = tune_controller.get_trials()
        waiting = [trial for trial in trials if trial.status == "PENDING"]
        running = sum(trial.status == "RUNNING" for trial in trials)
        if self.limit is not None and not waiting and running >= self.limit.max_concurrent:
            tune_controller._tune_controller._cleanup_cached_actors(force_all=True)  # Ray 2.60 has no public way.
        begun = [trial for trial in waiting if trial.has_reported_at_least_once]
        return (begun or waiting[-1:] or [None])[0]


class InOrder(_NewestFirst):
    """Trials begin in order, and run to their end."""


class Asha(_NewestFirst, ASHAScheduler):
    """Trials begin in order, and are ended early by ASHA."""


def _let_go(controller: Any) -> None:
    """Tune keeps all that it knows of every trial until the sweep ends, some 85 KB: what nobody asks for any more, of
    trials that have ended and left their processes. Ray 2.60 has no public way."""
    ended = {trial for trial in controller._stopped_trials if trial not in controller._trial_to_actor}
    controller._trials[:] = [trial for trial in controller._trials if trial not in ended]
    controller._stopped_trials -= ended
    controller._trials_to_cache -= ended
