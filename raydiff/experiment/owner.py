"""Who runs a sweep: one driver at a time, whatever node it is on.

    <sweep>/owners/00001.json    the first driver: its process, host and start; touched as long as it lives
    <sweep>/owners/00002.json    the next one: the highest number owns the sweep

A number is taken by an atomic link, and none is given twice: whoever had an earlier one, and was thought dead while it
only stood still, finds the next number there and stops (`Owner`, which workers and coordinators ask too).

An owner of this machine is dead when its process is. Of any other it is known only by its silence: by the file's time,
which the storage itself keeps, so that clocks need not agree. In a bucket it is the same, with objects in the place of
files: a number is taken by putting it first.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from raydiff.federated.bucket import Bucket, bucket_above
from raydiff.federated.files import Overtaken, write_text

BEAT_S = 5.0  # between signs of life
SILENCE_S = 90.0  # without one: dead. Far more than a beat, and than NFS shows old times (60 s)
ASKED_S = 5.0  # between two questions of a process to a bucket, which costs money for each


@dataclass(frozen=True)
class Owner:
    """A driver's number. Small, and safe to send to another process."""

    sweep: Path
    number: int
    _asked: list[float] = field(default_factory=list, init=False, repr=False, compare=False)
    """When a bucket was asked last."""

    def __call__(self) -> None:
        """Raises Overtaken where another driver has taken the sweep."""
        there = _numbers(self.sweep)
        if isinstance(there, _Objects):
            if self._asked and time.monotonic() - self._asked[0] < ASKED_S:
                return
            self._asked[:] = [time.monotonic()]
        if there.look(self.number + 1) is not None:
            raise Overtaken(f"{self.sweep.name} is run by another driver now: this one has stopped")


@contextlib.contextmanager
def held(sweep: Path) -> Iterator[Owner]:
    """Own the sweep in this folder, which is made if need be. Raises ValueError, which says who runs it, where somebody
    does. Where nothing was begun, nothing is left.

    A process that is overtaken, because it stood still for long, is ended: what an orderly end would write, outcomes
    and runs of MLflow, is the other driver's now.
    """
    me = _me()
    owner, over = _take(sweep, me), threading.Event()
    beat = threading.Thread(
        target=_beat, args=(owner, over, json.dumps(me, indent=1)), name=_thread(owner), daemon=True
    )
    beat.start()
    try:
        yield owner
    finally:
        over.set()
        beat.join(BEAT_S)
        with contextlib.suppress(OSError):  # on a full disk: it is dead when its process is
            _give_back(owner, me)


class _Numbers(Protocol):
    """The numbers of a sweep's drivers."""

    def last(self) -> int:
        """The highest; 0: there is none."""

    def look(self, number: int) -> float | None:
        """When its owner gave a sign of life, by the storage's clock; None: nobody has this number."""

    def read(self, number: int) -> str:
        """What it says. Raises FileNotFoundError where it has gone."""

    def take(self, number: int, text: str) -> bool:
        """Write it unless it is there; False where it is."""

    def write(self, number: int, text: str) -> None:
        """Write it anew."""

    def touch(self, number: int, text: str) -> None:
        """Give a sign of life; the text is the one that is there."""

    def remove(self, number: int) -> None:
        """Leave nothing."""

    def now(self) -> float:
        """The storage's own time."""

    def called(self, number: int) -> str:
        """Where it is, in words."""


@dataclass(frozen=True)
class _Files:
    """In a folder that all nodes share."""

    sweep: Path

    def last(self) -> int:
        return max((int(path.stem) for path in (self.sweep / "owners").glob("*.json")), default=0)

    def look(self, number: int) -> float | None:
        try:
            return _file(self.sweep, number).stat().st_mtime
        except FileNotFoundError:
            return None

    def read(self, number: int) -> str:
        return _file(self.sweep, number).read_text()

    def take(self, number: int, text: str) -> bool:
        try:
            write_text(_file(self.sweep, number), text, first=True)
        except FileExistsError:
            return False
        return True

    def write(self, number: int, text: str) -> None:
        write_text(_file(self.sweep, number), text)

    def touch(self, number: int, text: str) -> None:
        os.utime(_file(self.sweep, number))

    def remove(self, number: int) -> None:
        path = _file(self.sweep, number)
        path.unlink(missing_ok=True)
        for folder in (path.parent, self.sweep):
            folder.rmdir()

    def now(self) -> float:
        return _now(self.sweep / "owners")

    def called(self, number: int) -> str:
        return str(_file(self.sweep, number))


