"""Whether there is still room for a trial, after nodes were lost.

Tune waits for ever for a placement group that fits nowhere. A sweep goes on with fewer workers to a trial instead:
their number changes no result.
"""

from __future__ import annotations

import time
from typing import Any

from ray import tune

from raydiff.runtime.cluster import nodes
from raydiff.runtime.slots import Slot, fitting


class Room(tune.Callback, tune.Stopper):
    """Ends Tune's loop once nothing has run for `wait_s` seconds and no node that is left has room for the slot."""

    def __init__(self, shape: Slot, wait_s: float) -> None:
        self.shape, self.wait_s = shape, wait_s
        self.none_left = False
        self._since = time.monotonic()

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """In every turn of Tune's loop."""
        now = time.monotonic()
        if not trials or any(trial.status == "RUNNING" for trial in trials):
            self._since = now
        if now - self._since < self.wait_s:
            return
        self._since = now
        try:
            fitting(self.shape, nodes())
        except ValueError:
            self.none_left = True

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """No trial is stopped for its result here."""
        return False

    def stop_all(self) -> bool:
        """Asked by Tune in every turn of its loop."""
        return self.none_left
