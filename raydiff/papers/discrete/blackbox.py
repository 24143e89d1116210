"""Black-box membership attack on synthetic rows of a table: Wei et al. (TMLR 2024, arXiv 2310.15524), section 4.2.2,
after LOGAN (Hayes et al. 2017, arXiv 1705.07663).

The attacker has rows that the model made, with their labels, and all records that may have been trained on; of these it
knows how many were, and no more. A classifier trained on the made rows is surest of records that they resemble.

Deviations: scikit-learn's rate is constant with Adam, for which the paper's "adaptive" does nothing; equal confidences,
which equal records have, are ordered at random.

Shapes: s made rows, m members, o others, n columns, k categories at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from raydiff.evaluation.attacks import targets
from raydiff.evaluation.attacks.membership import Interval, wilson
from raydiff.evaluation.metrics import Drawn
from raydiff.evaluation.quality.table_fidelity import classifier_of, one_hot
from raydiff.federated.method import Metrics
from raydiff.models.d3pm import codes_of

NETWORK: dict[str, Any] = {
    "hidden_layer_sizes": (256, 256, 256),
    "learning_rate_init": 0.01,
    "max_iter": 1000,
    "tol": 1e-6,
}
SEEDS = 2**31  # scikit-learn's seeds are below 2^32

Rows = tuple[Tensor, Tensor]
"""Codes (N, n) int64 and labels (N,) int64."""


@dataclass(frozen=True, kw_only=True)
class BlackBox:
    """What the attack achieves."""

    accuracy: float
    """Share of the m records called members that are. The same number is the share of the members that are found."""
    accuracy_interval: Interval
    """Wilson 1927 at 95 %, for the made rows and the classifier as they are. It takes the m calls as independent, which
    is cautious: guesses without replacement vary less."""
    random: float
    """What guessing achieves: m / (m + o)."""
    n_members: int
    """m."""
    n_nonmembers: int
    """o."""

    def metrics(self, prefix: str) -> Metrics:
        """Flat numbers under `prefix/`."""
        low, high = self.accuracy_interval
        return {
            f"{prefix}/accuracy": self.accuracy,
            f"{prefix}/accuracy_low": low,
            f"{prefix}/accuracy_high": high,
            f"{prefix}/random": self.random,
            f"{prefix}/n_members": float(self.n_members),
            f"{prefix}/n_nonmembers": float(self.n_nonmembers),
        }


def attack(made: Rows, *, members: Rows, nonmembers: Rows, rng: torch.Generator) -> BlackBox:
    """Train on `made`, then call the m records members whose true label the classifier is surest of.

    Raises ValueError on an empty table, numbers of columns or labels that do not go together, negative codes, and made
    rows with one label only, from which nothing can be told.
    """
    _check(made, members, nonmembers)
    m, o = len(members[0]), len(nonmembers[0])
    records = torch.cat([members[0], nonmembers[0]]), torch.cat([members[1], nonmembers[1]])
    sure = confidence(made, records, rng)
    order = torch.randperm(m + o, generator=rng)
    called = order[sure[order].argsort(descending=True, stable=True)[:m]]
    hits = int((called < m).sum())
    return BlackBox(
        accuracy=hits / m, accuracy_interval=wilson(hits, m), random=m / (m + o), n_members=m, n_nonmembers=o
    )


def of_rows(drawn: Drawn) -> Metrics:
    """What a classifier learns from the final rows of whether a record was among the client's: members are
    its own rows, non-members those of the test split in its mix of labels."""
    if drawn.dataset.mapping is None or not drawn.is_final or not drawn.config.attack:
        return {}
    others = targets.in_proportion(drawn.reference, drawn.own.labels[:, 0])
    members, nonmembers = ((codes_of(r.images), r.labels[:, 0]) for r in (drawn.own, others))
    made = codes_of(drawn.images), drawn.labels[:, 0]
    return attack(made, members=members, nonmembers=nonmembers, rng=drawn.rng).metrics("blackbox")


def confidence(made: Rows, records: Rows, rng: torch.Generator) -> Tensor:
    """What a classifier trained on `made` gives the true label of each record: (N,) float64, 0 for a label that was
    never made. Equal records have equal ones, to the bit."""
    k = int(max(made[0].max(), records[0].max())) + 1
    seed = int(torch.randint(SEEDS, (), generator=rng))
    network = classifier_of(*made, k, seed=seed, **NETWORK)
    different, which = records[0].unique(dim=0, return_inverse=True)
    told = torch.from_numpy(network.predict_proba(one_hot(different, k))).double()[which]
    column = torch.from_numpy(network.classes_) == records[1][:, None]  # (N, classes)
    return (told * column).sum(1)


def _check(made: Rows, members: Rows, nonmembers: Rows) -> None:
    of = {"made": made, "members": members, "nonmembers": nonmembers}
    for name, (codes, labels) in of.items():
        if codes.dim() != 2 or labels.shape != codes.shape[:1] or not codes.numel():
            raise ValueError(
                f"{name} must be codes (N, n) and labels (N,) of at least one row, "
                f"got shapes {tuple(codes.shape)} and {tuple(labels.shape)}"
            )
        if codes.shape[1] != made[0].shape[1]:
            raise ValueError(f"{name} must have the {made[0].shape[1]} columns of made, got {codes.shape[1]}")
        if codes.is_floating_point() or int(codes.min()) < 0:
            raise ValueError(f"{name} must hold codes, integers of 0 or more")
    if len(made[1].unique()) < 2:
        raise ValueError("made must have two different labels at least: a classifier is trained to tell them apart")
