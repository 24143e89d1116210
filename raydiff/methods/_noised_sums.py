"""A sum over a client's records, noised once: what a client that is trusted with its own records can send of them.

Replacing one record by another with the same label moves the sum by `sensitivity` at most (L2, over all leaves
together); the method that makes the sum derives that number. Labels are public by declaration, and with them the counts
(R,) of each of the R rows of labels: they travel in clear beside the sum, so that the server can divide by them.

The noise does not depend on how many records there are, so a sum that is added up over clients before anybody looks at
it has the noise of M clients and the signal of all their records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from raydiff import tree
from raydiff.federated.method import Mean, MeanSpec, Method
from raydiff.federated.upload_spec import TensorSpec, UploadSpec
from raydiff.privacy import accountants
from raydiff.privacy.release import Event, Gaussian, NonPrivate, Nothing, Release, disclose, gaussian_sum
from raydiff.seeding import NoiseStream
from raydiff.tree import Params

COUNTS = "counts"
"""The leaf with the number of records of each row of labels."""
RECORDS = 2**24  # of a client at most: the range of the exact sum, which is public, has room for no more
DEVIATIONS = 16.0  # of noise that none of all the draws there will ever be goes beyond


@dataclass(frozen=True)
class NoisedSum:
    """One Gaussian event of each record, all leaves together."""

    what: str
    """What is sent, in words, for the ledger where there is no noise."""
    sensitivity: float
    """L2 distance of the sums of neighbours, at most."""
    largest: float
    """Size of an entry of one record's summand, at most."""
    epsilon: float | None
    """Budget; None: no noise."""
    delta: float
    """The delta that goes with it."""
    releases: int = 1
    """How often a client sends such a sum: all of them together keep to the budget."""

    @property
    def std(self) -> float:
        """Standard deviation of the noise on each entry."""
        if self.epsilon is None or self.epsilon == math.inf:
            return 0.0
        return self.sensitivity * math.sqrt(self.releases) / accountants.mu_for(self.epsilon, self.delta)

    @property
    def event(self) -> Event:
        """What a record reveals by one release."""
        if self.epsilon is None:
            return NonPrivate(self.what)
        return Gaussian(self.std / self.sensitivity, "example", "replace_one", "local", declared=("labels",))

    def release(self, sums: Params, counts: Tensor, noise: NoiseStream | None) -> Release:
        """The sums, noised, and counts (R,). Raises ValueError without noise, and where a sum is not finite."""
        public = {COUNTS: counts.double()}
        if self.epsilon is None:
            return disclose({**{k: v.float() for k, v in sums.items()}, **public}, self.what)
        if noise is None:
            raise ValueError("a noised sum needs the round's noise stream")
        return gaussian_sum(
            sums, sensitivity=self.sensitivity, std=self.std, noise=noise, public=public, declared=("labels",)
        )

    def upload_spec(self, shapes: dict[str, tuple[int, ...]], rows: int) -> UploadSpec:
        """Leaves of these shapes, and counts."""
        leaves = {name: TensorSpec(shape, torch.float32) for name, shape in shapes.items()}
        return UploadSpec({**leaves, COUNTS: TensorSpec((rows,), torch.float64, (range(RECORDS + 1),))})

    @property
    def mean_spec(self) -> MeanSpec:
        """How clients are added up. No noised sum is beyond the range, so who is in a sum never depends on records."""
        return MeanSpec("uniform", RECORDS * max(1.0, self.largest) + DEVIATIONS * self.std)

    def total(self, mean: Mean) -> tuple[Params, Tensor, float]:
        """(the sums over all clients, counts (R,), standard deviation of the noise in each entry)."""
        whole = tree.scale({k: v.double() for k, v in mean.value.items()}, mean.count)
        return whole, whole.pop(COUNTS).round(), self.std * math.sqrt(mean.count)


@dataclass(frozen=True, kw_only=True)
class NoisedSums(Method):
    """A method whose clients send such a sum in each round in which they take part, and nothing else."""

    epsilon: float | None = 10.0
    """Privacy budget of one record, all uploads together; None sends the sums as they are."""
    delta: float = 1e-5
    """The delta that goes with it."""

    def __post_init__(self) -> None:
        accountants.check_budget(1.0 if self.epsilon is None else self.epsilon, self.delta)

    @cached_property
    def _sum(self) -> NoisedSum:
        """What is sent. A subclass derives its sensitivity."""
        raise NotImplementedError

    def upload_event(self, records: int, number: int) -> Event:
        """The same in every round, whatever the records."""
        return self._sum.event if number < self.participating_rounds else Nothing()

    def mean_spec(self, server: Params) -> MeanSpec:
        """The sum over clients is all that the server needs."""
        return self._sum.mean_spec


def by_row(values: Tensor, rows: Tensor, count: int) -> Tensor:
    """(count, width) in float64: the sum of values (N, width) over the records of each row of labels."""
    return torch.zeros(count, values.shape[1], dtype=torch.float64).index_add_(0, rows, values.double())
