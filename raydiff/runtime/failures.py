"""How a trial fails: its coordinator says so, and the driver writes it down.

Only the driver knows whether who says so still has the trial: a coordinator that was cut off fails too, for want of
what it can reach no more, when the trial has long gone on elsewhere.
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


def said(trial: Trial | None, error: Exception) -> dict[str, Any]:
    """The last result of a trial that has failed (None: it had not begun), and its error.txt."""
    reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
    if (raised := cause(error)) is not error:
        reason = str(raised)
    if trial is None:
        return {"finished": True, "failed": reason}
    reason = not_writable(raised, trial.sweep) or reason
    with contextlib.suppress(OSError, ValueError):  # on a full disk, or beside a damaged file
        (trial.folder / "error.txt").write_text("".join(traceback.format_exception(error)))
        readable.put(trial.folder)
    return {"finished": True, "failed": reason, "digest": trial.experiment.digest}


def cause(error: Exception) -> BaseException:
    """What was raised, in this process or in another."""
    return error.cause if isinstance(error, ray.exceptions.RayTaskError) else error


class OutcomeWriter(tune.Callback):
    """In the driver: has here what a bucket has of a trial, and writes the outcome of one that has failed."""

    def __init__(self, sweep: Path) -> None:
        self.sweep = sweep

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """A round is over, or the whole trial."""
        if not (digest := result.get("digest")):
            return
        folder = self.sweep / "trials" / digest
        with contextlib.suppress(OSError):  # a bucket that does not answer: what is there is fetched later
            readable.get(folder)
        if "failed" in result:
            # The disk may be full, or have been so before the trial had its config; a trial without an outcome is run
            # again when the sweep is resumed.
            with contextlib.suppress(OSError, ValueError):
                cut_short(folder, "failed", reason=result["failed"])
