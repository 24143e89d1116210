"""Settings of every raydiff process."""

from __future__ import annotations

import ctypes
import os
import signal
import threading

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # <malloc.h>
KEPT_BYTES = 2**28


class Interrupted(KeyboardInterrupt):
    """A signal interrupts this process."""


def interrupt(*_: object) -> None:
    """Signal handler. Raises Interrupted, which code that raises KeyboardInterrupt by itself does not."""
    raise Interrupted


def is_interrupt(error: BaseException) -> bool:
    """Whether a signal interrupts this process, as far as its handler tells."""
    unknown = signal.getsignal(signal.SIGINT) is not interrupt
    return isinstance(error, Interrupted) or (isinstance(error, KeyboardInterrupt) and unknown)


def begin() -> None:
    """Make files of this process and its children private to the user, tell Ctrl-C from errors of plug-ins
    (`is_interrupt`), and keep freed memory, at most KEPT_BYTES.

    Each client's training allocates a model's weights several times, and fresh memory costs more than the arithmetic on
    it. Only glibc has this setting.
    """
    os.umask(0o077)
    if (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
        and threading.current_thread() is threading.main_thread()
    ):
        signal.signal(signal.SIGINT, interrupt)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, KEPT_BYTES // 2)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
