"""Bins that hold a single record, of columns that were cut at quantiles: that alone makes its bound infinite (pDP).

A quantile means nothing by itself, so such a bin can be merged with a neighbour. Records are counted within a group, as
in the audit: the rows of their label where the model is conditional on it. Which bins are merged depends on all
records: that is for the curator's audit, and no way to fit what a mechanism with a guarantee is trained on.

Shapes: s rows, g groups, b bins of a column (its missing values are none).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from raydiff.data.tables.read import Encoded, Table

Ints = NDArray[np.int64]


def lone(encoded: Encoded, config: Table, groups: Ints) -> dict[str, int]:
    """{column: records that are alone in their bin}, of columns with such, by groups (s,). Groups of a single record
    do not count: it is alone in everything."""
    found = {encoded.columns[i]: int((counts == 1).sum()) for i, counts in _cut(encoded, config, groups)}
    return {name: count for name, count in found.items() if count}


def merged(encoded: Encoded, config: Table, groups: Ints) -> tuple[Encoded, tuple[str, ...]]:
    """The table with such bins merged, each with the smaller of its neighbours, and the columns that have fewer now.

    A column keeps two bins at least. Groups of which records would be alone even then are left as they are.
    """
    columns, codes, names = list(encoded.mapping.columns), encoded.codes.clone(), []
    for i, counts in _cut(encoded, config, groups):
        edges, kept = columns[i].edges, _kept(counts)
        assert edges is not None
        if kept.all():
            continue
        into = np.concatenate([[0], np.cumsum(kept)])
        into = np.append(into, into[-1] + 1)  # Missing values keep a code of their own.
        columns[i] = columns[i].cut_at(tuple(e for e, keep in zip(edges, kept, strict=True) if keep))
        codes[:, i] = torch.from_numpy(into)[codes[:, i]]
        names.append(columns[i].name)
    return replace(encoded, codes=codes, mapping=replace(encoded.mapping, columns=tuple(columns))), tuple(names)


def _cut(encoded: Encoded, config: Table, groups: Ints) -> Iterator[tuple[int, Ints]]:
    """(which column, records by group and bin (g, b)) of each column that was cut at quantiles."""
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    for i, column in enumerate(encoded.mapping.columns):
        if column.edges is None or column.name in config.given_edges:
            continue
        counts = np.zeros((len(sizes), len(column.categories)), dtype=np.int64)
        np.add.at(counts, (group, encoded.codes[:, i].numpy()), 1)
        yield i, counts[sizes > 1, : len(column.edges) + 1]


def _kept(counts: Ints) -> NDArray[np.bool_]:
    """Which edges (b - 1,) remain, for records by group and bin (g, b)."""
    while True:
        left, edges = counts, np.arange(counts.shape[1] - 1)
        while left.shape[1] > 2 and (left == 1).any():
            bin_, size = int(np.argmax((left == 1).any(axis=0))), left.sum(axis=0)
            upper = bin_ == 0 or (bin_ < len(size) - 1 and size[bin_ + 1] < size[bin_ - 1])
            edge = bin_ if upper else bin_ - 1
            joined = left[:, edge] + left[:, edge + 1]
            left, edges = np.delete(left, edge + 1, axis=1), np.delete(edges, edge)
            left[:, edge] = joined
        alone = (left == 1).any(axis=1)
        if not alone.any():
            return np.isin(np.arange(counts.shape[1] - 1), edges)
        counts = counts[~alone]
