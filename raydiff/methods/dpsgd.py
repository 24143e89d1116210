"""Federated DPDM: FedAvg on a denoiser whose clients train by DP-SGD (Dockhorn, Cao, Vahdat & Kreis, TMLR 2023, arXiv
2210.09929; Abadi et al. 2016, arXiv 1607.00133).

Adversary: the server, and so whoever sees what it makes of the uploads (local trust). It knows the number of each
client's records, the seed and all parameters; not the noise secret, nor which records a step draws. Unit: one record,
its image and its labels, counted or not while their number stays (zero-out). Not covered: that a training diverged,
which ends the trial.

| DPDM | here |
|---|---|
| epsilon, delta | budget of all rounds together, for each client's records |
| sigma_DP | `noise_multiplier`; else the smallest that keeps to the budget, for each client by its number of records |
| C | `max_grad_norm` |
| K, noise multiplicity | `multiplicity` |
| B, expected batch | `local.batch`: each record is drawn with probability B / n; elsewhere B are, with replacement |
| EMA | `ema` |

Deviations: each client adds noise for itself, so that the mean update of M clients is noisier than in DPDM's training
of one model on all records. What is sent in a round is the difference of the weights after its last step; the moving
average is the server's, over rounds, each round's model counting as often as the round has steps. Optimiser and
learning rate are those of the other methods, the client's optimiser starts anew in each round. DDPM in place of EDM; no
label dropout. A client that takes part in fewer rounds spends less than the budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Generator

from raydiff import tree
from raydiff.data.records import Records
from raydiff.federated.method import HELD, Deployed, LocalResult, Metrics, Round, Shared, Upload
from raydiff.methods._averaging import Averaged, Averaging, deployed
from raydiff.models.d3pm import DiscreteDiffusion
from raydiff.models.ddpm import DDPM, Sampling, device
from raydiff.models.networks import UNet
from raydiff.models.training import Training, optimize, span
from raydiff.privacy import accountants
from raydiff.privacy.dpsgd import Mechanism, PrivateGradient, noise_multiplier_for, sampling_rate
from raydiff.privacy.release import Event, Gaussian, Nothing, already_private, nothing
from raydiff.tree import Params

DECLARED = ("examples",)
EMA = "ema"
"""The moving average, in the server's state below this prefix."""


