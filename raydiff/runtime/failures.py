"""Failures of trials: the coordinator reports one as its last result, and the driver writes the outcome.

Only the driver knows whether that coordinator still has the trial: one that was cut off by a network fails too, when
the trial has long gone on elsewhere.
"""

from __future__ import annotations

import contextlib
import traceback
from pathlib import Path
from typing import Any

import ray
from ray import tune

from raydiff.experiment.trial import Trial, cut_short
from raydiff.runtime.sweep_folder import not_writable
from raydiff.storage import artifact_sync as readable


def failure_result(trial: Trial | None, error: Exception) -> dict[str, Any]:
    """The last result of a failed trial (None: one that had not begun); writes its error.txt."""
    raised = cause(error)
    reason = str(raised).strip().splitlines()[-1] if str(raised).strip() else type(raised).__name__
    if trial is None:
        return {"finished": True, "failed": reason}
    with contextlib.suppress(OSError, ValueError):  # on a full disk, or beside a damaged file
        (trial.folder / "error.txt").write_text("".join(traceback.format_exception(error)))
        readable.put(trial.folder)
    reason = not_writable(raised, trial.sweep) or reason
    return {"finished": True, "failed": reason, "digest": trial.experiment.digest}


def cause(error: Exception) -> BaseException:
    """The error that was raised, in this process or in another."""
    return error.cause if isinstance(error, ray.exceptions.RayTaskError) else error


class OutcomeWriter(tune.Callback):
    """In the driver: fetches a trial's files from a bucket after each round, and writes the outcome of a failed one."""

    def __init__(self, sweep: Path) -> None:
        self.sweep = sweep

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """A round is over, or the whole trial."""
        if not (digest := result.get("digest")):
            return
        folder = self.sweep / "trials" / digest
        with contextlib.suppress(OSError):  # a bucket that does not answer: fetched after the next round
            readable.get(folder)
        if "failed" in result:
            # On a full disk there is no outcome: the trial is run again when the sweep is resumed.
            with contextlib.suppress(OSError, ValueError):
                cut_short(folder, "failed", reason=result["failed"])
