"""A noised sum over a client's records.

Replacing one record by another with the same label moves the sum by at most `sensitivity` (L2, over all leaves), which
the method derives. Labels are public by declaration, and so are the counts (R,) of the R rows of labels, which travel
in clear beside the sum. The noise does not depend on the number of records: the sum over M clients has sqrt(M) times
the noise of one and the signal of all records.
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
from raydiff.methods._averaging import DEVIATIONS
from raydiff.privacy import accountants
from raydiff.privacy.release import Event, Gaussian, NonPrivate, Nothing, Release, disclose, gaussian_sum
from raydiff.seeding import NoiseStream
from raydiff.tree import Params

COUNTS = "counts"
"""The leaf with the number of records of each row of labels."""
RECORDS = 2**24  # records of a client at most: the public range of the exact sum fits no more


@dataclass(frozen=True)
class NoisedSum:
    """One Gaussian event of each record, all leaves together."""

    what: str
    """Description for the ledger of sums without noise."""
    sensitivity: float
    """Largest L2 distance of the sums of neighbours."""
    largest: float
    """Largest absolute entry of one record's summand."""
    epsilon: float | None
    """Budget; None: no noise."""
    delta: float
    """The delta that goes with it."""
    releases: int = 1
    """How often a client sends such a sum; all together keep to the budget."""

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
        """The sum over clients. Every noised sum fits its range, so that rejections never depend on private data."""
        return MeanSpec("uniform", RECORDS * max(1.0, self.largest) + DEVIATIONS * self.std)

    def total(self, mean: Mean) -> tuple[Params, Tensor, float]:
        """(the sums over all clients, counts (R,), standard deviation of the noise in each entry)."""
        sums = tree.scale({k: v.double() for k, v in mean.value.items()}, mean.count)
        return sums, sums.pop(COUNTS).round(), self.std * math.sqrt(mean.count)


@dataclass(frozen=True, kw_only=True)
class NoisedSums(Method):
    """Base of the methods whose clients send nothing but a noised sum in each round in which they participate."""

    epsilon: float | None = 10.0
    """Privacy budget of one record, all uploads together; None sends the sums as they are."""
    delta: float = 1e-5
    """The delta that goes with it."""

    def __post_init__(self) -> None:
        accountants.check_budget(1.0 if self.epsilon is None else self.epsilon, self.delta)

    @cached_property
    def _sum(self) -> NoisedSum:
        """The sum of one round; a subclass derives its sensitivity."""
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