@dataclass(frozen=True, kw_only=True)
class DPSGD(Averaged):
    """One shared denoiser, averaged after each round of private training."""

    model: DDPM | DiscreteDiffusion = DDPM()
    """Network and schedule."""
    rounds: int = 10
    """Communication rounds."""
    local: Training = Training()
    """Each client's training, all rounds together; `batch` is the expected number of records in a step."""
    epsilon: float | None = 10.0
    """Privacy budget of one record, all rounds together; None: none, and no noise unless `noise_multiplier` says so."""
    delta: float = 1e-5
    """The delta that goes with it."""
    noise_multiplier: float | None = None
    """sigma. Default: the smallest within the budget; a given one must be too."""
    max_grad_norm: float = 1.0
    """C: L2 norm to which each record's gradient is clipped. A public number: never take it from private data."""
    multiplicity: int = 1
    """K: draws (timestep and noise) over which a record's gradient is averaged before it is clipped."""
    ema: float = 0.0
    """Decay per step of the average of the rounds' models that is sampled; 0: the last round's model."""
    averaging: Averaging = Averaging()
    """The server's part of a round."""
    sampling: Sampling = Sampling()
    """The chain from T to 0."""

    accountant: ClassVar[str] = "rdp"

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"rounds must be at least 1, got {self.rounds}")
        accountants.check_budget(1.0 if self.epsilon is None else self.epsilon, self.delta)
        self._mechanism(self.noise_multiplier or 0.0)
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema must be in [0, 1), got {self.ema}")
        if self.averaging.privacy is not None:
            raise ValueError("averaging.privacy must be none: what clients send is private already")
        if self.averaging.max_update_norm is not None:
            raise ValueError("averaging.max_update_norm must be none: gradients are clipped, and the rest is noise")
        if isinstance(self.model, DDPM) and (self.model.compile or self.model.precision != "float32"):
            raise ValueError("model must have precision float32 and compile false: torch.func has no gradients else")
        if isinstance(self.model, DDPM) and isinstance(self.model.network, UNet) and self.model.network.channels_last:
            raise ValueError("model.network.channels_last must be false: torch.func has one layout of pictures only")

    def check_records(self, records: Records) -> None:
        """Raises ValueError for a client with fewer records than its batch, or a given sigma that breaks the budget."""
        self._check(len(records))

    def _check(self, records: int) -> None:
        rate, sigma = sampling_rate(self.local.batch, records), self.noise_multiplier
        if self.epsilon is None or sigma is None:
            return
        event = Gaussian(sigma, "example", "zero_out", "local", rate, max(1, self.local.steps))
        if (spent := accountants.rdp([event], self.delta)) > self.epsilon:
            raise ValueError(
                f"noise_multiplier = {sigma:g} spends epsilon {spent:.4g} > {self.epsilon:g} on a client's "
                f"{records} records: it must be at least {math.ceil(1000 * self._needed(records)) / 1000:g}"
            )

    def mechanism(self, records: int) -> Mechanism:
        """What a client with this many records does. Raises ValueError as `check_records`."""
        self._check(records)
        sigma = self.noise_multiplier
        if sigma is None:
            sigma = 0.0 if self.epsilon is None else self._needed(records)
        return self._mechanism(sigma)

    def local_update(self, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        """Train privately from the server's weights on the client's records; send the difference."""
        assert rnd.noise is not None  # a client always has some
        first, steps = span(self.local.steps, self.rounds, rnd.number)
        if steps == 0:
            return LocalResult(state, nothing())
        weights, mechanism = tree.without(EMA, server), self.mechanism(len(data))
        gradient = PrivateGradient(
            self.model.loss,
            data.images.to(device()),
            data.labels.to(device()),
            draws=self.model.draws,
            mechanism=mechanism,
            batch=self.local.batch,
            rng=rnd.rng,
            noise=rnd.noise,
        )
        params, _, loss = optimize(weights, gradient, training=self.local, first=first, steps=steps)
        event = replace(gradient.event, declared=DECLARED)
        metrics = {"train/loss": loss, "upload/noise_multiplier": mechanism.noise_multiplier}
        return LocalResult(state, already_private(tree.sub(params, weights), event), metrics)

    def upload_event(self, records: int, number: int) -> Event:
        """The round's steps, each on a Poisson sample of the client's records."""
        _, steps = span(self.local.steps, self.rounds, number)
        sigma, rate = self.mechanism(records).noise_multiplier, sampling_rate(self.local.batch, records)
        return Gaussian(sigma, "example", "zero_out", "local", rate, steps, DECLARED) if steps else Nothing()

    def updated(self, server: Params, number: int) -> Params:
        """The model, in a round that has steps."""
        _, steps = span(self.local.steps, self.rounds, number)
        return tree.without(EMA, super().updated(server, number)) if steps else {}

    def aggregate(self, server: Params, uploads: Iterable[Upload], rnd: Round) -> tuple[Params, Metrics, list[Event]]:
        """FedAvg's, and the moving average: bias-corrected, so that it starts as the first round's model."""
        after, metrics, events = super().aggregate(server, uploads, rnd)
        first, steps = span(self.local.steps, self.rounds, rnd.number)
        if self.ema and steps:
            share = (1 - self.ema**steps) / (1 - self.ema ** (first + steps))
            now = tree.without(EMA, tree.without(HELD, after))
            mean = tree.under(EMA, after) or now
            moved = {k: v + share * (now[k] - v) for k, v in mean.items()}
            after = {**after, **tree.prefixed(EMA, moved)}
        return after, metrics, events

    def join(self, server: Params, rng: Generator) -> tuple[Params, Params]:
        """All of the shared model, or of its moving average."""
        return self._sampled(server), {}

    def deploy(self, server: Params, state: Params, data: Records, rng: Generator) -> Deployed:
        """Sample the shared model, or its moving average; or what a client that joined later has made of it."""
        return deployed(self.model, self.sampling, shared=self._sampled(server), own=tree.without(HELD, state) or None)

    def shared(self, server: Params) -> Shared:
        """The shared model, or its moving average."""
        return super().shared(self._sampled(server))

    def _sampled(self, server: Params) -> Params:
        return tree.under(EMA, server) or server

    def _mechanism(self, sigma: float) -> Mechanism:
        return Mechanism(noise_multiplier=sigma, max_grad_norm=self.max_grad_norm, multiplicity=self.multiplicity)

    def _needed(self, records: int) -> float:
        """The smallest sigma that keeps to the budget of a client with this many records."""
        assert self.epsilon is not None
        rate, steps = sampling_rate(self.local.batch, records), max(1, self.local.steps)
        return noise_multiplier_for(epsilon=self.epsilon, delta=self.delta, sampling_rate=rate, steps=steps)
