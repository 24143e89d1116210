"""Heartbeats of a long training: the step it is at, in `beats/<process>.json` of the trial's folder.

Work without steps, such as sampling, rewrites the empty `<process>.alive` beside it. A training shorter than EVERY_S
writes neither. An object store gets both less often.
"""

import contextlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from raydiff.formats.json_files import dumps
from raydiff.models.compute import ON_PROGRESS
from raydiff.models.training import ON_STEP
from raydiff.storage.storage import storage_at

EVERY_S = 2.0
LATEST = 50  # steps that the loss is a mean of
FOLDER = "beats"
STEPS = ".json"
ALONE = ".alive"


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """Where a process is in its part of a round."""

    who: str  # a client, several in lock-step, or the server
    round: int  # from 0
    turn: int  # participants of the process that finished in this round before
    turns: int  # all its participants
    step: int  # steps that this training has done
    steps: int  # steps that it takes in all
    loss: float | None  # mean over the LATEST steps; None without instruments
    began: float  # Unix seconds at which the process began its part of the round
    at: float  # Unix seconds at which this was written

    @property
    def fraction_done(self) -> float:
        """Fraction of the process's part of the round that is done, if all its trainings take equally long."""
        return (self.turn + self.step / self.steps) / self.turns

    @property
    def left_s(self) -> float:
        """Seconds until that part is done, at the pace so far. The clock may have been set back."""
        return max(0.0, self.at - self.began) * (1 / self.fraction_done - 1)

    def __str__(self) -> str:
        turn = f" ({self.turn + 1} of {self.turns})" if self.turns > 1 else ""
        loss = "" if self.loss is None else f", loss {self.loss:.4f}"
        return f"{self.who}{turn}, step {self.step:,} of {self.steps:,}{loss}"


def read_heartbeats(trial: Path) -> list[Heartbeat]:
    """Return the latest heartbeat of each process that trains for this trial, the slowest first."""
    storage = storage_at(trial)
    beats = list[Heartbeat]()
    for name in storage.list_names(FOLDER):
        if name.endswith(STEPS):
            with contextlib.suppress(OSError, ValueError, TypeError):  # A file that cannot be read is skipped.
                fields = json.loads(storage.get(f"{FOLDER}/{name}") or b"")
                loss = None if fields["loss"] is None else float(fields["loss"])
                beats.append(Heartbeat(**{**fields, "loss": loss}))
    return sorted(beats, key=lambda beat: beat.fraction_done)


def process_name() -> str:
    """Return this process's name in heartbeats, unique across nodes."""
    return f"{platform.node()}-{os.getpid()}"


def last_sign(trial: Path, process: str) -> object:
    """Return a value that changes whenever that process writes a heartbeat; None if the storage fails."""
    with contextlib.suppress(OSError):
        storage = storage_at(trial)
        return [storage.modified(f"{FOLDER}/{process}{kind}") for kind in (STEPS, ALONE)]
    return None


class SilenceTimer:
    """Measures how long a trial has shown neither a heartbeat nor a round."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._last = object()

    def silent_s(self, trial: Path) -> float:
        """Return the seconds since the first call after the last sign of progress; to be called regularly."""
        storage = storage_at(trial)
        names = ["metrics.jsonl", *(f"{FOLDER}/{name}" for name in storage.list_names(FOLDER))]
        last = [(name, storage.modified(name)) for name in names]
        if last != self._last:
            self._last, self._since = last, self._clock()
        return self._clock() - self._since


def delete_heartbeats(trial: Path) -> None:
    """Remove the heartbeats of processes that were killed."""
    storage = storage_at(trial)
    storage.delete(f"{FOLDER}/{name}" for name in storage.list_names(FOLDER))


@contextlib.contextmanager
def beating(
    trial: Path | None, who: str, round_number: int, *, turn: int = 0, turns: int = 1, began: float, loss: bool
) -> Iterator[None]:
    """Within it, trainings and work without steps write heartbeats into their trial's folder (None: nowhere)."""
    # when each was written
    start = time.monotonic()
    last = dict[str, float]()
    storage = None if trial is None else storage_at(trial)

    def write(kind: str, content: Callable[[], str]) -> None:
        name = f"{FOLDER}/{process_name()}{kind}"
        now = time.monotonic()
        if storage is None or now - last.get(name, start) < max(EVERY_S, storage.pause_s):
            return
        last[name] = now
        with contextlib.suppress(OSError):  # On a full disk the training goes on.
            storage.put(name, content().encode())

    def on_step(step: int, steps: int, losses: Tensor) -> None:
        def content() -> str:
            mean = float(losses[max(0, step - LATEST) : step].mean()) if loss else None
            at = time.time()
            where = {"who": who, "round": round_number, "turn": turn, "turns": turns, "step": step, "steps": steps}
            return dumps({**where, "loss": mean, "began": began, "at": at})

        write(STEPS, content)

    tokens = ON_STEP.set(on_step), ON_PROGRESS.set(lambda: write(ALONE, str))
    try:
        yield
    finally:
        ON_STEP.reset(tokens[0])
        ON_PROGRESS.reset(tokens[1])
        if storage is not None:
            storage.delete(last)
