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
        blocks = [self._blocks(row) for row in whole]
        # Off the diagonal a count stands twice in the norm of a symmetric matrix, and has half the noise's variance.
        pair = std / math.sqrt(2)
        totals = numbers.clamp_min(1).tolist()
        own = [_own(of, total, std=std, pair=pair) for of, total in zip(blocks, totals, strict=True)]
        parent, order = self._tree(blocks, own, std=pair)
        k = max(self.counts)
        table = torch.zeros(self.rows, len(self.counts), k, k, dtype=torch.float64)
        for r, column in itertools.product(range(self.rows), range(len(self.counts))):
            alone, above = own[r][column], parent[column]
            found = alone.expand(k, -1)
            if above >= 0:
                joint, apart = blocks[r][above][column], torch.outer(own[r][above], alone) / alone.sum()
                chance = _by_chance(own[r][above], alone, pair)
                found = (apart + _kept(joint - apart, chance) * (joint - apart)).clamp_min(0)
                found = torch.where(found.sum(1, keepdim=True) > 0, found, alone)
            found = found + SHARE * alone.sum()
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

    def _blocks(self, matrix: Tensor) -> list[list[Tensor]]:
        return [list(band.split(self.counts, dim=1)) for band in matrix.split(self.counts, dim=0)]

    def _tree(
        self, blocks: list[list[list[Tensor]]], own: list[list[Tensor]], *, std: float
    ) -> tuple[list[int], list[int]]:
        """(parent of each column, columns with parents first) of the heaviest forest: Prim's way, from column to
        column; a new root where no edge is left."""
        n = len(self.counts)
        weight = torch.zeros(n, n, dtype=torch.float64)
        for a, b in itertools.combinations(range(n), 2):
            found = chance = 0.0
            for of, alone in zip(blocks, own, strict=True):
                found += float((of[a][b] - torch.outer(alone[a], alone[b]) / alone[a].sum()).square().sum())
                chance += _by_chance(alone[a], alone[b], std)
            free = max(1, self.rows * (self.counts[a] - 1) * (self.counts[b] - 1))
            weight[a, b] = weight[b, a] = found - chance * (1 + TRUSTED * math.sqrt(2 / free))
        parent, order, left = [-1] * n, list[int](), set(range(n))
        while left:
            edges = [(float(weight[a, b]), a, b) for a in order for b in sorted(left)]
            best, above, column = max(edges, default=(0.0, -1, -1), key=lambda edge: edge[0])
            if best <= 0:
                above, column = -1, max(sorted(left), key=lambda c: float(weight[c].clamp_min(0).sum()))
            parent[column] = above
            order.append(column)
            left.discard(column)
        return parent, order


def _own(blocks: list[list[Tensor]], total: float, *, std: float, pair: float) -> list[Tensor]:
    """How often each value of each column is there, as counts that sum to `total`: the diagonal and every table that
    the column has a part in, by their precision."""
    found = []
    for a, band in enumerate(blocks):
        said, weights = [band[a].diagonal()], [1 / max(std * std, 1e-12)]
        for b, table in enumerate(band):
            if b != a:
                said.append(table.sum(1))
                weights.append(1 / max(pair * pair * table.shape[1], 1e-12))
        mean = sum(w * s for w, s in zip(weights, said, strict=True)) / sum(weights)
        mean = torch.as_tensor(mean).clamp_min(SHARE * total)
        found.append(mean * total / mean.sum())
    return found


def _by_chance(a: Tensor, b: Tensor, std: float) -> float:
    """The mean sum of squares that the table of two independent columns, which have these counts, has beyond
    independence: by noise, and by the draw of the records."""
    total, (p, q) = float(a.sum()), (a / a.sum(), b / b.sum())
    return len(a) * len(b) * std * std + total * float((1 - p.square().sum()) * (1 - q.square().sum()))


def _kept(beyond: Tensor, chance: float) -> float:
    """The share of what a table has beyond independence that is not chance."""
    square = float(beyond.square().sum())
    return max(0.0, 1 - chance / square) if square > 0 else 0.0
