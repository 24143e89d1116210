"""DP-SGD (Abadi et al. 2016, arXiv 1607.00133) with DPDM's noise multiplicity (Dockhorn et al., TMLR 2023).

In each step every record is drawn independently with probability q (Poisson sampling). A record's gradient, averaged
over K draws of the loss's randomness, is clipped to norm C over all parameters together. The sum over the drawn records
gets noise of standard deviation sigma C and is divided by the expected batch, q n. What is computed from these
gradients (Adam, averages) is post-processing.

The number of records n, and with it q, is public and fixed. For every K a record adds a vector of norm C at most: the
draws in its loss, which need not be secret, are keyed by the record itself, and its gradient depends on no other
record. So the sum moves by C at most under zero-out, by 2 C under replace-one. It is made in float64: rounding moves
that of 100,000 records by 2e-6 C at most, for which the clip leaves room (`release.ROUNDING`). No clip bounds that of a
float32 sum (Casacuberta et al., CCS 2022, arXiv 2207.10635). Under add-remove q would change, so it is not offered.
Amplification by sampling holds against those who do not see which records are drawn: like the noise, the sample comes
from the secret stream.

Opacus is not used: its hooks give wrong gradients for a UNet with attention, its norms are plain float32 sums, and its
noise comes from a torch generator, which on a CPU keeps 32 bits of its seed.

Shapes: n records, B of them drawn in a step, K draws for each; images (n, C, H, W), labels (n, columns).
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from raydiff import seeding, tree
from raydiff.formats import rounding
from raydiff.lookup import check_value
from raydiff.privacy import accountants, ghost_clipping, grid
from raydiff.privacy.ghost_clipping import Outer, PerRecord
from raydiff.privacy.release import ROUNDING, Event, Gaussian
from raydiff.seeding import NoiseStream
from raydiff.tree import Params

Loss = Callable[[Params, tuple[Tensor, Tensor], Params, Params], Tensor]
"""loss(params, (images, labels), draws, extras): the mean over a batch, a pure function of tensors."""
Draws = Callable[[int, torch.Generator], Params]
"""(count, rng) -> the random part of the loss of `count` records: leaves (count, ...)."""
Neighbours = Literal["zero_out", "replace_one"]
"""Neighbouring relations with a guarantee."""

FLOATS = 2**25  # entries of per-record gradients in memory at once: 128 MiB
ON_A_GPU = 8  # records per piece on a GPU, at least: it would be idle with one
EXAMPLES = 256  # records times draws in one forward pass


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """Clipping and noise of a step."""

    noise_multiplier: float = 1.0  # sigma: the noise's standard deviation over the clip norm
    max_grad_norm: float = 1.0  # C: L2 norm to which each record's gradient is clipped; a public number
    multiplicity: int = 1  # K: draws over which a record's gradient is averaged before it is clipped


@dataclass(eq=False, repr=False)
class PrivateGradient:
    """The noised gradients of a loss on one client's records, and the privacy event of all steps so far."""

    loss: Loss
    images: Tensor  # (n, C, H, W); gradients are computed on their device
    labels: Tensor  # (n, columns)
    _: KW_ONLY
    draws: Draws
    mechanism: Mechanism
    batch: int  # expected number of records in a step, n at most
    rng: InitVar[torch.Generator]  # for the loss's draws, which need not be secret
    noise: NoiseStream  # for the sample and the noise
    relation: Neighbours = "zero_out"
    by_layers: bool = False  # ghost clipping where K = 1, for a loss and a network that `ghost_clipping` supports

    def __post_init__(self, rng: torch.Generator) -> None:
        self.by_layers &= self.mechanism.multiplicity == 1  # A sum over draws is no outer product.
        self.rate = sampling_rate(self.batch, len(self.images))
        self.steps = 0
        self._seed = int(torch.randint(2**62, (1,), generator=rng))
        self._hashes: dict[int, str] = {}  # of the records drawn so far

    def __call__(self, theta: Params) -> tuple[Params, Tensor]:
        """Return the next step's noised gradient over q n, and its loss sum_i loss_i / (q n), which is not private."""
        theta = {k: theta[k].detach() for k in sorted(theta)}  # a fixed order of the noise
        drawn = self.noise.generator("sample", self.steps).random(len(self.images)) < self.rate
        total, loss = self._clipped_sum(theta, np.flatnonzero(drawn).tolist())
        z = self._normal(theta)
        std = self.mechanism.noise_multiplier * self.mechanism.max_grad_norm
        self.steps += 1
        noisy = {k: grid.add_noise_on_grid(v, z[k], std=std) / self.batch for k, v in total.items()}
        return {k: v.to(theta[k].dtype) for k, v in noisy.items()}, loss / self.batch

    @property
    def event(self) -> Gaussian:
        """The event of all steps so far. Raises ValueError before the first."""
        return event_of(self.mechanism.noise_multiplier, self.relation, rate=self.rate, steps=self.steps)

    def _clipped_sum(self, theta: Params, rows: list[int]) -> tuple[Params, Tensor]:
        """(sum of clipped gradients, sum of losses) over these records, in pieces."""
        total = {k: torch.zeros_like(v, dtype=torch.float64) for k, v in theta.items()}
        loss = torch.zeros((), device=self.images.device)
        count = sum(v.numel() for v in theta.values())
        keys = self._keys(rows)
        piece = EXAMPLES
        if not self.by_layers:
            room = max(ON_A_GPU if self.images.is_cuda else 1, FLOATS // count)
            piece = max(1, min(room, EXAMPLES // self.mechanism.multiplicity))
        for start in range(0, len(rows), piece):
            some = rows[start : start + piece]
            batch = (self.images[some], self.labels[some])
            draws = self._draw(keys[start : start + piece])
            of_records = ghost_clipping.gradient_factors if self.by_layers else per_record
            gradients, losses = of_records(self.loss, theta, batch, draws)
            loss += losses.sum()
            for k, v in sum_clipped(gradients, self.mechanism.max_grad_norm).items():
                total[k] += v
        return total, loss

    def _keys(self, rows: list[int]) -> list[tuple[str, int]]:
        """The key of each record's draws: its hash and its number among equals, so no removal changes other draws."""
        if new := [row for row in rows if row not in self._hashes]:
            both = zip(tree.digests(self.images[new]), tree.digests(self.labels[new]), strict=True)
            self._hashes |= {row: image + label for row, (image, label) in zip(new, both, strict=True)}
        seen: Counter[str] = Counter()
        keys = []
        for record in (self._hashes[row] for row in rows):
            keys.append((record, seen[record]))
            seen[record] += 1
        return keys

    def _draw(self, keys: Sequence[tuple[str, int]]) -> Params:
        """(B, K, ...) each, every record from its own stream."""
        streams = (seeding.generator(self._seed, self.steps, *key) for key in keys)
        each = [self.draws(self.mechanism.multiplicity, stream) for stream in streams]
        return {k: torch.stack([d[k] for d in each]).to(self.images.device) for k in each[0]}

    def _normal(self, theta: Params) -> Params:
        sizes = [v.numel() for v in theta.values()]
        parts = self.noise.many_normal(sum(sizes), "noise", self.steps).to(self.images.device).split(sizes)
        return {k: part.view_as(v) for (k, v), part in zip(theta.items(), parts, strict=True)}


def per_record(loss: Loss, theta: Params, batch: tuple[Tensor, Tensor], draws: Params) -> tuple[PerRecord, Tensor]:
    """Return gradients (B, ...) and losses (B,) of a batch's records, each the mean over its draws (B, K, ...)."""

    def of_one(theta: Params, record: tuple[Tensor, Tensor], draws: Params) -> Tensor:
        count = len(next(iter(draws.values())))
        image, labels = (v.expand(count, *v.shape) for v in record)
        return loss(theta, (image, labels), draws, {})

    with torch.no_grad():  # a network that is built on its first call must not be built inside vmap
        of_one(theta, (batch[0][0], batch[1][0]), {k: v[0] for k, v in draws.items()})
    gradients, losses = torch.func.vmap(torch.func.grad_and_value(of_one), in_dims=(None, 0, 0))(theta, batch, draws)
    return gradients, losses


def sum_clipped(gradients: PerRecord, clip: float) -> Params:
    """Return sum_i g_i min(1, C / ||g_i||) over leaves (B, ...), in float64, the norm over all leaves together.

    A gradient that is not finite counts as 0, since clipping does not bound it.
    """
    each = {k: v.norms() if isinstance(v, Outer) else tree.norms(v) for k, v in gradients.items()}
    norms = torch.stack(list(each.values())).norm(dim=0)
    bounded = norms.isfinite()
    if not bounded.all():
        gradients = {k: v.rows(bounded) if isinstance(v, Outer) else v[bounded] for k, v in gradients.items()}
        norms = norms[bounded]
    factors = tree.clip_factors(norms, clip * (1 - ROUNDING), torch.float64)
    return {
        k: v.weighted(factors) if isinstance(v, Outer) else torch.tensordot(factors, v.double(), dims=1)
        for k, v in gradients.items()
    }


def sampling_rate(batch: int, records: int) -> float:
    """Return q = batch / n. Raises ValueError for a batch larger than the client's number of records."""
    check_value("batch", batch, 1 <= batch <= records, f"in 1..{records} (the client's number of records)")
    return batch / records


def event_of(sigma: float, relation: Neighbours, *, rate: float, steps: int) -> Gaussian:
    """Return the event of so many steps: the sum's sensitivity is C under zero_out and 2 C under replace_one."""
    return Gaussian(sigma / 2 if relation == "replace_one" else sigma, "example", relation, "local", rate, steps)


@dataclass(frozen=True, kw_only=True)
class StepBudget:
    """Target epsilon of all steps together."""

    epsilon: float | None  # none: no budget
    delta: float
    relation: Neighbours = "zero_out"
    accountant: str = "pld"
    before: tuple[Event, ...] = ()  # of what the same records have released before the first step

    def spent(self, sigma: float, *, rate: float, steps: int) -> float:
        """Return the epsilon of so many steps and of what came before."""
        event = event_of(sigma, self.relation, rate=rate, steps=steps)
        return accountants.epsilon_of([*self.before, event], self.delta, self.accountant)


def noise_multiplier(sigma: float | None, budget: StepBudget, *, batch: int, records: int, steps: int) -> float:
    """Return a client's sigma: `sigma`, or the smallest that keeps to the budget; 0 without either.

    Raises ValueError for a sigma that breaks the budget, and a batch larger than the records.
    """
    rate = sampling_rate(batch, records)
    if budget.epsilon is None:
        return sigma or 0.0
    if sigma is None:
        return noise_multiplier_for(budget, sampling_rate=rate, steps=steps)
    epsilon = budget.spent(sigma, rate=rate, steps=steps)
    if epsilon > budget.epsilon:
        needed = noise_multiplier_for(budget, sampling_rate=rate, steps=steps)
        raise ValueError(
            f"noise_multiplier = {sigma:g} spends epsilon {rounding.up(epsilon, 3)} > {budget.epsilon:g} on a client's "
            f"{records} records: it must be at least {math.ceil(1000 * needed) / 1000:g}"
        )
    return sigma


@functools.lru_cache(maxsize=2**12)
def noise_multiplier_for(budget: StepBudget, *, sampling_rate: float, steps: int) -> float:
    """Return the smallest sigma, to within a relative 1e-4, whose steps keep to the budget; 0 without a finite one."""
    from scipy.optimize import brentq

    epsilon = math.inf if budget.epsilon is None else budget.epsilon
    if epsilon == math.inf:
        return 0.0
    if (before := accountants.epsilon_of(budget.before, budget.delta, budget.accountant)) >= epsilon:
        raise ValueError(f"what comes before the steps spends epsilon {before:.3g} of {epsilon:g}: give it less")

    def excess(log_sigma: float) -> float:
        return budget.spent(math.exp(log_sigma), rate=sampling_rate, steps=steps) - epsilon

    low = high = 0.0
    while excess(high) > 0:
        low = high
        high = high + 1.0
    while excess(low) <= 0:
        low, high = low - 1.0, low
    root = float(brentq(excess, low, high, xtol=1e-5))
    return math.exp(root if excess(root) <= 0 else root + 5e-5)
