"""Rows of a table from noised counts of pairs of columns: a tree of columns for all rows of labels (Chow & Liu 1968).

One-hot rows u of all columns together have M_r = sum of u u^T over the records of row r of labels: on its diagonal how
often each value is there, off it how often each pair of values of two columns. Its noise is known. All that is done to
it here is post-processing.

What a pair of columns tells beyond each one's own counts is its table less the table that independence would make. Of
columns that are independent that has a sum of squares too, by noise and by which records there happen to be
(`_by_chance`): an edge of the forest joins two columns where the sum is more than TRUSTED deviations above that, the
largest first. A child's table given its parent is taken as far back to independence as chance is a part of it (James &
Stein 1961).

Shapes: n columns, of k values at most; m one-hot entries of all columns; R rows of labels; N records.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from raydiff.data.records import label_rows
from raydiff.models import moments
from raydiff.models.d3pm import codes_of, drawn, images_of
from raydiff.tree import Params

TRUSTED = 4.0
"""How many deviations a pair of columns must be above what chance makes of it, to be joined."""
SHARE = 1e-6  # of a value that noise has left no count


@dataclass(frozen=True, kw_only=True)
class Forest:
    """A value of each column given that of its parent and the label, and nothing learned.

    Its parameters are parent (n,), -1 for a root; order (n,), parents first; and table (R, n, k, k): the probabilities
    of a column's values given each of its parent's, the same for each where it has none.
    """

    counts: tuple[int, ...] = (2,)
    """Number of categories of each column; filled in from the data when an experiment is built."""
    labels: tuple[int, ...] = (2,)
    """Number of values of each label column; filled in from the data."""

    conditional: ClassVar[bool] = True

    @property
    def rows(self) -> int:
        """R."""
        return math.prod(self.labels)

    @property
    def width(self) -> int:
        """m."""
        return sum(self.counts)

    def for_table(self, counts: tuple[int, ...], labels: tuple[int, ...]) -> Forest:
        """The same for a table with so many categories in each column and values in each label column."""
        return replace(self, counts=counts, labels=labels)

    def init(self, rng: torch.Generator) -> Params:
        """There is nothing to begin with."""
        return {}

    def one_hot(self, images: Tensor) -> Tensor:
        """Codes as records hold them, (N, 1, 1, n), as (N, m) float64: a 1 for each column."""
        first = torch.tensor([0, *itertools.accumulate(self.counts[:-1])])
        places = codes_of(images) + first
        return torch.zeros(len(images), self.width, dtype=torch.float64).scatter_(1, places, 1.0)

    def fitted(self, packed: Tensor, numbers: Tensor, *, std: float) -> Params:
        """Parameters from M_r as `moments.packed` has it, (R, m (m + 1) / 2), with noise of `std` on each entry, and
        how many records each row of labels has, (R,)."""
        whole = torch.stack([moments.unpacked(row, self.width) for row in packed])
        # Off the diagonal a count stands twice in the norm of a symmetric matrix, and has half the noise's variance.
        pair, totals = std / math.sqrt(2), numbers.clamp_min(1).double()
        own = self._own(whole, totals, std=std, pair=pair)
        chance = self._by_chance(own, totals, std=pair)
        parent, order = self._tree(whole, own, totals, chance=chance.sum(0))
        k, alone_of = max(self.counts), [row.split(self.counts) for row in own]
        table = torch.zeros(self.rows, len(self.counts), k, k, dtype=torch.float64)
        for r, column in itertools.product(range(self.rows), range(len(self.counts))):
            alone, above = alone_of[r][column], parent[column]
            found = alone.expand(k, -1)
            if above >= 0:
                joint = whole[r].split(self.counts)[above].split(self.counts, dim=1)[column]
                apart = torch.outer(alone_of[r][above], alone) / totals[r]
                kept = _kept(joint - apart, float(chance[r, above, column]))
                found = (apart + kept * (joint - apart)).clamp_min(0)
                found = torch.where(found.sum(1, keepdim=True) > 0, found, alone)
            found = found + SHARE * totals[r]
            table[r, column, : len(found), : len(alone)] = found / found.sum(1, keepdim=True)
        return {"parent": torch.tensor(parent), "order": torch.tensor(order), "table": table.float()}

    def sample(self, params: Params, labels: Tensor, rng: torch.Generator) -> Tensor:
        """Codes as records hold them, (N, 1, 1, n), for labels (N, K)."""
        row = label_rows(labels, self.labels)
        codes = torch.zeros(len(labels), len(self.counts), dtype=torch.int64)
        for column in params["order"].tolist():
            above = codes[:, params["parent"][column]]  # A root's table is the same whatever stands there.
            codes[:, column] = drawn(params["table"][row, column, above], rng)
        return images_of(codes)

    @property
    def _column(self) -> Tensor:
        """(m, n): 1 where an entry is of a column."""
        return torch.eye(len(self.counts), dtype=torch.float64).repeat_interleave(torch.tensor(self.counts), dim=0)

    def _own(self, whole: Tensor, totals: Tensor, *, std: float, pair: float) -> Tensor:
        """(R, m): how often each value of each column is there, as counts of a column that sum to the records in the
        row: the mean of the diagonal and of every table that the column has a part in, by their precision."""
        column, sizes = self._column, torch.tensor(self.counts, dtype=torch.float64)
        others = (1 - column) / (pair * pair * sizes).clamp_min(1e-12)
        first = 1 / max(std * std, 1e-12)
        said = (whole @ column * others).sum(2) + first * whole.diagonal(dim1=1, dim2=2)
        mean = torch.maximum(said / (others.sum(1) + first), SHARE * totals[:, None])
        return mean * totals[:, None] / (mean @ column @ column.T)

    def _by_chance(self, own: Tensor, totals: Tensor, *, std: float) -> Tensor:
        """(R, n, n): the mean sum of squares that the table of two independent columns, which have the counts `own`,
        has beyond independence: by noise, and by the draw of the records."""
        spread = 1 - (own / totals[:, None]).square() @ self._column
        by_draw = totals[:, None, None] * spread[:, :, None] * spread[:, None, :]
        sizes = torch.tensor(self.counts, dtype=torch.float64)
        return by_draw + torch.outer(sizes, sizes) * std * std

    def _tree(self, whole: Tensor, own: Tensor, totals: Tensor, *, chance: Tensor) -> tuple[list[int], list[int]]:
        """(parent of each column, columns with parents first) of the heaviest forest: Prim's way, from column to
        column; a new root where no edge is left."""
        n, column = len(self.counts), self._column
        beyond = whole - own[:, :, None] * own[:, None, :] / totals[:, None, None]
        found = (column.T @ beyond.square() @ column).sum(0)
        less = torch.tensor(self.counts, dtype=torch.float64) - 1
        free = (self.rows * torch.outer(less, less)).clamp_min(1)
        edge = (found - chance * (1 + TRUSTED * (2 / free).sqrt())).triu(1)
        weights = (edge + edge.T).tolist()
        parent, order, left = [-1] * n, list[int](), set(range(n))
        while left:
            edges = [(weights[a][b], a, b) for a in order for b in sorted(left)]
            best, above, child = max(edges, default=(0.0, -1, -1), key=lambda edge: edge[0])
            if best <= 0:
                above, child = -1, max(sorted(left), key=lambda c: sum(max(0.0, w) for w in weights[c]))
            parent[child] = above
            order.append(child)
            left.discard(child)
        return parent, order


def _kept(beyond: Tensor, chance: float) -> float:
    """The share of what a table has beyond independence that is not chance."""
    square = float(beyond.square().sum())
    return max(0.0, 1 - chance / square) if square > 0 else 0.0
