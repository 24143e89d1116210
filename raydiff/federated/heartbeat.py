"""Heartbeats from within a long training: which step it is at, in `beats/<process>.json` in the trial's folder.

Beside it `<process>.alive`, which is empty, is written anew during work without steps, such as sampling. A training
shorter than EVERY_S writes neither. Where the storage is a bucket, both are put there too, less often.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from raydiff.models.ddpm import ON_PROGRESS
from raydiff.models.training import ON_STEP
from raydiff.storage.atomic_files import write_text
from raydiff.storage.local import LocalFolder
from raydiff.storage.storage import storage_at

EVERY_S = 2.0
FAR_S = 30.0  # between two puts to an object store, which bills each
LATEST = 50  # steps that the loss is a mean of
FOLDER = "beats"
STEPS, ALONE = ".json", ".alive"


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """Where a process is in its part of a round."""

    who: str
    """A client, several in lock-step, or the server."""
    round: int
    """Counted from 0."""
    turn: int
    """How many of the process's participants finished in this round before."""
    turns: int
    """The number of its participants."""
    step: int
    """Steps that this training has done."""
    steps: int
    """Steps that it takes in all."""
    loss: float | None
    """Mean over the LATEST steps; None without instruments."""
    began: float
    """When the process began its part of the round, in Unix seconds."""
    at: float
    """When this was written, in Unix seconds."""

    @property
    def share(self) -> float:
        """The fraction of the process's part of the round that is done, if all its trainings take equally long."""
        return (self.turn + self.step / self.steps) / self.turns

    @property
    def left_s(self) -> float:
        """Seconds until its part of the round is done, at the pace so far."""
        return (self.at - self.began) * (1 / self.share - 1)

    def __str__(self) -> str:
        turn = f" ({self.turn + 1} of {self.turns})" if self.turns > 1 else ""
        loss = "" if self.loss is None else f", loss {self.loss:.4f}"
        return f"{self.who}{turn}, step {self.step:,} of {self.steps:,}{loss}"


def read(trial: Path) -> list[Heartbeat]:
    """The latest heartbeat of each process that trains for the trial in this folder, the slowest first."""
    beats = []
    for path in (trial / FOLDER).glob(f"*{STEPS}"):
        with contextlib.suppress(OSError, ValueError, TypeError):  # A file that cannot be read is skipped.
            beats.append(Heartbeat(**json.loads(path.read_text())))
    return sorted(beats, key=lambda beat: beat.share)


def process() -> str:
    """This process's name in heartbeats, unique across nodes."""
    return f"{platform.node()}-{os.getpid()}"


def sign(trial: Path, process: str) -> object:
    """A value that changes whenever that process has written a heartbeat; None if the storage fails."""
    with contextlib.suppress(OSError):
        storage = storage_at(trial)
        return [storage.modified(f"{FOLDER}/{process}{kind}") for kind in (STEPS, ALONE)]
    return None


class Heard:
    """Measures how long a trial has shown no progress: no heartbeat of a process, and no round."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since, self._last = clock, clock(), object()

    def silent_s(self, trial: Path) -> float:
        """Seconds since this was first asked after the last sign of progress; to be asked regularly."""
        folder = LocalFolder(trial)
        names = ["metrics.jsonl", *(f"{FOLDER}/{name}" for name in folder.list_names(FOLDER))]
        last = [(name, folder.modified(name)) for name in names]
        if last != self._last:
            self._last, self._since = last, self._clock()
        return self._clock() - self._since


def forget(trial: Path) -> None:
    """Remove the heartbeats of processes that were killed."""
    for path in (trial / FOLDER).glob("*"):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def beating(
    trial: Path | None, who: str, number: int, *, turn: int = 0, turns: int = 1, began: float, loss: bool
) -> Iterator[None]:
    """Within, trainings and work without steps write heartbeats into their trial's folder (None: nowhere)."""
    start, last = time.monotonic(), dict[str, float]()  # When each file was written last,
    far = dict[str, float]()  # and put to an object store.

    def write(kind: str, content: Callable[[], str]) -> None:
        """Write the file of this kind, if it is time."""
        name, now = f"{FOLDER}/{process()}{kind}", time.monotonic()
        if trial is None or now - last.get(name, start) < EVERY_S:
            return
        last[name], text = now, content()
        with contextlib.suppress(OSError):  # On a full disk the training goes on.
            write_text(trial / name, text)
            if now - far.get(name, -FAR_S) >= FAR_S:
                far[name] = now
                if (storage := storage_at(trial)).remote:
                    storage.put(name, text.encode())

    def on_step(step: int, steps: int, losses: Tensor) -> None:
        def content() -> str:
            mean, at = float(losses[max(0, step - LATEST) : step].mean()) if loss else None, time.time()
            where = {"who": who, "round": number, "turn": turn, "turns": turns, "step": step, "steps": steps}
            return json.dumps({**where, "loss": mean, "began": began, "at": at})

        write(STEPS, content)

    tokens = ON_STEP.set(on_step), ON_PROGRESS.set(lambda: write(ALONE, str))
    try:
        yield
    finally:
        ON_STEP.reset(tokens[0])
        ON_PROGRESS.reset(tokens[1])
        if trial is not None and far:
            LocalFolder(trial).delete(far)
            storage_at(trial).delete(far)
