"""The audited table with its bins, and how many rows of which label are released."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from raydiff.data.tables.encode import Column
from raydiff.data.tables.read import Encoded, Table
from raydiff.papers.discrete import lone_bins
from raydiff.papers.discrete.bound import ReleasedRows
from raydiff.papers.discrete.kernel import Ints


def with_notes(encoded: Encoded, config: Table, labels: Ints | None, *, keep: bool) -> Encoded:
    """The table with bins merged that hold a single record, unless `keep`, and notes on what was done or left."""
    groups = np.zeros(len(encoded.codes), dtype=np.int64) if labels is None else labels
    notes = [f"columns left out: {', '.join(config.exclude)}"] if config.exclude else []
    if not keep:
        encoded, names = lone_bins.merged(encoded, config, groups)
        merged = f"bins with a single record merged with a neighbour in {', '.join(names)}"
        notes += [f"{merged}: the bound is of a model of these bins"] if names else []
    if left := lone_bins.lone(encoded, config, groups):
        alone = f"some records are alone in a bin of {', '.join(left)}, which was cut at quantiles"
        notes.append(f"{alone}: for that reason alone their bound on clean rows is infinite")
    return dataclasses.replace(encoded, notes=(*encoded.notes, *notes))


def rows(words: Sequence[str], label: Column | None) -> tuple[int, tuple[int, ...]]:
    """(rows released, rows of each label where these are given). Raises ValueError naming --release."""
    names = label.categories if label is not None else ()
    pairs = [word.rpartition("=") for word in words]
    try:
        counts = {name: int(count) for name, _, count in pairs}
    except ValueError:
        raise ValueError(f"--release must be a number of rows or LABEL=ROWS, got {' '.join(words)!r}") from None
    if len(words) == 1 and not pairs[0][1]:
        return counts[""], ()
    if label is None or len(counts) < len(words) or {*counts} != {*names}:
        allowed = f"once each of {', '.join(names)}" if names else "no label, for the model is conditional on none"
        raise ValueError(f"--release must name {allowed}, got {' '.join(words)!r}")
    return max(counts.values()), tuple(counts[name] for name in names)


def released(release: ReleasedRows, label: Column | None) -> str:
    """The released rows in words."""
    if label is None:
        return f"{release.samples} released rows"
    if not release.by_label:
        return f"{release.samples} released rows, all of the record's own {label.name}"
    return ", ".join(f"{m} released rows of {n}" for n, m in zip(label.categories, release.by_label, strict=True))
