"""What is audited: the table with its bins, and how many rows of which label are released."""

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
    """The table with bins merged in which one record would be alone, and a sentence on what was done or left."""
    groups = np.zeros(len(encoded.codes), dtype=np.int64) if labels is None else labels
    notes = [f"columns left out: {', '.join(config.exclude)}"] if config.exclude else []
    if not keep:
        encoded, names = lone_bins.merged(encoded, config, groups)
        if names:
            notes.append(
                f"bins with a single record merged with a neighbour in {', '.join(names)}: the bound is of a model of "
                "these bins"
            )
    if left := lone_bins.lone(encoded, config, groups):
        notes.append(
            f"some records are alone in a bin of {', '.join(left)}, which was cut at quantiles: for that reason alone "
            "their bound on clean rows is infinite"
        )
    return dataclasses.replace(encoded, notes=(*encoded.notes, *notes))


def rows(given: Sequence[str], label: Column | None) -> tuple[int, tuple[int, ...]]:
    """How many rows are released, and how many of each label where that is given."""
    try:
        if len(given) == 1 and "=" not in given[0]:
            return int(given[0]), ()
        found = {name: int(count) for name, _, count in (text.rpartition("=") for text in given)}
    except ValueError:
        raise ValueError(f"release must be a number of rows or LABEL=ROWS, got {' '.join(given)!r}") from None
    names = () if label is None else label.categories
    if label is None or len(found) < len(given) or set(found) != set(names):
        allowed = f"once each of {', '.join(names)}" if names else "no label, for the model is conditional on none"
        raise ValueError(f"release must name {allowed}, got {' '.join(given)!r}")
    of_each = tuple(found[name] for name in names)
    return max(of_each), of_each


def released(release: ReleasedRows, label: Column | None) -> str:
    """These rows in words."""
    if label is None:
        return f"{release.samples} released rows"
    if not release.by_label:
        return f"{release.samples} released rows, all of the record's own {label.name}"
    return ", ".join(f"{m} released rows of {n}" for n, m in zip(label.categories, release.by_label, strict=True))
