"""The lease of a sweep: one driver runs it at a time, whatever node it is on.

    <sweep>/owners/00001.json    the first driver: its process, host and start; touched as long as it lives
    <sweep>/owners/00002.json    the next one: the highest number has the lease

A number is taken by an atomic `put_if_absent`, once. A driver that only stood still and was thought dead finds the next
number and stops, as do its workers. A driver of this machine is dead when its process is; any other when its file was
not touched for SILENCE_S by the storage's own clock, so that clocks need not agree.
"""

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

from raydiff.formats.json_files import dumps
from raydiff.storage.atomic_files import LeaseLost
from raydiff.storage.file_names import NAMES
from raydiff.storage.storage import Storage, storage_at

BEAT_S = 5.0  # between touches
SILENCE_S = 90.0  # without a touch: dead. Far more than a beat, and than NFS shows old times (60 s)


@dataclass(frozen=True)
class Lease:
    """A driver's number. Small, and safe to send to another process."""

    sweep: Path
    number: int
    _asked: list[float] = field(default_factory=list, init=False, repr=False, compare=False)  # last, time.monotonic

    def __call__(self) -> None:
        """Raises LeaseLost if another driver has taken the sweep."""
        storage = storage_at(self.sweep)
        if self._asked and time.monotonic() - self._asked[0] < storage.pause_s:
            return
        self._asked[:] = [time.monotonic()]
        if storage.modified(_name(self.number + 1)) is not None:
            raise LeaseLost(f"{self.sweep.name} is run by another driver now: this one has stopped")


@contextlib.contextmanager
def hold_lease(sweep: Path) -> Iterator[Lease]:
    """Hold the lease of the sweep in this folder, which is created if needed, and removed if nothing was begun.

    A process that loses the lease, because it was suspended for long, is ended at once: an orderly end would overwrite
    the other driver's files. Raises ValueError, which names the driver, if another one runs the sweep.
    """
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    me = {**machine(), "pid": os.getpid(), "started": process_start(os.getpid()), "since": since, "ended": False}
    storage = storage_at(sweep)
    over = threading.Event()
    lease = _take(sweep, storage, me)
    name = storage.describe(_name(lease.number))
    beat = threading.Thread(target=_beat, args=(lease, storage, over), name=name, daemon=True)
    beat.start()
    try:
        yield lease
    finally:
        over.set()
        beat.join(BEAT_S)
        with contextlib.suppress(OSError):  # On a full disk the lease ends with the process.
            _release(lease, storage, {**me, "ended": True})


def _take(sweep: Path, storage: Storage, me: dict[str, Any]) -> Lease:
    while True:
        names = filter(NAMES["owners"].fullmatch, storage.list_names("owners"))
        number = max((int(name.partition(".")[0]) for name in names), default=0)
        if number:
            _outlive(sweep.name, storage, _name(number))
        if storage.put_if_absent(_name(number + 1), dumps(me, indent=1).encode()):  # else another was faster
            return Lease(sweep, number + 1)


def _outlive(sweep: str, storage: Storage, name: str) -> None:
    """Return when the driver in this file has ended. Raises ValueError as soon as it shows that it lives."""
    text = storage.get(name)
    beat = storage.modified(name)
    if text is None or beat is None:  # It began nothing, and has ended.
        return
    try:
        driver = json.loads(text)
        who = f"process {driver['pid']} on {driver['host']} since {driver['since']}"
    except (ValueError, KeyError, TypeError):
        where = storage.describe(name)
        raise ValueError(f"{where} is damaged: remove it if no driver of {sweep} is running") from None
    lives = ValueError(f"{sweep} is being run by {who}: wait until it has ended, stop it, or choose another name")
    if driver.get("ended"):
        return
    if all(driver.get(k) == v is not None for k, v in machine().items()):
        # This process itself may have failed to write that it has ended, as on a full disk: then no thread beats.
        beats = driver["pid"] != os.getpid() or storage.describe(name) in {t.name for t in threading.enumerate()}
        if beats and driver.get("started") == process_start(driver["pid"]):
            raise lives
        return
    if (silent := _now(storage) - beat) < SILENCE_S:
        print(
            f"no heartbeat of the driver of {sweep} on {driver['host']} for {max(silent, 0):.0f} s: dead after "
            f"{SILENCE_S:.0f} s",
            flush=True,
        )
    while _now(storage) - beat < SILENCE_S:
        time.sleep(1.0)
        if storage.modified(name) not in (beat, None):
            raise lives


def _now(storage: Storage) -> float:
    """The storage's own time, in seconds."""
    probe = f".now-{uuid.uuid4().hex[:8]}"
    try:
        storage.put(probe, b"")
        return storage.modified(probe) or time.time()
    finally:
        storage.delete([probe])


def _beat(lease: Lease, storage: Storage, over: threading.Event) -> None:
    while not over.wait(BEAT_S):
        try:
            lease()
            storage.touch(_name(lease.number))
        except LeaseLost as e:
            if not over.is_set():
                print(f"error: {e}", file=sys.stderr, flush=True)
                os._exit(2)
        except OSError:  # a full or unreachable disk: it may come back
            continue


def _release(lease: Lease, storage: Storage, me: dict[str, Any]) -> None:
    if lease.number > 1 or storage.modified("sweep.json") is not None:
        storage.put(_name(lease.number), dumps(me, indent=1).encode())
        return
    storage.delete([_name(lease.number)])
    with contextlib.suppress(FileNotFoundError):  # A bucket has no folders.
        (lease.sweep / "owners").rmdir()
    lease.sweep.rmdir()


def machine() -> dict[str, str | None]:
    """Identify the machine on which process numbers hold: host, boot and container. None where the system hides it."""
    about: dict[str, str | None] = {"host": platform.node(), "boot": None, "numbering": None}
    with contextlib.suppress(OSError):
        about["boot"] = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        about["numbering"] = os.readlink("/proc/self/ns/pid")
    return about


def process_start(pid: int) -> str | None:
    """When a process was started, in clock ticks since the boot: process numbers are reused. None if it has ended."""
    with contextlib.suppress(OSError):
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else fields[18]
    return None


def _name(number: int) -> str:
    return f"owners/{number:05d}.json"
