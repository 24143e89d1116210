"""Federated DPDM: FedAvg on a denoiser whose clients train by DP-SGD.

Dockhorn, Cao, Vahdat & Kreis, TMLR 2023, arXiv 2210.09929; Abadi et al. 2016, arXiv 1607.00133.

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

DP-FETA (Li et al., IEEE S&P 2025, arXiv 2504.01395): `central` is what round 0 sends, `pretraining` the server's
training on pictures drawn from it, from which DP-SGD goes on. The steps have the smallest noise at which both releases,
which are of the same records, together keep to the budget.

Deviations: each client adds noise, so the mean update of M clients is noisier than DPDM's training on all records. The
moving average is the server's, over rounds. Optimiser and learning rate are those of the other methods; the client's
optimiser restarts in each round. EDM's levels on the timesteps of a schedule; no label dropout. Central images are
means over all records, at full resolution; DP-FETA's are means of Poisson samples, at half of it, sharpened and
distorted.
"""

from dataclasses import replace
from typing import Any, Literal

import torch

from raydiff import tree
from raydiff.data.records import Records
from raydiff.federated.method import LocalResult, Mean, MeanSpec, Metrics, Round
from raydiff.federated.upload_spec import UploadSpec
from raydiff.methods._averaging import Averaged
from raydiff.methods.sketch import Sketch
from raydiff.models.compute import device
from raydiff.models.d3pm import DiscreteDiffusion
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP
from raydiff.models.training import Training, fit, optimize
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
from raydiff.settings import Count, NonNegative, Positive, settings
from raydiff.tree import Params

DECLARED = ("examples",)
PENDING = "pending"  # leaf of the server's state until the central images have arrived
EACH = 1000  # pictures of each row of labels that the server trains on


