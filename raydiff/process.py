"""What every process of raydiff begins with."""

from __future__ import annotations

import ctypes
import os

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # <malloc.h>
KEPT = 2**28  # bytes


def begin() -> None:
    """What this process writes from now on, and what those that it starts write, is for its user alone: files 600,
    folders 700, on a mount that others see too.

    And memory that it frees stays with it, KEPT bytes at most: each client's training takes a model's weights a few
    times anew, and memory that the system has just given costs several times what is computed in it. Only glibc is
    told; elsewhere nothing changes but seconds.
    """
    os.umask(0o077)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, KEPT // 2)
        mallopt(M_TRIM_THRESHOLD, KEPT)
