"""Summaries of an audit for a data curator: all bounds, the most exposed records, and the effect of removing some.

All of it is confidential: it is computed from the records. Print `bound.caveats` beside it.
Reference: Wei et al., TMLR 2024 (arXiv 2310.15524), section 4.2.1 and Figure 6.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from raydiff.papers.discrete.bound import ReleasedRows, audit_rows
from raydiff.papers.discrete.kernel import Floats, Ints

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
REMOVED = "conditional on the removed set, not the pipeline's guarantee"
"""Stands with every number computed after removing records."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """delta(v*) over records."""

    records: int
    largest: float
    """The maximum, possibly inf."""
    mean: float
    """Of the finite bounds; nan where there are none."""
    quantiles: tuple[float, ...]
    """At QUANTILES, of all records."""
    vacuous: int
    """Number of bounds of 1 or more, which say nothing, including infinite ones."""
    infinite: int


@dataclass(frozen=True, kw_only=True)
class Removal:
    """The audit of the rest after the most exposed records were removed."""

    share: float
    """Fraction of the records that was removed."""
    left: Summary


def summarize(delta: Floats) -> Summary:
    """Summary of bounds (records,)."""
    finite = delta[np.isfinite(delta)]
    return Summary(
        records=len(delta),
        largest=float(delta.max()),
        mean=float(finite.mean()) if len(finite) else float("nan"),
        quantiles=tuple(float(x) for x in np.quantile(delta, QUANTILES, method="higher")),
        vacuous=int((delta >= 1).sum()),
        infinite=len(delta) - len(finite),
    )


def format_bound(delta: float) -> str:
    """A bound for people: from 1 on it says nothing, however large it is."""
    return f"{delta:.3g}" if delta < 1 else "1 or more"


def most_exposed(delta: Floats) -> Ints:
    """Record numbers by falling delta, the earlier record first among equals."""
    return np.asarray(np.argsort(-delta, kind="stable"))


def removal_order(bounds: Callable[[Ints], Floats], records: int, count: int, *, batch: float) -> Ints:
    """Numbers of the `count` records to remove, (count,), in the order of removal; `bounds` audits a part of them.

    The most exposed fraction `batch` (at least one record) goes first; then the rest is audited again, for a removal
    can leave another record as the only one with a value, whose bound is infinite. Raises ValueError where fewer than
    two are left.
    """
    if count and records - count < 2:
        raise ValueError(f"removing {count} of {records} records leaves fewer than two: remove a smaller fraction")
    rest = np.arange(records)
    removed = np.empty(0, dtype=np.int64)
    size = max(1, int(batch * records))
    while len(removed) < count:
        out = most_exposed(bounds(rest))[: min(size, count - len(removed))]
        removed = np.concatenate([removed, rest[out]])
        rest = np.delete(rest, out)
    return removed


def removals(
    table: Ints, release: ReleasedRows, fractions: Sequence[float], *, batch: float, labels: Ints | None = None
) -> list[Removal]:
    """Audit what is left after each fraction of the records is removed in `removal_order`; `labels` as in `audit_rows`.

    Raises ValueError for a fraction that leaves fewer than two records.
    """

    def bounds(rest: Ints) -> Floats:
        result = audit_rows(table[rest], release, labels=None if labels is None else labels[rest])
        return result.of_records(result.delta)

    counts = [round(fraction * len(table)) for fraction in fractions]
    records = np.arange(len(table))
    order = removal_order(bounds, len(table), max(counts, default=0), batch=batch)
    left = [summarize(bounds(np.delete(records, order[:count]))) for count in counts]
    return [Removal(share=share, left=rest) for share, rest in zip(fractions, left, strict=True)]
