"""A process whose accelerator is lost to it ends itself: it is reused, and every later trial in it would fail too."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from raydiff.models.ddpm import device_lost

FILE = "lost.txt"


@contextlib.contextmanager
def ending(folder: Path, who: str) -> Iterator[None]:
    """Within, an error of the accelerator that stays ends this process, as a crash would: what it was at is done again
    in a fresh one. Before that it tells why."""
    try:
        yield
    except Exception as e:
        if not device_lost(e):
            raise
        tell(folder, f"{who}: {str(e).strip().splitlines()[0]}")
        os._exit(1)


def tell(folder: Path, says: str) -> None:
    """Why a process was lost, on stderr and as the last line of `lost.txt` in the trial's folder."""
    print(says, file=sys.stderr, flush=True)
    with contextlib.suppress(OSError), (folder / FILE).open("a") as f:  # on a full disk
        f.write(says + "\n")


def words(folder: Path) -> list[str]:
    """Why processes of this trial were lost, as far as that was told."""
    path = folder / FILE
    return path.read_text(errors="replace").splitlines() if path.exists() else []


def last_words(folder: Path) -> str:
    """The last of it; "" where nothing was told."""
    return (words(folder) or [""])[-1]
