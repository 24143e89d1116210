"""How far apart are the rows of a table? Hamming-distance histograms: all that the per-instance bound needs of it.

Rows repeat, so everything is per distinct row with its multiplicity. Two ways, whichever is cheaper:

- dense: the table as a tensor of counts over all k_1 x .. x k_n cells. A polynomial in z counts the rows at each
  distance; mixing column i, p(a) -> p(a) + z sum_{b != a} p(b), adds its differences. Mixing all columns but i
  leaves the rows that share the value in column i. Halving the set of columns needs n log n mixings for all i.
- blocked: distances of a block of rows to all by one product of one-hot codes; then, per distance, one product of the
  indicator with the one-hot codes counts by column and value.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raydiff.papers.discrete.kernel import Ints

Counts = NDArray[np.integer]

MEMORY = 1.5e9  # bytes that the dense way may take
BLOCK = 2.5e7  # pairs of rows in one block


@dataclass(frozen=True, kw_only=True)
class Distinct:
    """The distinct rows of a table."""

    rows: Ints
    """(u, n), in lexicographic order."""
    weights: Ints
    """(u,) how often each occurs."""
    index: Ints
    """(rows of the table,) its distinct row."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Values of each column: one more than the largest."""
        return tuple(int(x) + 1 for x in self.rows.max(axis=0))


@dataclass(frozen=True, kw_only=True)
class Histograms:
    """Rows at each Hamming distance from u rows of a table, themselves not counted."""

    near: Counts
    """(u, n + 1): rows at distance 0 .. n."""
    sharing: Counts
    """(u, n, n): of them those with the same value in column i, at distance 0 .. n - 1."""


def distinct(table: Ints) -> Distinct:
    """Distinct rows of a (s, n) table of categories."""
    sizes = [int(x) + 1 for x in table.max(axis=0)]
    if math.prod(sizes) >= 2**63:
        rows, index, weights = np.unique(table, axis=0, return_inverse=True, return_counts=True)
    else:  # one number for each row sorts much faster
        numbers = np.ravel_multi_index(tuple(table.T), sizes)
        codes, index, weights = np.unique(numbers, return_inverse=True, return_counts=True)
        rows = np.stack(np.unravel_index(codes, sizes), axis=1)
    return Distinct(rows=rows.astype(np.int64), weights=weights.astype(np.int64), index=index.reshape(-1))


def histograms(data: Distinct, audited: Ints | None = None) -> Histograms:
    """Distances from each distinct row, or from the `audited` ones, to all other rows of the table."""
    audited = np.arange(len(data.rows)) if audited is None else audited
    sharing = (dense if _dense_pays(data, len(audited)) else blocked)(data, audited)
    n = data.rows.shape[1]
    total = data.weights.sum()
    sharing[:, :, 0] -= 1  # the row itself
    near = np.empty((len(audited), n + 1), dtype=sharing.dtype)
    near[:, :n] = sharing.sum(axis=1) // (n - np.arange(n))  # a row at distance d shares n - d columns
    near[:, n] = total - 1 - near[:, :n].sum(axis=1)
    return Histograms(near=near, sharing=sharing)


def dense(data: Distinct, audited: Ints) -> Counts:
    """Rows that share the value in column i, by distance and with the row itself, (u, n, n): over all cells."""
    sizes = data.sizes
    n = data.rows.shape[1]
    kind = np.int32 if data.weights.sum() < 2**31 else np.int64
    codes = np.ravel_multi_index(tuple(data.rows.T), sizes)
    cells = np.zeros((1, math.prod(sizes)), dtype=kind)
    cells[0, codes] = data.weights
    at = codes[audited]
    sharing = np.empty((len(audited), n, n), dtype=kind)

    def halve(counts: Counts, columns: range) -> None:
        if len(columns) == 1:
            sharing[:, columns[0]] = counts[:, at].T
            return
        middle = len(columns) // 2
        for keep, others in ((columns[:middle], columns[middle:]), (columns[middle:], columns[:middle])):
            mixed = counts
            for column in others:
                mixed = _mix(mixed, sizes, column)
            halve(mixed, keep)

    halve(cells, range(n))
    return sharing


def blocked(data: Distinct, audited: Ints) -> Counts:
    """The same by products of one-hot codes, block by block."""
    sizes, (u, n) = data.sizes, data.rows.shape
    kind = np.float32 if data.weights.sum() < 2**24 else np.float64  # counts are exact in either
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    hot = np.zeros((u, sum(sizes)), dtype=kind)
    hot[np.arange(u)[:, None], data.rows + offsets] = 1
    weighted = hot * data.weights[:, None].astype(kind)
    sharing = np.empty((len(audited), n, n), dtype=np.int64)
    size = max(1, int(BLOCK // u))
    for start in range(0, len(audited), size):
        block = audited[start : start + size]
        distance = n - (hot[block] @ hot.T).astype(np.int16)
        values = data.rows[block] + offsets
        for d in range(n):
            counted = (distance == d).astype(kind) @ weighted
            sharing[start : start + size, :, d] = np.take_along_axis(counted, values, axis=1)
    return sharing


def _mix(counts: Counts, sizes: tuple[int, ...], column: int) -> Counts:
    """p(a) + z sum_{b != a} p(b) along one column; counts (degree + 1, cells)."""
    degrees, cells = counts.shape
    before = counts.reshape(degrees, math.prod(sizes[:column]), sizes[column], -1)
    total = before[:, :, 0].copy()
    for value in range(1, sizes[column]):
        total += before[:, :, value]
    after = np.empty((degrees + 1, *before.shape[1:]), dtype=counts.dtype)
    after[:-1] = before
    after[-1] = 0
    after[1:] += total[:, :, None]
    after[1:] -= before
    return after.reshape(degrees + 1, cells)


def _dense_pays(data: Distinct, audited: int) -> bool:
    """Whether the dense way fits into memory and is cheaper: seconds by what the two were measured to take."""
    sizes, (u, n) = data.sizes, data.rows.shape
    levels = math.log2(n) + 1
    numbers = math.prod(sizes) * (n + 1) * levels
    if numbers * 8 > MEMORY:
        return False
    return bool(numbers * n * 2e-9 < audited * u * n * (2e-9 + sum(sizes) * 3e-11))