@settings(frozen=True, kw_only=True)
class DPSGD(Averaged):
    """One shared denoiser, averaged after each round of private training.

    Raises:
        ValueError: If fields exclude each other, such as client-level privacy beside this one.

    Examples:
        >>> method = rd.DPSGD(epsilon=10.0, local=rd.Training(steps=200, batch=20))
        >>> round(method.mechanism(400).noise_multiplier, 2)
        0.72
    """

    model: DDPM | DiscreteDiffusion = DDPM()
    """Network and schedule."""
    local: Training = Training()
    """Each client's training, all rounds together; `batch` is the expected number of records in a step."""
    epsilon: accountants.Epsilon | None = 10.0
    """Privacy budget of one record, all rounds together; None: none, and no noise unless `noise_multiplier` says so."""
    delta: accountants.Delta = 1e-5
    """The delta that goes with it."""
    relation: Neighbours = "zero_out"
    """What the epsilon speaks of: a record that counts or not (zero_out), or one in another's place (replace_one)."""
    accountant: Literal["pld", "rdp"] = "pld"
    """Which bound turns the noise into an epsilon; rdp adds up to a tenth more noise, and has none for replace_one."""
    noise_multiplier: NonNegative | None = None
    """sigma. Default: the smallest within the budget; a given one must be too."""
    max_grad_norm: Positive = 1.0
    """C: L2 norm to which each record's gradient is clipped. A public number: never take it from private data."""
    multiplicity: Count = 1
    """K: draws (timestep and noise) over which a record's gradient is averaged before it is clipped."""
    central: Sketch | None = None
    """DP-FETA: what round 0 sends, with `moment` 0 class means alone. Its epsilon is a part of this one. None: DPDM."""
    pretraining: Training = Training(steps=1000, batch=50)
    """The server's, on pictures drawn from `central`."""

    def __post_init__(self) -> None:
        if (self.relation, self.accountant) == ("replace_one", "rdp"):
            raise ValueError("accountant must be pld with relation replace_one: rdp has no theorem for sampling there")
        self.local.refuse_epochs("local", "each step draws every record with a probability of its own")
        if self.averaging.moments != "reset":
            raise ValueError("averaging.moments must be reset: each round's steps begin anew")
        if self.averaging.privacy is not None:
            raise ValueError("averaging.privacy must be none: what clients send is private already")
        if isinstance(self.model, DDPM) and (self.model.compile or self.model.precision == "bfloat16"):
            raise ValueError("model must not be bfloat16 or compiled: torch.func has no gradients then")

    def check_records(self, records: Records) -> None:
        """Raises ValueError for a client with fewer records than its batch, or a sigma that breaks the budget."""
        self.mechanism(len(records))

    def mechanism(self, records: int) -> Mechanism:
        """What a client with this many records does. Raises ValueError as `check_records`."""
        before = (self.first.upload_event(records, 0),) if self.central else ()
        options: dict[str, Any] = {"relation": self.relation, "accountant": self.accountant, "before": before}
        budget = StepBudget(epsilon=self.epsilon, delta=self.delta, **options)
        batch = self.local.batch
        steps = max(1, self.local.steps)
        sigma = noise_multiplier(self.noise_multiplier, budget, batch=batch, records=records, steps=steps)
        return Mechanism(noise_multiplier=sigma, max_grad_norm=self.max_grad_norm, multiplicity=self.multiplicity)

    @property
    def first(self) -> Sketch:
        """The method of round 0, with `central`, for this model's pictures. Raises ValueError where it does not fit."""
        c = self.central
        if not c or c.center == "public" or c.refine or (c.delta, c.relation) != (self.delta, self.relation):
            raise ValueError("central must have the method's delta and relation, center grey or black, and refine 0")
        if self.rounds < 2 or not isinstance(self.model, DDPM):
            raise ValueError("rounds must be at least 2 with central, and model a DDPM")
        return replace(c, model=c.model.for_data(self.model.shape, self.model.labels))

    def steps(self, round_number: int, records: int) -> range:
        if self.central is None:
            return super().steps(round_number, records)
        return self.local.part(round_number - 1, self.rounds - 1) if round_number else range(0)

    def init_server(self, public: Records | None, rng: torch.Generator) -> Params:
        return {**super().init_server(public, rng), **({PENDING: torch.zeros(())} if self.central else {})}

    def local_update(self, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        """Train privately from the server's weights on the client's records; send the difference."""
        if self.central and rnd.number == 0:
            return self.first.local_update(self.first.init_server(None, rnd.rng), state, data, rnd)
        assert rnd.noise is not None  # A client's round always has a noise stream.
        if not (steps := self.steps(rnd.number, 0)):
            return LocalResult(state, nothing())
        mechanism = self.mechanism(len(data))
        training = replace(self.local, ema=0.0)
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

    def upload_event(self, records: int, round_number: int) -> Event:
        """The round's steps, each on a Poisson sample of the client's records; in round 0 the central images' sums."""
        if self.central and round_number == 0:
            return self.first.upload_event(records, round_number)
        if not (steps := len(self.steps(round_number, 0))):
            return Nothing()
        sigma = self.mechanism(records).noise_multiplier
        rate = sampling_rate(self.local.batch, records)
        return replace(event_of(sigma, self.relation, rate=rate, steps=steps), declared=DECLARED)

    def mean_spec(self, server: Params) -> MeanSpec:
        return self.first.mean_spec(server) if PENDING in server else super().mean_spec(server)

    def upload_spec(self, server: Params, examples: int, round_number: int) -> UploadSpec:
        if self.central and round_number == 0:
            return self.first.upload_spec(server, examples, round_number)
        sends = bool(self.steps(round_number, 0))
        return super().upload_spec(server, examples, round_number) if sends else UploadSpec()

    def aggregate(self, server: Params, uploads: Mean, rnd: Round) -> tuple[Params, Metrics, list[Event]]:
        """FedAvg's, or in round 0 the training on central images."""
        if self.central and rnd.number == 0:
            return self._pretrain(server, uploads, rnd), {}, []
        return super().aggregate(server, uploads, rnd)

    def _pretrain(self, server: Params, uploads: Mean, rnd: Round) -> Params:
        """The model, trained on pictures drawn from the central images' sums."""
        sums, _, _ = self.first.aggregate(self.first.init_server(None, rnd.rng), uploads, rnd)
        every = torch.cartesian_prod(*map(torch.arange, self.first.model.labels)).view(self.first.model.rows, -1)
        labels = every.repeat(EACH, 1)
        weights = {k: v for k, v in server.items() if k != PENDING}
        pictures = self.first.deploy(sums).sample(labels, rnd.rng)
        return fit(self.model, weights, pictures, labels, training=self.pretraining, rng=rnd.rng)[0]
