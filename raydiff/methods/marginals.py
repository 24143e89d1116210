"""Marginals: noised counts of pairs of values of two columns, and a tree of columns fitted to them.

For each label, each client counts values of each column and pairs of values of two columns, and sends all counts once,
noised. The server adds over clients and fits a tree of columns (`models.forest`). It is MST (McKenna, Miklau & Sheldon
2021, arXiv 2108.04978) without spending budget on choosing pairs: all are counted, since clients send once.

Adversary: an honest-but-curious server that sees every upload. Unit of privacy: one record (replace-one, local trust).
Covered: the upload and every row sampled from it. Not covered: labels and numbers of records, which are public by
declaration, so that a replaced record keeps its label; and bins of columns fitted on records (`data.fitted_on`).

| symbol | here |
|---|---|
| u, one-hot rows of n columns, of norm sqrt(n) | `Forest.one_hot` |
| M_r = sum of u u^T over the records with row r of labels | the upload's `pairs` (R, m (m + 1) / 2), m entries of u |
| n_r | the upload's `counts` (R,), public |
| sigma | sensitivity / mu(`epsilon`, `delta`), by the exact accountant |

**Sensitivity.** Replacing u by v of the same label moves M, measured by its Frobenius norm, by

    ||u u^T - v v^T||^2 = |u|^4 + |v|^4 - 2 <u, v>^2 = 2 n^2 - 2 (columns that agree)^2 <= 2 n^2

so by sqrt(2) n at most.
"""

import math
from functools import partial
from typing import ClassVar

import torch

from raydiff import tree
from raydiff.data.records import Records
from raydiff.federated.method import Deployed, Mean, Metrics, Round
from raydiff.methods._noised_sums import NoisedSums
from raydiff.models import moments
from raydiff.models.forest import Forest
from raydiff.privacy.release import Event
from raydiff.settings import settings
from raydiff.tree import Params

PAIRS = "pairs"


@settings(frozen=True, kw_only=True)
class Marginals(NoisedSums):
    """One noised table of pairs per client, and a tree of columns fitted to their sum.

    Examples:
        >>> method = rd.Marginals(epsilon=1.0)
        >>> method.rounds
        1
    """

    model: Forest = Forest()
    """Categories of the columns, and the rows of labels."""

    rounds: ClassVar[int] = 1

    what: ClassVar[str] = "counts of pairs of values"
    largest: ClassVar[float] = math.sqrt(2)

    @property
    def sensitivity(self) -> float:
        return math.sqrt(2) * len(self.model.counts)

    def init_server(self, public: Records | None, rng: torch.Generator) -> Params:
        return {}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {PAIRS: (self.model.rows, self.model.width * (self.model.width + 1) // 2)}

    def add_up(self, server: Params, data: Records) -> tuple[Params, Metrics]:
        rows = self.rows_of(data)
        u = self.model.one_hot(data.images)
        return {PAIRS: torch.stack([moments.pack_outer_products(u[rows == row]) for row in range(self.model.rows)])}, {}

    def aggregate(self, server: Params, uploads: Mean, rnd: Round) -> tuple[Params, Metrics, list[Event]]:
        """The tree from the sums over all clients, which have M clients' noise."""
        total, counts, std = self.total(uploads)
        fitted = self.model.fit(total[PAIRS], counts, std=std)
        edges = float((fitted["parent"] >= 0).sum())
        return tree.prefixed("forest", fitted), {"server/edges": edges}, []

    def deploy(self, server: Params, state: Params | None = None) -> Deployed:
        """Rows of the tree, the same for all clients and the server."""
        draw = partial(self.model.sample, tree.under("forest", server))
        return Deployed({"tree": draw}, about="rows of a tree of columns, fitted to noised counts", of_server=True)
