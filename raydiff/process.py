"""Settings of every raydiff process, and its lines while it waits."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # <malloc.h>
KEPT_BYTES = 2**28
WAIT_S = 10.0  # No wait is longer without a word.


def begin() -> None:
    """Make files of this process and its children private to the user, and keep freed memory, at most KEPT_BYTES.

    Each client's training allocates a model's weights several times, and fresh memory costs more than the arithmetic on
    it. Only glibc has this setting.
    """
    os.umask(0o077)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, KEPT_BYTES // 2)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


@contextlib.contextmanager
def saying(line: Callable[[], str], every_s: float) -> Iterator[None]:
    """Print the line every so many seconds until the block ends."""
    over = threading.Event()

    def say() -> None:
        while not over.wait(every_s):
            print(f"  {line()}", flush=True)

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def waiting(what: str) -> contextlib.AbstractContextManager[None]:
    """Say what is waited for, every WAIT_S until the block ends."""
    since = time.monotonic()
    return saying(lambda: f"waiting for {what} ({time.monotonic() - since:.0f} s)", WAIT_S)
