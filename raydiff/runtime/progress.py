"""What a sweep shows while it runs: a line per event, and a line of state every few seconds. Plain text, so that a job
log reads well."""

from __future__ import annotations

import operator
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.progress_reporter import TrialProgressCallback

from raydiff.experiment.config import Experiment
from raydiff.experiment.study import varying
from raydiff.federated import heartbeat
from raydiff.runtime import device_faults as lost
from raydiff.runtime.eta import EVERY_S, RemainingTime, duration
from raydiff.runtime.plan import Planned, experiment_of
from raydiff.storage.storage import storage_at

ONE_S = 1.0  # `timeout` signals its command, then the group that it is in: signals within a second are one


@dataclass
class Running:
    """A trial in its slot."""

    experiment: Experiment
    name: str
    since: float
    """When it got there."""
    round: int = -1
    """The last that is over."""
    told: int = 0
    """Of its processes that were lost, how many were spoken of."""
    heard: heartbeat.Heard = field(default_factory=heartbeat.Heard)
    """When something was heard of it."""

    def place(self, sweep: Path) -> str:
        """Where it is, in words, and that it may hang."""
        folder = sweep / "trials" / self.experiment.digest
        # Of processes with folders of their own this one hears at the end of each round alone.
        silent = 0.0 if storage_at(sweep).remote else self.heard.silent_s(folder)
        still = f"; nothing heard for {duration(silent)}" if silent > self.experiment.runtime.client_timeout_s else ""
        if (number := self.round + 1) >= self.experiment.method.rounds:
            return f"evaluation{still}"
        beats = [beat for beat in heartbeat.read(folder) if beat.round == number]
        return f"round {number + 1}{f': {beats[0]}' if beats else ''}{still}"


