"""What a data curator reads of an audit: a summary, the most exposed records, and what it would help to remove some.

Every text ends with `pdp.caveats`. All of it is confidential: it is computed from the records.
Reference: Wei et al., TMLR 2024 (arXiv 2310.15524), section 4.2.1 and Figure 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raydiff.papers.discrete.bound import Audit, ReleasedRows, audit
from raydiff.papers.discrete.histograms import OnProgress
from raydiff.papers.discrete.kernel import Floats, Ints

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
REMOVED = "conditional on the removed set, not the pipeline's guarantee"
"""Stands with every number computed after removing records."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """delta(v*) over records."""

    records: int
    """How many."""
    largest: float
    """The maximum, inf where a bound is."""
    mean: float
    """Of the finite ones; nan where there are none."""
    quantiles: tuple[float, ...]
    """At QUANTILES, of all records."""
    vacuous: int
    """Records whose bound is 1 or more, which says nothing; infinite ones included."""
    infinite: int
    """Records whose bound is infinite."""

    @property
    def median(self) -> float:
        """Of all records."""
        return self.quantiles[QUANTILES.index(0.5)]


@dataclass(frozen=True, kw_only=True)
class Removal:
    """The audit of what is left."""

    share: float
    """Share of the records that was removed, those with the largest delta first."""
    left: Summary
    """Of the rest, audited anew."""


def summarize(delta: Floats) -> Summary:
    """Summary of the bounds of all records, (records,)."""
    finite = delta[np.isfinite(delta)]
    return Summary(
        records=len(delta),
        largest=float(delta.max()),
        mean=float(finite.mean()) if len(finite) else float("nan"),
        quantiles=tuple(float(x) for x in np.quantile(delta, QUANTILES, method="higher")),
        vacuous=int((delta >= 1).sum()),
        infinite=len(delta) - len(finite),
    )


def most_exposed(delta: Floats) -> Ints:
    """Record numbers by falling delta, the earlier record first among equals."""
    return np.asarray(np.argsort(-delta, kind="stable"))


def removals(
    table: Ints,
    release: ReleasedRows,
    found: Audit,
    shares: Sequence[float],
    *,
    labels: Ints | None = None,
    progress: OnProgress | None = None,
) -> list[Removal]:
    """What an audit of the rest finds after each share of the most exposed records is removed; `labels` as in `audit`.

    Raises ValueError for a share that is not in (0, 1) or leaves fewer than two records.
    """
    order = most_exposed(found.of_records(found.delta))
    out = []
    for number, share in enumerate(shares):
        if not 0 < share < 1:
            raise ValueError(f"a share to remove must be in (0, 1), got {share}")
        rest = np.sort(order[round(share * len(order)) :])
        if len(rest) < 2:
            raise ValueError(f"removing the share {share} leaves {len(rest)} records, at least two are needed")
        left = audit(table[rest], release, labels=None if labels is None else labels[rest])
        out.append(Removal(share=share, left=summarize(left.of_records(left.delta))))
        if progress is not None:
            progress((number + 1) / len(shares))
    return out
