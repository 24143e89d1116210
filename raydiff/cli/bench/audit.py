"""Lines of `raydiff bench audit`: time and memory of the per-instance bound of all records of a table.

The table is Adult where RAYDIFF_DATA has it, else random rows of the same shape. The reference is `pdp_reference`,
plain Python, on that table's first rows. The peak is the process's, so Python and torch are in it.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from raydiff import seeding
from raydiff.data.tables.read import Table, read
from raydiff.models.d3pm_kernel import Linear
from raydiff.privacy.pdp.bound import Release, audit
from raydiff.privacy.pdp.kernel import Floats, Ints, Kernel
from raydiff.theory import pdp_reference
from raydiff.theory.pdp import skewed

SHAPE, CATEGORIES, STEPS = (30_718, 9), 5, 10  # of Adult, and T
AGREEMENT = 1e-9  # relative, of the deltas
TARGETS = {"seconds": 20.0, "peak_mb": 4096.0}

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Size:
    """A random table."""

    columns: int
    """n."""
    rows: int
    """s + 1."""
    audited: int | None = None
    """Records that are audited; None: all."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much to measure."""

    rows: int | None = None
    """Rows of Adult, from the first; None: all."""
    reference: int = 2000
    """Rows that the reference audits too."""
    sizes: Sequence[Size] = (
        *(Size(columns=n, rows=s) for n in (5, 9) for s in (1000, 10_000, 100_000, 1_000_000)),
        *(Size(columns=20, rows=s) for s in (1000, 10_000, 20_000)),
        *(Size(columns=20, rows=s, audited=1000) for s in (100_000, 1_000_000)),
    )
    """Random tables."""
    repetitions: int = 3
    """Of the audit of Adult; the fastest counts."""


QUICK = Effort(
    rows=500, reference=20, sizes=(Size(columns=5, rows=1000), Size(columns=9, rows=100, audited=10)), repetitions=1
)


def lines(effort: Effort) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and fields of each line: the audit of a whole table, the ratio to the reference, the cost by size."""
    name, table = adult()
    table = table[: effort.rows]
    release = Release(kernel=Kernel(alpha=Linear().alpha(STEPS).tolist(), categories=CATEGORIES))
    seconds = min(timed(lambda: audit(table, release))[0] for _ in range(effort.repetitions))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # KB on Linux
    shape = {"rows": len(table), "columns": table.shape[1], "k": CATEGORIES, "T": STEPS}
    found = {"seconds": seconds, "peak_mb": peak}
    met = {field: found[field] <= most for field, most in TARGETS.items()}
    yield "audit", {"table": name, **shape, **found, "targets": TARGETS, "met": met}
    yield "reference", {"table": name, **beside_reference(table[: effort.reference], release)}
    for size in effort.sizes:
        yield "cost", cost(size, release)


def adult() -> tuple[str, Ints]:
    """Adult's records, or random ones if there is no such table here."""
    root = os.environ.get("RAYDIFF_DATA")
    if root is not None and (Path(root) / "adult" / "train.csv").exists():
        return "adult", read(Table(source="adult")).codes.numpy()
    return "random", skewed(*SHAPE, CATEGORIES, p=0.5, rng=seeding.generator(0, "bench", "audit"))


def beside_reference(table: Ints, release: Release) -> dict[str, Any]:
    """Both implementations on one table: seconds, their ratio, and whether they find the same deltas."""
    fast, found = timed(lambda: audit(table, release))
    slow, expected = timed(lambda: pdp_reference.deltas(table, release))
    apart = difference(found.of_records(found.delta), expected)
    return {
        "rows": len(table),
        "seconds": fast,
        "reference_s": slow,
        "reference_over_audit": slow / fast,
        "difference": apart,
        "agree": apart <= AGREEMENT,
    }


def difference(found: Floats, expected: Floats) -> float:
    """The largest relative one; inf where one alone is infinite."""
    same = found == expected
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.where(same, 0, np.abs(found - expected) / np.minimum(np.abs(expected), np.abs(found))).max())


def cost(size: Size, release: Release) -> dict[str, Any]:
    """Seconds for one random table."""
    rng = seeding.generator(0, "bench", "audit", size.columns, size.rows)
    table = skewed(size.rows, size.columns, CATEGORIES, p=0.5, rng=rng)
    records = None if size.audited is None else torch.randperm(size.rows, generator=rng)[: size.audited].numpy()
    seconds, _ = timed(lambda: audit(table, release, records=records))
    return {"columns": size.columns, "rows": size.rows, "audited": size.audited or size.rows, "seconds": seconds}


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Seconds that it took, and what it gave."""
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result