class Progress(TrialProgressCallback, tune.Stopper):
    """Tune's events as lines: what runs, what is done, the best so far, the time left. Ends Tune's loop after an
    interrupt, or an error that is to stop the sweep. In place of Tune's own lines: what writes those keeps every trial.
    """

    def __init__(self, plan: Planned) -> None:
        self.plan, self.total = plan, plan.total
        self._is_better = operator.lt if plan.lower_is_better else operator.gt
        self._named = varying([plan.base, *plan.trials], plan.space)
        self._waiting = {e.digest: e for e in plan.trials}
        self._left = RemainingTime()
        self.running: dict[str, Running] = {}  # By Tune's trial id.
        self._furthest: dict[str, int] = {}  # Tune's trial id -> its latest round ever
        self.stopped: set[str] = set()  # digests of trials that a scheduler ended early
        self.done, self.failed = 0, 0
        self.best: tuple[float, str] | None = None
        self.interrupted = self.ending = False
        self.without_room = False  # No node that is left has room for a trial.
        self.left_out = set[str]()  # Ids of nodes that have lost a GPU.
        self._asked = 0.0  # When the interrupt came.
        self._slots: list[tuple[float, int]] = []  # (since when, trials that there is room for side by side)
        self._start = self._spoke = time.monotonic()
        self._began: float | None = None  # When the first trial began.
        self._working: list[float] = []  # Seconds of each trial that has ended.
        self._ends: list[float] = []  # When each trial ended.

    def have_ended(self, trials: Sequence[tuple[Experiment, Mapping[str, Any]]]) -> None:
        """Tune begins, perhaps again: these have their outcomes already, and nothing runs."""
        self.running.clear()
        self.done = len(trials) - self.failed
        for experiment, outcome in trials:
            if self._waiting.pop(experiment.digest, None) and outcome["outcome"] == "finished":
                self._left.add(experiment, outcome["final"]["time/seconds"])

    def leave_out(self, node: str, why: str) -> bool:
        """A node has lost a GPU: nothing is placed there any more. Whether this is news."""
        if node in self.left_out:
            return False
        self.left_out.add(node)
        self._say(f"  {why}: the sweep goes on without this node")
        return True

    def have(self, slots: int) -> None:
        """From now on there is room for so many trials side by side."""
        if not self._slots or self._slots[-1][1] != slots:
            self._slots.append((time.monotonic(), slots))

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial has its slot."""
        self._begin(trial)

    def _begin(self, trial: Any) -> Running:
        if (known := self.running.get(trial.trial_id)) is not None:
            return known
        experiment = experiment_of(trial.config)
        experiment = self._waiting.pop(experiment.digest, experiment)  # The plan's own, not one more of each trial.
        told = len(lost.words(self.plan.folder / "trials" / experiment.digest))  # by an earlier process
        self.running[trial.trial_id] = Running(experiment, self._named(experiment), time.monotonic(), told=told)
        return self.running[trial.trial_id]

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """A round is over, or the whole trial."""
        this = self._begin(trial)
        this.round = result.get("round", -1)
        if self._began is None:
            self._began = time.monotonic() - result.get("time/seconds", 0.0)
        if result.get("round", -1) > self._furthest.get(trial.trial_id, -1):
            self._furthest[trial.trial_id] = result["round"]
            trial.run_metadata.num_failures = 0  # `runtime.failures` counts losses that have no round between them.
        self._say_lost(this)
        for who, why in result.get("rejected", {}).items():
            self._say(f"  {this.name}, round {result['round'] + 1}: rejected {who}: {why}")
        if result.get("finished") or "failed" in result:  # Tune sets "done" also when a scheduler stops a trial.
            self._ended(self.running.pop(trial.trial_id), result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """The trial has left its slot; if it was still running, a scheduler or the clock has stopped it."""
        if this := self.running.pop(trial.trial_id, None):
            digest = (trial.last_result or {}).get("digest")
            if digest and not self.ending:
                self.stopped.add(digest)
                self.done += 1
                self._say(f"[{self.done + self.failed}/{self.total}] {this.name}: stopped after round {this.round + 1}")

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """The trial's processes were lost; it begins again after its last commit."""
        this = self._begin(trial)
        del self.running[trial.trial_id]
        self._say_lost(this)
        self._say(f"  {this.name}: its processes were lost; it goes on after round {this.round + 1}")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """The trial's processes were lost for good."""
        this = self._begin(trial)
        del self.running[trial.trial_id]
        self._say_lost(this)
        self._fail(this.name, "its processes were lost more often than runtime.failures allows")

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Say where things are, now and then, and what was lost meanwhile."""
        if time.monotonic() - self._spoke >= EVERY_S and self.running:
            for this in self.running.values():
                self._say_lost(this)
            self._say("  " + self._state())

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """No trial is stopped for its result here."""
        return False

    def stop_all(self) -> bool:
        """Asked by Tune in every turn of its loop."""
        return self.ending

    def split(self) -> dict[str, float] | None:
        """Where the slots' seconds went since the first trial began; None where not every trial was run here, whole.

        `slots`: how many there were, on average; `working`: rounds, training of the first models, sampling, evaluation;
        `waiting`: slots that had no trial left while others still ran; `outside`: the rest, from one trial's end to the
        next one's beginning.
        """
        if self._began is None or len(self._ends) < self.total:
            return None
        began, end, working = self._began, max(self._ends), sum(self._working)
        until = [*(since for since, _ in self._slots[1:]), end]
        whole = sum(
            slots * max(0.0, min(to, end) - max(since, began))
            for (since, slots), to in zip(self._slots, until, strict=True)
        )
        waiting = sum(end - last for last in sorted(self._ends)[-self._slots[-1][1] :])
        return {
            "slots": whole / (end - began),
            "slots_s": whole,
            "working": working,
            "waiting": waiting,
            "outside": whole - working - waiting,
        }

    def interrupt(self, number: int, *_: Any) -> None:
        """Signal handler: end the sweep in order; a second signal, later than ONE_S, ends it at once."""
        if not self.interrupted:
            self.interrupted = self.ending = True
            self._asked = time.monotonic()
            self._say("interrupted: ending the running trials; what they have committed is kept")
        elif time.monotonic() - self._asked > ONE_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _say_lost(self, this: Running) -> None:
        words = lost.words(self.plan.folder / "trials" / this.experiment.digest)
        for says in words[this.told :]:
            self._say(f"  {this.name}: {says}")
        this.told = len(words)

    def _ended(self, this: Running, result: dict[str, Any]) -> None:
        if "failed" in result:
            self._fail(this.name, result["failed"])
            return
        self.done += 1
        self._working.append(result["time/seconds"])
        self._ends.append(time.monotonic())
        self._left.add(this.experiment, result["time/seconds"])
        value, metric = result.get(self.plan.metric), self.plan.metric.removeprefix("eval/")
        if value is not None and (self.best is None or self._is_better(value, self.best[0])):
            self.best = (value, this.name)
        shown = f", {metric} {value:.3f}" if value is not None else ""
        self._say(f"[{self.done + self.failed}/{self.total}] {this.name}: {result['time/seconds']:.0f} s{shown}")

    def _fail(self, name: str, reason: str) -> None:
        self.failed += 1
        self.ending = self.ending or self.plan.asked.stop_on_error
        self._say(f"[{self.done + self.failed}/{self.total}] {name}: FAILED, {reason}")

    def _state(self) -> str:
        ended, now = self.done + self.failed, time.monotonic()
        running = "; ".join(f"{this.name} ({this.place(self.plan.folder)})" for this in self.running.values())
        suggested = self.total - ended - len(self.running) - len(self._waiting)
        seconds = self._left.seconds(
            [*self._waiting.values(), *[self.plan.base] * suggested],
            [(this.experiment, now - this.since) for this in self.running.values()],
            slots=len(self.running),  # nodes come and go, and other jobs share them
        )
        left = f", about {duration(seconds)} left" if seconds is not None else ""
        best = f", best {self.best[0]:.3f} ({self.best[1]})" if self.best else ""
        return f"{ended}/{self.total} done in {duration(now - self._start)}{left}{best} | running: {running}"

    def _say(self, text: str) -> None:
        self._spoke = time.monotonic()
        print(text, flush=True)
