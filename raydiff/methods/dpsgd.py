"""Federated DPDM: FedAvg on a denoiser whose clients train by DP-SGD (Dockhorn, Cao, Vahdat & Kreis, TMLR 2023, arXiv
2210.09929; Abadi et al. 2016, arXiv 1607.00133).

Adversary: the server, and whoever sees what it computes (local trust). It has the number of each client's records, the
seed and all parameters, but neither the noise secret nor which records a step draws. Unit: one record with its labels,
counted or not while their number stays (zero-out), or replaced by another (replace-one, as in PFDM). Not covered: that
a training diverged, which ends the trial.

| DPDM | here |
|---|---|
| epsilon, delta | budget of all rounds together, for each client's records |
| sigma_DP | `noise_multiplier`; else the smallest that keeps to the budget, for each client by its number of records |
| C | `max_grad_norm` |
| K, noise multiplicity | `multiplicity` |
| B, expected batch | `local.batch`: each record is drawn with probability B / n; elsewhere B are, with replacement |
| EMA | `local.ema` |

Deviations: each client adds noise, so the mean update of M clients is noisier than DPDM's training on all records. The
moving average is the server's, over rounds, weighted by their steps. Optimiser and learning rate are those of the other
methods; the client's optimiser restarts in each round. DDPM in place of EDM; no label dropout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from raydiff import tree
from raydiff.data.records import Records
from raydiff.federated.method import LocalResult, Round
from raydiff.federated.upload_spec import UploadSpec
from raydiff.lookup import check_one_of
from raydiff.methods._averaging import Averaged
from raydiff.models.d3pm import DiscreteDiffusion
from raydiff.models.ddpm import DDPM, device
from raydiff.models.networks import MLP
from raydiff.models.training import Training, optimize
from raydiff.privacy import accountants
from raydiff.privacy.private_gradient import (
    Mechanism,
    Neighbours,
    PrivateGradient,
    StepBudget,
    event_of,
    noise_multiplier,
    sampling_rate,
)
from raydiff.privacy.release import Event, Nothing, already_private, nothing
from raydiff.tree import Params

DECLARED = ("examples",)


@dataclass(frozen=True, kw_only=True)
class DPSGD(Averaged):
    """One shared denoiser, averaged after each round of private training."""

    model: DDPM | DiscreteDiffusion = DDPM()
    """Network and schedule."""
    local: Training = Training()
    """Each client's training, all rounds together; `batch` is the expected number of records in a step."""
    epsilon: float | None = 10.0
    """Privacy budget of one record, all rounds together; None: none, and no noise unless `noise_multiplier` says so."""
    delta: float = 1e-5
    """The delta that goes with it."""
    relation: Neighbours = "zero_out"
    """What the epsilon speaks of: a record that counts or not (zero_out), or one in another's place (replace_one)."""
    accountant: Literal["pld", "rdp"] = "pld"
    """Which bound turns the noise into an epsilon; rdp adds up to a tenth more noise, and has none for replace_one."""
    noise_multiplier: float | None = None
    """sigma. Default: the smallest within the budget; a given one must be too."""
    max_grad_norm: float = 1.0
    """C: L2 norm to which each record's gradient is clipped. A public number: never take it from private data."""
    multiplicity: int = 1
    """K: draws (timestep and noise) over which a record's gradient is averaged before it is clipped."""

    def __post_init__(self) -> None:
        super().__post_init__()
        accountants.check_budget(1.0 if self.epsilon is None else self.epsilon, self.delta)
        check_one_of("relation", self.relation, get_args(Neighbours))
        check_one_of("accountant", self.accountant, ("pld", "rdp"))
        if (self.relation, self.accountant) == ("replace_one", "rdp"):
            raise ValueError("accountant must be pld with relation replace_one: rdp has no theorem for sampling there")
        self.local.refuse_epochs("local", "each step draws every record with a probability of its own")
        self._mechanism(self.noise_multiplier or 0.0)
        if self.averaging.moments != "reset":
            raise ValueError("averaging.moments must be reset: each round's steps begin anew")
        if self.averaging.privacy is not None:
            raise ValueError("averaging.privacy must be none: what clients send is private already")
        if self.averaging.max_update_norm is not None:
            raise ValueError("averaging.max_update_norm must be none: gradients are clipped, and the rest is noise")
        if isinstance(self.model, DDPM) and (self.model.compile or self.model.precision == "bfloat16"):
            raise ValueError("model must not be bfloat16 or compiled: torch.func has no gradients then")

    def check_records(self, records: Records) -> None:
        """Raises ValueError for a client with fewer records than its batch, or a sigma that breaks the budget."""
        self.mechanism(len(records))

    def mechanism(self, records: int) -> Mechanism:
        """What a client with this many records does. Raises ValueError as `check_records`."""
        budget = StepBudget(epsilon=self.epsilon, delta=self.delta, relation=self.relation, accountant=self.accountant)
        batch, steps = self.local.batch, max(1, self.local.steps)
        sigma = noise_multiplier(self.noise_multiplier, budget, batch=batch, records=records, steps=steps)
        return self._mechanism(sigma)

    def local_update(self, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        """Train privately from the server's weights on the client's records; send the difference."""
        assert rnd.noise is not None  # A client's round always has a noise stream.
        if not (steps := self.steps(rnd.number, 0)):
            return LocalResult(state, nothing())
        mechanism, training = self.mechanism(len(data)), replace(self.local, ema=0.0)
        gradient = PrivateGradient(
            self.model.loss,
            data.images.to(device()),
            data.labels.to(device()),
            draws=self.model.draws,
            mechanism=mechanism,
            batch=self.local.batch,
            rng=rnd.rng,
            noise=rnd.noise,
            relation=self.relation,
            by_layers=isinstance(self.model, DDPM) and isinstance(self.model.network, MLP),
        )
        params, _, loss = optimize(server, gradient, training=training, steps=steps)
        sent = already_private(tree.sub(params, server), replace(gradient.event, declared=DECLARED))
        metrics = {"train/loss": loss, "upload/noise_multiplier": mechanism.noise_multiplier}
        return LocalResult(state, sent, metrics)

    def upload_event(self, records: int, number: int) -> Event:
        """The round's steps, each on a Poisson sample of the client's records."""
        if not (steps := len(self.steps(number, 0))):
            return Nothing()
        sigma, rate = self.mechanism(records).noise_multiplier, sampling_rate(self.local.batch, records)
        return replace(event_of(sigma, self.relation, rate=rate, steps=steps), declared=DECLARED)

    def upload_spec(self, server: Params, examples: int, number: int) -> UploadSpec:
        sends = bool(self.steps(number, 0))
        return super().upload_spec(server, examples, number) if sends else UploadSpec()

    def _mechanism(self, sigma: float) -> Mechanism:
        return Mechanism(noise_multiplier=sigma, max_grad_norm=self.max_grad_norm, multiplicity=self.multiplicity)
