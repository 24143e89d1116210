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
    in a fresh one. Before that it says why, on stderr and as the last line of `lost.txt` in the trial's folder."""
    try:
        yield
    except Exception as e:
        if not device_lost(e):
            raise
        says = f"{who}: {str(e).strip().splitlines()[0]}"
        print(says, file=sys.stderr, flush=True)
        with contextlib.suppress(OSError), (folder / FILE).open("a") as f:  # on a full disk
            f.write(says + "\n")
        os._exit(1)


def last_words(folder: Path) -> str:
    """What the last process of this trial that ended so has said; "" where none has."""
    path = folder / FILE
    return path.read_text().splitlines()[-1] if path.exists() else ""
