"""Progress of a sweep as plain lines, which read well in a job log: one per event, one of state every few seconds."""

import contextlib
import math
import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray import tune

from raydiff.experiment.config import Experiment
from raydiff.experiment.study import varying
from raydiff.experiment.trial import end_unfinished
from raydiff.runtime import cluster, coordinator, device_faults
from raydiff.runtime.estimate import EVERY_S, Running, format_duration
from raydiff.runtime.plan import Planned, parse_experiment
from raydiff.storage import copies


class SweepProgress(tune.Callback):
    """Prints Tune's events and the state of the sweep, and writes the outcomes of failed trials.

    A coordinator that a network has cut off fails too, long after its trial has gone on elsewhere.
    """

    def __init__(self, plan: Planned) -> None:
        self.plan = plan
        self.total = plan.total
        self._named = varying([plan.base, *plan.trials], plan.space)
        self.running: dict[str, Running] = {}  # by Tune's trial id
        self.ended = set[str]()  # digests of trials that this sweep does not run again
        self.stopped = set[str]()  # digests of trials that a scheduler ended early
        self.failed = 0
        self.interrupted = 0  # the number of the signal
        self.why = ""  # the last trial failed
        self.no_capacity = ""  # why no node can hold a trial any more
        self.deadline = math.inf  # time.monotonic at which the time budget ends
        self.left_out = set[str]()  # ids of nodes that have lost a GPU
        self._rounds: dict[str, int] = {}  # digest -> last committed round
        self._rounds_before: dict[str, int] = {}  # the same, when this fit began
        self._start = self._printed_at = time.monotonic()

    @property
    def done(self) -> int:
        """The number of trials that finished or were stopped."""
        return len(self.ended) - self.failed

    @property
    def ending(self) -> bool:
        """Whether the sweep ends: after an interrupt, after an error that stops it, or out of time."""
        stopped = self.plan.asked.stop_on_error and self.failed > 0
        return stopped or self.interrupted > 0 or time.monotonic() >= self.deadline

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of trials by state, as `gauges` has them."""
        begun = {"running": len(self.running), "done": self.done, "failed": self.failed}
        return {"waiting": self.total - sum(begun.values()), **begun}

    def give_up(self, reason: str) -> None:
        """No node can hold a trial any more."""
        self.no_capacity = reason
        self._print(f"no trial can go on: {reason}")

    def begin_fit(self, trials: Iterable[tuple[Experiment, Mapping[str, Any] | None]]) -> list[Experiment]:
        """Tune starts, perhaps once more. Returns those of these (experiment, outcome) that it is to run."""
        self.running.clear()
        self._rounds_before = dict(self._rounds)
        pending = []
        for experiment, outcome in trials:
            if outcome is not None:
                self.ended.add(experiment.digest)
            elif experiment.digest not in self.ended:
                pending.append(experiment)
        return pending

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._begin(trial)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """A round is over, or the whole trial."""
        this = self._begin(trial)
        node, lost_gpu = result.get(coordinator.GPU_LOST, (None, ""))
        if node and node not in self.left_out:  # Other trials on the node may have reported it.
            self.left_out.add(node)
            self._print(f"  {lost_gpu}: the sweep goes on without this node")
        this.round = result.get("round", -1)
        if "digest" in result:  # Else the trial could not begin.
            self._fetch(this, result.get("failed"))
        self._rounds[this.experiment.digest] = max(this.round, self._rounds.get(this.experiment.digest, -1))
        self._print_faults(this)
        for who, why in result.get("rejected", {}).items():
            self._print(f"  {this.name}, round {this.round + 1}: rejected {who}: {why}")
        if "failed" in result:
            self._fail(trial, result["failed"])
        elif result.get("finished"):  # "done" is also set when a scheduler stops the trial.
            del self.running[trial.trial_id]
            self.ended.add(this.experiment.digest)
            metric = self.plan.metric
            value = result.get(str(metric))
            shown = "" if value is None else f", {replace(metric, split='')} {value:.3f}"
            self._print(f"{self._count()} {this.name}: {result['time/seconds']:.0f} s{shown}")

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """The trial ended; if it had not finished, a scheduler has stopped it."""
        this = self.running.pop(trial.trial_id, None)
        if this and trial.last_result and not self.ending:
            self.stopped.add(this.experiment.digest)
            self.ended.add(this.experiment.digest)
            self._print(f"{self._count()} {this.name}: stopped after round {this.round + 1}")

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """The trial's processes were lost; Tune starts it again, after its last committed round."""
        this = self._begin(trial)
        del self.running[trial.trial_id]
        why = self._lost(this, trial)
        self._print(f"  {this.name}: its processes were lost; it goes on after round {this.round + 1}{why}")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Tune gives the trial up. With a round committed since this fit began, the next fit runs it."""
        this = self._begin(trial)
        if self._rounds.get(this.experiment.digest, -1) > self._rounds_before.get(this.experiment.digest, -1):
            self.on_trial_recover(iteration, trials, trial)
        else:
            self._fail(
                trial, f"its processes were lost more often than runtime.failures allows{self._lost(this, trial)}"
            )

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Print the state every EVERY_S."""
        if time.monotonic() - self._printed_at >= EVERY_S and self.running:
            for this in self.running.values():
                self._print_faults(this)
            running = "; ".join(f"{this.name} ({this.place()})" for this in self.running.values())
            spent = format_duration(time.monotonic() - self._start)
            self._print(f"  {self.done + self.failed}/{self.total} done in {spent} | running: {running}")

    def setup(self, *_: Any, **__: Any) -> None:
        """Take SIGUSR1 back, which every `Tuner.fit` of Ray 2.60 handles itself."""
        with contextlib.suppress(ValueError):  # outside the main thread
            signal.signal(signal.SIGUSR1, signal.getsignal(signal.SIGTERM))

    def interrupt(self, number: int) -> None:
        """Handle a signal: end the sweep in order; a second signal ends it at once."""
        if self.interrupted:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.interrupted = number
        self._print("interrupted: ending the running trials; committed rounds are kept")

    def _begin(self, trial: Any) -> Running:
        if trial.trial_id not in self.running:
            experiment = parse_experiment(trial.config)
            number = self._rounds.get(experiment.digest, -1)
            folder = self.plan.folder / "trials" / experiment.digest
            losses = len(device_faults.read_losses(folder))  # of earlier processes
            self.running[trial.trial_id] = Running(folder, experiment, self._named(experiment), number, losses)
        return self.running[trial.trial_id]

    def _lost(self, this: Running, trial: Any) -> str:
        """Print why a trial's processes were lost.

        Return and record what only the driver knows: a lack of memory, or Ray's last error; the trial may have
        no folder yet.
        """
        recorded = self._print_faults(this)
        if reason := cluster.explain_memory_kill() or ("" if recorded else _last_error(trial)):
            device_faults.record_loss(this.folder, reason)
            this.faults += 1
        return f" ({reason})" if reason else ""

    def _fetch(self, this: Running, failed: str | None) -> None:
        """Fetch the trial's files from a bucket, and write the outcome of a failed one."""
        # From a bucket that does not answer they are fetched after the next round. On a full disk there is no outcome:
        # the trial is run again when the sweep is resumed.
        with contextlib.suppress(OSError, ValueError):
            if failed is None:
                copies.download(this.folder)
            else:
                end_unfinished(this.folder, "failed", reason=failed)

    def _fail(self, trial: Any, reason: str) -> None:
        this = self.running.pop(trial.trial_id)
        self.ended.add(this.experiment.digest)
        self.failed += 1
        self.why = reason
        self._print(f"{self._count()} {this.name}: FAILED, {reason}")

    def _print_faults(self, this: Running) -> int:
        reasons = device_faults.read_losses(this.folder)
        new = reasons[this.faults :]
        for reason in new:
            self._print(f"  {this.name}: {reason}")
        this.faults = len(reasons)
        return len(new)

    def _count(self) -> str:
        return f"[{self.done + self.failed}/{self.total}]"

    def _print(self, text: str) -> None:
        self._printed_at = time.monotonic()
        print(text, flush=True)


def _last_error(trial: Any) -> str:
    """Return the last line of what Ray told Tune about a trial's lost processes; "" if it told nothing."""
    if trial.error_file is None or not (path := Path(trial.error_file)).exists():
        return ""
    return path.read_text(errors="replace").strip().splitlines()[-1].strip()[:300]
