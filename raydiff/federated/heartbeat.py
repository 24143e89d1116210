"""Signs of life from within a long training: a process keeps one small file, `beats/<process>.json` in its trial's
folder, that says which step it is at. Whoever shows progress reads them; a training shorter than EVERY_S has none.
Beside it `<process>.alive`, which is empty, is written anew while it computes what takes no steps, such as samples.
Where the storage is a bucket, both are put there too, less often.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torch import Tensor

from raydiff.models.ddpm import ON_PROGRESS
from raydiff.models.training import ON_STEP
from raydiff.storage.local import LocalFolder
from raydiff.storage.storage import storage_at

EVERY_S = 2.0
FAR_S = 30.0  # between two that are carried to where others see them, which may cost money
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
    """How many of the process's participants had their turn in this round before."""
    turns: int
    """How many have one."""
    step: int
    """Steps that this training has done."""
    steps: int
    """Of how many."""
    loss: float | None
    """Mean over the LATEST steps; None where instruments are off."""
    began: float
    """When the process began with its part of the round, in Unix seconds."""
    at: float
    """When this was written."""

    @property
    def share(self) -> float:
        """How much of the process's part of the round is done, if every training takes as long as this one."""
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
    """The latest of each process that trains for the trial in this folder, the slowest first."""
    found = []
    for path in (trial / FOLDER).glob(f"*{STEPS}"):
        with contextlib.suppress(OSError, ValueError, TypeError):  # It is no record: an odd one is no error.
            found.append(Heartbeat(**json.loads(path.read_text())))
    return sorted(found, key=lambda beat: beat.share)


def process() -> str:
    """What this process is called here: processes of several nodes may have one number."""
    return _process(os.getpid())


def sign(trial: Path, process: str) -> object:
    """Another one whenever that process has told that it goes on."""
    storage = storage_at(trial)
    with contextlib.suppress(OSError):
        return [storage.modified(f"{FOLDER}/{process}{kind}") for kind in (STEPS, ALONE)]
    return None


class Heard:
    """How long nothing has been heard of a trial, by whoever shows its progress: no beat of a process, no round."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since, self._last = clock, clock(), object()

    def silent_s(self, trial: Path) -> float:
        """Seconds since something was new when this was asked; to be asked now and then."""
        last = [_written(trial / "metrics.jsonl"), *sorted((p.name, _written(p)) for p in (trial / FOLDER).glob("*"))]
        if last != self._last:
            self._last, self._since = last, self._clock()
        return self._clock() - self._since


def forget(trial: Path) -> None:
    """Remove what processes that were killed have left."""
    for path in (trial / FOLDER).glob("*"):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def beating(
    trial: Path | None, who: str, number: int, *, turn: int = 0, turns: int = 1, began: float, loss: bool
) -> Iterator[None]:
    """Within, trainings tell how far they are, and what is computed without steps that it goes on, in the folder of
    their trial (None: nowhere)."""
    start, last = time.monotonic(), dict[str, float]()  # When each file was written last,
    far = dict[str, float]()  # and carried to where others see it.

    def tell(kind: str, says: Callable[[], str]) -> None:
        """Write the file of this kind, if it is time."""
        name, now = f"{FOLDER}/{process()}{kind}", time.monotonic()
        if trial is None or now - last.get(name, start) < EVERY_S:
            return
        last[name], text = now, says()
        _write(trial / name, text)
        if now - far.get(name, -FAR_S) >= FAR_S:
            far[name] = now
            with contextlib.suppress(OSError):
                if (storage := storage_at(trial)).remote:
                    storage.put(name, text.encode())

    def watch(step: int, steps: int, losses: Tensor) -> None:
        def says() -> str:
            mean, at = float(losses[max(0, step - LATEST) : step].mean()) if loss else None, time.time()
            beat = Heartbeat(
                who=who, round=number, turn=turn, turns=turns, step=step, steps=steps, loss=mean, began=began, at=at
            )
            return json.dumps(dataclasses.asdict(beat))

        tell(STEPS, says)

    tokens = ON_STEP.set(watch), ON_PROGRESS.set(lambda: tell(ALONE, str))
    try:
        yield
    finally:
        ON_STEP.reset(tokens[0])
        ON_PROGRESS.reset(tokens[1])
        if trial is not None:
            LocalFolder(trial).delete(far)
            storage_at(trial).delete(far)


@cache
def _process(_: int) -> str:
    return uuid.uuid4().hex[:8]


def _written(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _write(path: Path, text: str) -> None:
    with contextlib.suppress(OSError):  # On a full disk the training goes on: what it must keep, it keeps elsewhere.
        path.parent.mkdir(exist_ok=True)
        temporary = path.with_suffix(".part")
        temporary.write_text(text)
        temporary.replace(path)
