"""Rows of a table from noised counts of pairs of columns: a forest of columns for all rows of labels (Chow & Liu 1968).

For one-hot rows u of all columns, M_r = sum of u u^T over the records with row r of labels holds counts of values on
its diagonal and counts of pairs of values off it, with noise of a given scale.

The dependence of two columns is their table less the product of their counts. An edge joins two columns whose sum of
squares exceeds that of independent columns (`_by_chance`) by more than TRUSTED deviations, the largest first. A child's
table given its parent is shrunk towards independence by the fraction that chance explains (James & Stein 1961).

Shapes: n columns, of k values at most; m (`width`) one-hot entries of all columns; R (`rows`) rows of labels.
"""

import itertools
import math
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from raydiff.data.records import codes_of, images_of, label_rows
from raydiff.models import moments
from raydiff.models.d3pm import draw_codes
from raydiff.settings import settings
from raydiff.tree import Params

TRUSTED = 4.0
"""Deviations above chance at which two columns are joined."""
SMALLEST = 1e-6  # fraction of the records for values whose noised count is 0 or less


@settings(frozen=True, kw_only=True)
class Forest:
    """Distributions of each column given its parent and the label.

    Its parameters are parent (n,), -1 for a root; order (n,), parents first; and table (R, n, k, k), the probabilities
    of a column's values given each value of its parent (of a root the same for each).
    """

    counts: tuple[int, ...] = (2,)
    """Number of categories of each column; filled in from the data when an experiment is built."""
    labels: tuple[int, ...] = (2,)
    """Number of values of each label column; filled in from the data."""

    conditional: ClassVar[bool] = True

    @property
    def rows(self) -> int:
        return math.prod(self.labels)

    @property
    def width(self) -> int:
        return sum(self.counts)

    def for_table(self, counts: tuple[int, ...], labels: tuple[int, ...]) -> "Forest":
        """The same for a table with so many categories in each column and values in each label column."""
        return replace(self, counts=counts, labels=labels)

    def init(self, rng: torch.Generator) -> Params:
        return {}  # Parameters are estimated, not trained.

    def one_hot(self, images: Tensor) -> Tensor:
        """(N, m) float64 one-hot rows of codes (N, 1, 1, n)."""
        first = torch.tensor([0, *itertools.accumulate(self.counts[:-1])])
        places = codes_of(images) + first
        return torch.zeros(len(images), self.width, dtype=torch.float64).scatter_(1, places, 1.0)

    def fit(self, packed: Tensor, numbers: Tensor, *, std: float) -> Params:
        """Parameters from packed M_r, (R, m (m + 1) / 2), with noise of `std`, and counts of records by row (R,)."""
        whole = torch.stack([moments.unpack_matrix(row, self.width) for row in packed])
        # A count off the diagonal stands twice in the norm, so its noise has half the variance.
        pair = std / math.sqrt(2)
        totals = numbers.clamp_min(1).double()
        single = self._single(whole, totals, std=std, pair=pair)
        chance = self._by_chance(single, totals, std=pair)
        parent, order = self._tree(whole, single, totals, chance=chance.sum(0))
        k = max(self.counts)
        alone_of = [row.split(self.counts) for row in single]
        table = torch.zeros(self.rows, len(self.counts), k, k, dtype=torch.float64)
        for r, column in itertools.product(range(self.rows), range(len(self.counts))):
            alone = alone_of[r][column]
            above = parent[column]
            counts = alone.expand(k, -1)
            if above >= 0:
                joint = whole[r].split(self.counts)[above].split(self.counts, dim=1)[column]
                product = torch.outer(alone_of[r][above], alone) / totals[r]
                beyond = joint - product
                by_chance = float(chance[r, above, column] / beyond.square().sum().clamp_min(1e-300))
                counts = (product + max(0.0, 1 - by_chance) * beyond).clamp_min(0)
                counts = torch.where(counts.sum(1, keepdim=True) > 0, counts, alone)
            counts = counts + SMALLEST * totals[r]
            table[r, column, : len(counts), : len(alone)] = counts / counts.sum(1, keepdim=True)
        return {"parent": torch.tensor(parent), "order": torch.tensor(order), "table": table.float()}

    def sample(self, params: Params, labels: Tensor, rng: torch.Generator) -> Tensor:
        """Codes (N, 1, 1, n) for labels (N, K)."""
        row = label_rows(labels, self.labels)
        codes = torch.zeros(len(labels), len(self.counts), dtype=torch.int64)
        for column in params["order"].tolist():
            above = codes[:, params["parent"][column]]  # A root's table does not depend on it.
            codes[:, column] = draw_codes(params["table"][row, column, above], rng)
        return images_of(codes)

    @property
    def _column(self) -> Tensor:
        """(m, n): 1 where an entry is of a column."""
        return torch.eye(len(self.counts), dtype=torch.float64).repeat_interleave(torch.tensor(self.counts), dim=0)

    def _single(self, whole: Tensor, totals: Tensor, *, std: float, pair: float) -> Tensor:
        """(R, m): counts of each column's values: the precision-weighted mean of the diagonal and of its tables."""
        column = self._column
        sizes = torch.tensor(self.counts, dtype=torch.float64)
        others = (1 - column) / (pair * pair * sizes).clamp_min(1e-12)
        first = 1 / max(std * std, 1e-12)
        weighted = (whole @ column * others).sum(2) + first * whole.diagonal(dim1=1, dim2=2)
        mean = torch.maximum(weighted / (others.sum(1) + first), SMALLEST * totals[:, None])
        return mean * totals[:, None] / (mean @ column @ column.T)

    def _by_chance(self, single: Tensor, totals: Tensor, *, std: float) -> Tensor:
        """(R, n, n): the expected sum of squares of two independent columns' dependence, by noise and by sampling."""
        spread = 1 - (single / totals[:, None]).square() @ self._column
        by_draw = totals[:, None, None] * spread[:, :, None] * spread[:, None, :]
        sizes = torch.tensor(self.counts, dtype=torch.float64)
        return by_draw + torch.outer(sizes, sizes) * std * std

    def _tree(self, whole: Tensor, single: Tensor, totals: Tensor, *, chance: Tensor) -> tuple[list[int], list[int]]:
        """(parent of each column, columns with parents first) of the heaviest forest, by Prim's algorithm."""
        n = len(self.counts)
        column = self._column
        beyond = whole - single[:, :, None] * single[:, None, :] / totals[:, None, None]
        squares = (column.T @ beyond.square() @ column).sum(0)
        less = torch.tensor(self.counts, dtype=torch.float64) - 1
        free = (self.rows * torch.outer(less, less)).clamp_min(1)
        edge = (squares - chance * (1 + TRUSTED * (2 / free).sqrt())).triu(1)
        weights = (edge + edge.T).tolist()
        parent = [-1] * n
        order = list[int]()
        left = set(range(n))
        while left:
            edges = [(weights[a][b], a, b) for a, b in itertools.product(order, sorted(left))]
            best, above, child = max(edges, default=(0.0, -1, -1), key=lambda edge: edge[0])
            if best <= 0:
                above = -1
                child = max(sorted(left), key=lambda c: sum(max(0.0, w) for w in weights[c]))
            parent[child] = above
            order.append(child)
            left.discard(child)
        return parent, order
