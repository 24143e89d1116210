"""Settings of every raydiff process."""

from __future__ import annotations

import ctypes
import os
import signal

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # <malloc.h>
KEPT_BYTES = 2**28


def interrupt(number: int, *_: object) -> None:
    """Raise KeyboardInterrupt with the number of a signal: a handler."""
    raise KeyboardInterrupt(number)


def is_interrupt(error: BaseException) -> bool:
    """Whether a signal raised this: by `interrupt`, or perhaps by Python's handler. Plug-ins may raise it as well."""
    unknown = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, KeyboardInterrupt) and (bool(error.args) or unknown)


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
