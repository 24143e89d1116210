"""Size limits, checked before data are read: a small file may claim, or unpack to, more than any machine has."""

import os

MOST_PIXELS = 2**26  # largest picture: 8192 x 8192
MOST_BYTES = 2**28  # largest stored picture: more than MOST_PIXELS take uncompressed
MOST_DOWNLOADED = 2**37  # largest data set or model of the hub, in bytes


def memory() -> int:
    """Memory of this machine, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_memory(what: str, nbytes: int, remedy: str) -> None:
    """Raises ValueError if so many bytes exceed this machine's memory."""
    if nbytes > (most := memory()):
        raise ValueError(
            f"{what} would take {format_bytes(nbytes)}, more than this machine's {format_bytes(most)}: {remedy}"
        )


def format_bytes(nbytes: int) -> str:
    """Bytes for people."""
    return f"{nbytes / 2**30:,.1f} GB" if nbytes >= 2**30 else f"{nbytes / 2**20:,.0f} MB"
