"""Who runs a sweep: one driver at a time, whatever node it is on.

    <sweep>/owners/00001.json    the first driver: its process, host and start; touched as long as it lives
    <sweep>/owners/00002.json    the next one: the highest number owns the sweep

A number is taken by an atomic link, and none is given twice: whoever had an earlier one, and was thought dead while it
only stood still, finds the next number there and stops (`Lease`, which workers and coordinators ask too).

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
from typing import Any

from raydiff.storage.atomic_files import LeaseLost, Shared
from raydiff.storage.remote import shared

BEAT_S = 5.0  # between signs of life
SILENCE_S = 90.0  # without one: dead. Far more than a beat, and than NFS shows old times (60 s)


@dataclass(frozen=True)
class Lease:
    """A driver's number. Small, and safe to send to another process."""

    sweep: Path
    number: int
    _asked: list[float] = field(default_factory=list, init=False, repr=False, compare=False)
    """When the storage was asked last."""

    def __call__(self) -> None:
        """Raises LeaseLost where another driver has taken the sweep."""
        there = shared(self.sweep)
        if self._asked and time.monotonic() - self._asked[0] < there.asked_s:
            return
        self._asked[:] = [time.monotonic()]
        if there.written(_name(self.number + 1)) is not None:
            raise LeaseLost(f"{self.sweep.name} is run by another driver now: this one has stopped")


@contextlib.contextmanager
def held(sweep: Path) -> Iterator[Lease]:
    """Own the sweep in this folder, which is made if need be. Raises ValueError, which says who runs it, where somebody
    does. Where nothing was begun, nothing is left.

    A process that is overtaken, because it stood still for long, is ended: what an orderly end would write, outcomes
    and runs of MLflow, is the other driver's now.
    """
    me = _me()
    owner, over = _take(sweep, me), threading.Event()
    beat = threading.Thread(target=_beat, args=(owner, over, _text(me)), name=_thread(owner), daemon=True)
    beat.start()
    try:
        yield owner
    finally:
        over.set()
        beat.join(BEAT_S)
        with contextlib.suppress(OSError):  # on a full disk: it is dead when its process is
            _give_back(owner, me)


def _take(sweep: Path, me: dict[str, Any]) -> Lease:
    there = shared(sweep)
    while True:
        number = max((int(path.stem) for path in (sweep / "owners").glob("*.json")), default=0)
        while there.written(_name(number + 1)) is not None:  # In a bucket, where lists may lag, they are counted up.
            number += 1
        if number:
            _outlive(sweep, there, number)
        if there.first(_name(number + 1), _text(me)):  # else somebody was faster
            return Lease(sweep, number + 1)


def _outlive(sweep: Path, files: Shared, number: int) -> None:
    """Return when this owner has ended. Raises ValueError as soon as it shows that it lives."""
    if (text := files.get(_name(number))) is None:  # it began nothing, and has gone
        return
    try:
        there, beat = json.loads(text), files.written(_name(number))
        who = f"process {there['pid']} on {there['host']} since {there['since']}"
    except (ValueError, KeyError, TypeError):
        says = f"{files.called(_name(number))} is damaged: remove it if no driver of {sweep.name} is running"
        raise ValueError(says) from None
    lives = ValueError(f"{sweep.name} is being run by {who}: wait until it has ended, stop it, or give another --name")
    if there.get("ended") or beat is None:
        return
    if all(there.get(k) == v is not None for k, v in _machine().items()):
        if there.get("started") == _started(there["pid"]) and not _was_ours(there["pid"], sweep, number):
            raise lives
        return
    if (silent := _now(files) - beat) < SILENCE_S:
        says = f"the driver of {sweep.name} on {there['host']} has shown no sign of life for {max(silent, 0):.0f} s"
        print(f"{says}; it counts as dead after {SILENCE_S:.0f} s", flush=True)
    while _now(files) - beat < SILENCE_S:
        _pause()
        if files.written(_name(number)) not in (beat, None):
            raise lives


def _was_ours(pid: int, sweep: Path, number: int) -> bool:
    """Whether this very process owned it, and could not write that it has ended, as on a full disk."""
    name = _thread(Lease(sweep, number))
    return pid == os.getpid() and all(thread.name != name for thread in threading.enumerate())


def _thread(owner: Lease) -> str:
    return f"owner {owner.number} of {owner.sweep}"


def _pause() -> None:
    time.sleep(1.0)


def _now(there: Shared) -> float:
    """The storage's own time."""
    probe = f"owners/.now.{uuid.uuid4().hex[:8]}"
    try:
        there.put(probe, b"")
        at = there.written(probe)
        return time.time() if at is None else at
    finally:
        there.remove([probe])


def _beat(owner: Lease, over: threading.Event, text: bytes) -> None:
    there = shared(owner.sweep)
    while not over.wait(BEAT_S):
        try:
            owner()
            there.touch(_name(owner.number), text)
        except LeaseLost as e:
            if not over.is_set():
                _end_process(str(e))
        except OSError:  # a full or unreachable disk: it may come back
            continue


def _end_process(why: str) -> None:
    print(f"error: {why}", file=sys.stderr, flush=True)
    os._exit(2)


def _give_back(owner: Lease, me: dict[str, Any]) -> None:
    there = shared(owner.sweep)
    if owner.number > 1 or (owner.sweep / "sweep.json").exists():
        there.put(_name(owner.number), _text({**me, "ended": True}))
        return
    there.remove([_name(owner.number)])
    (owner.sweep / "owners").rmdir()
    owner.sweep.rmdir()


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


def _name(number: int) -> str:
    return f"owners/{number:05d}.json"


def _text(me: dict[str, Any]) -> bytes:
    return json.dumps(me, indent=1).encode()