@dataclass(frozen=True)
class _Objects:
    """In a bucket."""

    bucket: Bucket
    sweep: str

    def last(self) -> int:
        number = 0
        while self.look(number + 1) is not None:
            number += 1
        return number

    def look(self, number: int) -> float | None:
        at = self.bucket.written(self._name(number))
        return None if at is None else at.timestamp()

    def read(self, number: int) -> str:
        if (data := self.bucket.get(self._name(number))) is None:
            raise FileNotFoundError(self._name(number))
        return data.decode()

    def take(self, number: int, text: str) -> bool:
        return self.bucket.first(self._name(number), text.encode())

    def write(self, number: int, text: str) -> None:
        self.bucket.put(self._name(number), text.encode())

    def touch(self, number: int, text: str) -> None:
        self.write(number, text)

    def remove(self, number: int) -> None:
        self.bucket.remove([self._name(number)])

    def now(self) -> float:
        name = f"sweeps/{self.sweep}/owners/.now.{uuid.uuid4().hex[:8]}"
        self.bucket.put(name, b"")
        at = self.bucket.written(name)
        self.bucket.remove([name])
        return time.time() if at is None else at.timestamp()

    def called(self, number: int) -> str:
        return f"{self.bucket.name}/{self._name(number)}"

    def _name(self, number: int) -> str:
        return f"sweeps/{self.sweep}/owners/{number:05d}.json"


def _numbers(sweep: Path) -> _Numbers:
    bucket = bucket_above(sweep, 1)
    return _Files(sweep) if bucket is None else _Objects(bucket, sweep.name)


def _take(sweep: Path, me: dict[str, Any]) -> Owner:
    there = _numbers(sweep)
    while True:
        number = there.last()
        if number:
            _outlive(sweep, there, number)
        if there.take(number + 1, json.dumps(me, indent=1)):  # else somebody was faster
            return Owner(sweep, number + 1)


def _outlive(sweep: Path, numbers: _Numbers, number: int) -> None:
    """Return when this owner has ended. Raises ValueError as soon as it shows that it lives."""
    try:
        there = json.loads(numbers.read(number))
        beat = numbers.look(number)
        who = f"process {there['pid']} on {there['host']} since {there['since']}"
    except FileNotFoundError:  # it began nothing, and has gone
        return
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{numbers.called(number)} is damaged: remove it if no driver of {sweep.name} is running"
        ) from None
    lives = ValueError(f"{sweep.name} is being run by {who}: wait until it has ended, stop it, or give another --name")
    if there.get("ended") or beat is None:
        return
    if all(there.get(k) == v is not None for k, v in _machine().items()):
        if there.get("started") == _started(there["pid"]) and not _was_ours(there["pid"], sweep, number):
            raise lives
        return
    said = False
    while (silent := numbers.now() - beat) < SILENCE_S:
        if not said:
            says = f"the driver of {sweep.name} on {there['host']} has shown no sign of life for {max(silent, 0):.0f} s"
            print(f"{says}; it counts as dead after {SILENCE_S:.0f} s", flush=True)
            said = True
        _pause()
        if numbers.look(number) not in (beat, None):
            raise lives


def _was_ours(pid: int, sweep: Path, number: int) -> bool:
    """Whether this very process owned it, and could not write that it has ended, as on a full disk."""
    name = _thread(Owner(sweep, number))
    return pid == os.getpid() and all(thread.name != name for thread in threading.enumerate())


def _thread(owner: Owner) -> str:
    return f"owner {owner.number} of {owner.sweep}"


def _pause() -> None:
    time.sleep(1.0)


def _now(folder: Path) -> float:
    """The storage's own time."""
    probe = folder / f".now.{uuid.uuid4().hex[:8]}"
    try:
        probe.touch()
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _beat(owner: Owner, over: threading.Event, text: str) -> None:
    there = _numbers(owner.sweep)
    while not over.wait(BEAT_S):
        try:
            owner()
            there.touch(owner.number, text)
        except Overtaken as e:
            if not over.is_set():
                _end_process(str(e))
        except OSError:  # a full or unreachable disk: it may come back
            continue


def _end_process(why: str) -> None:
    print(f"error: {why}", file=sys.stderr, flush=True)
    os._exit(2)


def _give_back(owner: Owner, me: dict[str, Any]) -> None:
    there = _numbers(owner.sweep)
    if owner.number > 1 or (owner.sweep / "sweep.json").exists():
        there.write(owner.number, json.dumps({**me, "ended": True}, indent=1))
        return
    there.remove(owner.number)


def _me() -> dict[str, Any]:
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    mine = {"pid": os.getpid(), "started": _started(os.getpid()), "since": since, "ended": False}
    return {**_machine(), **mine}


def _machine() -> dict[str, str | None]:
    """What tells machines apart on which process numbers mean something: the boot and, for containers, their own
    numbering. None where the system does not say: then only silence counts."""
    found: dict[str, str | None] = {"host": platform.node(), "boot": None, "numbering": None}
    with contextlib.suppress(OSError):
        found["boot"] = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        found["numbering"] = os.readlink("/proc/self/ns/pid")
    return found


def _started(pid: int) -> str | None:
    """When a process was started, in ticks since the boot: a number that is given again is told apart. None: it is
    gone."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else fields[18]


def _file(sweep: Path, number: int) -> Path:
    return sweep / "owners" / f"{number:05d}.json"
