"""A noised sum over a client's records: one Gaussian event of each record, all leaves together.

Neighbours under `relation` differ in one record and in no label: their sums are at most `sensitivity` apart (L2, over
all leaves), which the method derives. Labels are public by declaration, and so are the counts (R,) of the R rows of
labels, which travel in clear beside the sum. The noise does not depend on the number of records: the sum over M
clients has sqrt(M) times the noise of one and the signal of all records.
"""

import math
from collections.abc import Callable
from functools import cached_property, partial
from typing import ClassVar, cast

import torch
from torch import Tensor

from raydiff import tree
from raydiff.data.records import Records, label_rows
from raydiff.federated.method import Deployed, LocalResult, Mean, MeanSpec, Method, Metrics, Round, Target
from raydiff.federated.upload_spec import TensorSpec, UploadSpec
from raydiff.methods._averaging import DEVIATIONS
from raydiff.privacy import accountants
from raydiff.privacy.private_gradient import Neighbours
from raydiff.privacy.release import Event, Gaussian, NonPrivate, Nothing, disclose, gaussian_sum
from raydiff.settings import settings
from raydiff.tree import Params

COUNTS = "counts"
"""The leaf with the number of records of each row of labels."""
MAX_RECORDS = 2**24  # records of a client at most: the public range of the exact sum fits no more


@settings(frozen=True, kw_only=True)
class NoisedSums(Method):
    """Base of the methods whose clients send nothing but a noised sum in each round in which they participate."""

    epsilon: accountants.Epsilon | None = 10.0
    """Privacy budget of one record, all uploads together; None sends the sums as they are."""
    delta: accountants.Delta = 1e-5
    """The delta that goes with it."""

    what: ClassVar[str]
    """Description for the ledger of sums without noise."""

    @property
    def relation(self) -> Neighbours:
        """Neighbouring relation of the epsilon."""
        return "replace_one"

    @property
    def sensitivity(self) -> float:
        """Largest L2 distance of the sums of neighbours."""
        raise NotImplementedError

    @property
    def largest(self) -> float:
        """Largest absolute entry of one record's summand."""
        return 1.0

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the sum's leaves."""
        raise NotImplementedError

    def add_up(self, server: Params, data: Records) -> tuple[Params, Metrics]:
        """The sum over these records, float64, and metrics."""
        raise NotImplementedError

    @cached_property
    def std(self) -> float:
        """Standard deviation of the noise on each entry, with which all uploads together keep to the budget."""
        if self.epsilon is None or self.epsilon == math.inf:
            return 0.0
        return self.sensitivity * math.sqrt(self.participating_rounds) / accountants.mu_for(self.epsilon, self.delta)

    def local_update(self, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        """Add up, add noise, once. Raises ValueError without a noise stream, and where a sum is not finite."""
        sums, metrics = self.add_up(server, data)
        public = {COUNTS: self.rows_of(data).bincount(minlength=self.model.rows).double()}
        if self.epsilon is None:
            sent = disclose({**{k: v.float() for k, v in sums.items()}, **public}, self.what)
        elif rnd.noise is None:
            raise ValueError("a noised sum needs the round's noise stream")
        else:
            event = cast(Gaussian, self.upload_event(len(data), rnd.number))
            sent = gaussian_sum(sums, sensitivity=self.sensitivity, event=event, noise=rnd.noise, public=public)
        return LocalResult(state, sent, metrics)

    def upload_event(self, records: int, round_number: int) -> Event:
        if round_number >= self.participating_rounds:
            return Nothing()
        if self.epsilon is None:
            return NonPrivate(self.what)
        return Gaussian(self.std / self.sensitivity, "example", self.relation, "local", declared=("labels",))

    def upload_spec(self, server: Params, examples: int, round_number: int) -> UploadSpec:
        leaves = {name: TensorSpec(shape, torch.float32) for name, shape in self.shapes.items()}
        return UploadSpec({**leaves, COUNTS: TensorSpec((self.model.rows,), torch.float64, (range(MAX_RECORDS + 1),))})

    def mean_spec(self, server: Params) -> MeanSpec:
        """The sum over clients. Every noised sum fits its range, so that rejections never depend on private data."""
        return MeanSpec("uniform", MAX_RECORDS * max(1.0, self.largest) + DEVIATIONS * self.std)

    def total(self, mean: Mean) -> tuple[Params, Tensor, float]:
        """(the sums over all clients, counts (R,), standard deviation of the noise in each entry)."""
        sums = tree.scale({k: v.double() for k, v in mean.value.items()}, mean.count)
        return sums, sums.pop(COUNTS).round(), self.std * math.sqrt(mean.count)

    def rows_of(self, data: Records) -> Tensor:
        """(N,): the row of labels of each record."""
        return label_rows(data.labels, self.model.labels)

    def deploy_sampler(self, name: str, params: Params, about: str) -> Deployed:
        """The model, the same for all clients and the server."""
        draw: Callable[[Tensor, torch.Generator], Tensor] = partial(self.model.draw, params)
        target = Target((self.model.denoiser(params),), self.model.abar)
        return Deployed({name: draw}, about=about, of_server=True, targets={"global": target})


def sum_by_row(values: Tensor, rows: Tensor, count: int) -> Tensor:
    """(count, width) in float64: the sum of values (N, width) over the records of each row of labels."""
    return torch.zeros(count, values.shape[1], dtype=torch.float64).index_add_(0, rows, values.double())
