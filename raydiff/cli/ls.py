"""The sweeps and runs of a storage folder: how far each is, how much it takes, when it last changed.

raydiff ls                          newest last
raydiff ls --storage /mnt/shared/raydiff
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from raydiff.cli.parser import Parser
from raydiff.report.cells import size
from raydiff.report.files import read_json


def main(argv: Sequence[str]) -> int:
    """Look, and print a line for each."""
    given = Parser("ls", __doc__).with_storage().parse_args(argv)
    sweeps = sorted((path.parent for path in given.storage.glob("sweeps/*/sweep.json")), key=changed)
    if not sweeps:
        raise ValueError(f"there are no sweeps in {given.storage}")
    rows = [(time.strftime("%Y-%m-%d %H:%M", time.localtime(changed(s))), s.name, state(s), taken(s)) for s in sweeps]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def state(sweep: Path) -> str:
    """`24 finished, 1 failed of 30`."""
    planned = len(read_json(sweep / "sweep.json", needs="trials")["trials"])
    outcomes = Counter(str(read_json(p, needs="outcome")["outcome"]) for p in sweep.glob("trials/*/outcome.json"))
    said = ", ".join(f"{n} {outcome}" for outcome, n in sorted(outcomes.items())) or "nothing ended"
    return f"{said} of {max(planned, outcomes.total())}"


def taken(sweep: Path) -> str:
    """What its files take."""
    return size(sum(path.stat().st_size for path in _files(sweep)))


def changed(sweep: Path) -> float:
    """When a file of it was written last, in seconds since 1970."""
    return max(path.stat().st_mtime for path in _files(sweep))


def _files(sweep: Path) -> Iterator[Path]:
    return (path for path in sweep.rglob("*") if path.is_file())
