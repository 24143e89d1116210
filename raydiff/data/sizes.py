"""How large what is read may be: a small file may say, or unpack to, more than any machine has. It is refused in one
sentence before that is read. A file that lies about its size can still cost its process the memory of the machine."""

from __future__ import annotations

import os

MOST_PIXELS = 2**26
"""Of one picture: 8192 x 8192."""
MOST_BYTES = 2**28
"""Of one picture as it is stored: more than MOST_PIXELS take uncompressed."""
MOST_DOWNLOADED = 2**37
"""Bytes of one data set or model of the hub."""


def memory() -> int:
    """Bytes that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_fits(what: str, nbytes: int, remedy: str) -> None:
    """Raises ValueError where this takes more than this machine's memory."""
    if nbytes > (most := memory()):
        raise ValueError(f"{what} would take {shown(nbytes)}, more than this machine's {shown(most)}: {remedy}")


def shown(nbytes: int) -> str:
    """Bytes for people."""
    return f"{nbytes / 2**30:,.1f} GB" if nbytes >= 2**30 else f"{nbytes / 2**20:,.0f} MB"
