"""`Averaging`, the server's step along the clients' mean update, and `Averaged`, the base of FedAvg's family."""

import math
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Lt

from raydiff import tree
from raydiff.data.records import Records
from raydiff.federated.method import (
    SCRATCH,
    SERVER_ONLY,
    Deployed,
    LocalResult,
    Mean,
    MeanSpec,
    Method,
    Metrics,
    Round,
    Target,
    Weights,
)
from raydiff.federated.upload_spec import TensorSpec, UploadSpec, upload_spec_of
from raydiff.lookup import Door
from raydiff.models.classifier import Classifier
from raydiff.models.d3pm import DiscreteDiffusion
from raydiff.models.ddpm import DDPM
from raydiff.models.samplers import Sampling
from raydiff.models.training import Model, Training, fit
from raydiff.privacy.aggregate import BITS
from raydiff.privacy.client_level import ClientPrivacy
from raydiff.privacy.release import Event, NonPrivate, Release, disclose
from raydiff.settings import Count, Positive, settings
from raydiff.tree import Params, Tensors

MODELS: Door[type[Model]] = Door(
    "model", {"ddpm": DDPM, "classifier": Classifier, "discretediffusion": DiscreteDiffusion}, base=Model
)
AnyModel = Annotated[DDPM | Classifier | DiscreteDiffusion, MODELS]
"""What can be averaged: a denoiser of pictures, a classifier, a denoiser of a table's rows."""
MOMENTS = "moments"
SQUARES = "exp_avg_sq/"
"""A client's optimiser state, below this prefix: in the server's state where it is averaged, with roots in place of
AdamW's second moments, which the exact sum would round to 0; else below `SCRATCH`."""
AVERAGE = f"{SERVER_ONLY}/average"
UNPROTECTED_TEXT = "weights sent as they are"
MAX_UPDATE_RATIO = 64.0  # No update is expected to exceed the server's largest weight by this factor.
MAX_WEIGHT = 2**16  # A client with more records has proportionally less of the exact sum's range.
DEVIATIONS = 16.0  # No Gaussian draw ever exceeds this many standard deviations.


@settings(frozen=True, kw_only=True)
class Averaging:
    """How updates become the next model: their mean, a step along it, and what protects them.

    Steps are those of the optimisers of Reddi et al. 2021 (arXiv 2003.00295), with the mean update as gradient.

    Raises:
        ValueError: If fields exclude each other.

    Examples:
        >>> rd.FedAvg(averaging=rd.Averaging(update="adam", rate=0.01)).averaging.beta1
        0.9
    """

    weights: Weights = "examples"
    """Of the clients in the mean: examples, by their number of records; uniform, all the same."""
    update: Literal["mean", "momentum", "adam", "yogi"] = "mean"
    """mean: w + rate * mean; momentum: FedAvgM; adam: FedAdam; yogi: FedYogi."""
    rate: Positive = 1.0
    """The server's learning rate."""
    beta1: Annotated[float, Ge(0), Lt(1)] = 0.9
    """Decay of the first moment (momentum, adam and yogi)."""
    beta2: Annotated[float, Ge(0), Lt(1)] = 0.99
    """Decay of the second moment (adam and yogi)."""
    tau: Positive = 1e-3
    """Added to the root of the second moment (adam and yogi)."""
    moments: Literal["reset", "kept", "averaged"] = "reset"
    """A client's optimiser in its next round: reset begins anew, kept goes on; averaged starts from the mean of all
    clients' states, which are sent with the updates and make them up to three times as long."""
    privacy: ClientPrivacy | None = None
    """Client-level privacy of the updates (DP-FedAvg); None: they are sent as they are."""

    def __post_init__(self) -> None:
        if self.privacy is not None and self.privacy.trust != "local" and self.weights != "uniform":
            raise ValueError(f"weights must be uniform with privacy.trust = {self.privacy.trust}, got {self.weights}")
        if self.moments == "averaged" and (self.update != "mean" or self.rate != 1 or self.privacy is not None):
            raise ValueError("moments = averaged needs update = mean, rate = 1 and privacy = none")

    @property
    def secure_aggregation(self) -> bool:
        """Whether uploads are integers with shares of the noise, of which the server sees only the sum."""
        return self.privacy is not None and self.privacy.trust == "aggregate"

    def release(self, update: Params, rnd: Round, *, rounds: int) -> Release:
        """The release of a client's update, which takes over its tensors; a client sends at most `rounds` of them."""
        if self.privacy is None:
            return disclose(update, UNPROTECTED_TEXT, copy=False)
        assert rnd.noise is not None  # A client's round always has a noise stream.
        return self.privacy.release(update, rounds=rounds, noise=rnd.noise)

    def upload_event(self, *, rounds: int) -> Event:
        return NonPrivate(UNPROTECTED_TEXT) if self.privacy is None else self.privacy.upload_event(rounds)

    def upload_spec(self, before: Tensors) -> UploadSpec:
        """Shapes and types of an update of the parameters `before`."""
        if self.secure_aggregation:
            return UploadSpec({k: TensorSpec(tuple(v.shape), torch.int32) for k, v in before.items()})
        return upload_spec_of(before)

    def mean_spec(self, before: Tensors, *, rounds: int) -> MeanSpec:
        """How updates of the parameters `before` are averaged, and how large they may be."""
        if self.secure_aggregation:
            return MeanSpec("uniform", 2.0 ** (BITS - 1))
        if self.privacy is None:
            size = MAX_UPDATE_RATIO * max(1.0, tree.largest(before))
            size = size if math.isfinite(size) else MAX_UPDATE_RATIO  # No update of such a model is finite either.
        else:
            # Every clipped update fits, so that rejections never depend on private data.
            noise = self.privacy.std(rounds) if self.privacy.trust == "local" else 0.0
            size = self.privacy.clip + DEVIATIONS * noise
        return MeanSpec(self.weights, size * (MAX_WEIGHT if self.weights == "examples" else 1))

    def publish(self, mean: Mean, rnd: Round, *, rounds: int) -> tuple[Params, list[Event]]:
        """(the mean update to publish, the privacy events of publishing it)."""
        if self.privacy is None or self.privacy.trust == "local":
            return mean.value, []
        if self.privacy.trust == "aggregate":
            return self.privacy.decode(mean.value, count=mean.count, rounds=rounds), []
        assert rnd.noise is not None  # The server's round always has a noise stream.
        value, event = self.privacy.publish(mean.value, count=mean.count, rounds=rounds, noise=rnd.noise)
        return value, [event]

    def step(self, params: Params, mean: Params, moments: Params) -> tuple[Params, Params]:
        """(next parameters, next moments) from the mean update; `moments` are {} at first."""
        if self.update == "mean":
            return tree.add(params, mean if self.rate == 1 else tree.scale(mean, self.rate)), {}
        if self.update == "momentum":
            first = _decayed(tree.under("first", moments), mean, self.beta1, fraction=1.0)
            return tree.add(params, tree.scale(first, self.rate)), tree.prefixed("first", first)
        squares = {k: v * v for k, v in mean.items()}
        first = _decayed(tree.under("first", moments), mean, self.beta1, fraction=1 - self.beta1)
        before = tree.under("second", moments) or tree.scale(squares, 0.0)
        if self.update == "adam":
            second = _decayed(before, squares, self.beta2, fraction=1 - self.beta2)
        else:
            second = {k: before[k] - (1 - self.beta2) * v * (before[k] - v).sign() for k, v in squares.items()}
        moved = {k: v + self.rate * first[k] / (second[k].sqrt() + self.tau) for k, v in params.items()}
        return moved, {**tree.prefixed("first", first), **tree.prefixed("second", second)}


def _decayed(before: Params, value: Params, beta: float, *, fraction: float) -> Params:
    """beta * before + fraction * value; `before` is {} at first."""
    return {k: (beta * before[k] if before else 0) + fraction * v for k, v in value.items()}


@settings(frozen=True, kw_only=True)
class Averaged(Method):
    """A method whose server averages the clients' updates of one model. By itself it is FedAvg.

    The server's state is the model's parameters, `MOMENTS` where they are averaged, and below `SERVER_ONLY` its own
    optimiser's and the moving average (`local.ema`), which is its model after the last round. A client's state is its
    personal model, where it has one, and below `SCRATCH` what it needs in its next rounds.
    """

    model: AnyModel = DDPM()
    """What is trained: a denoiser, or a classifier of label column 0."""
    rounds: Count = 10
    """Communication rounds."""
    local: Training = Training()
    """Each client's training, all rounds together."""
    averaging: Averaging = Averaging()
    """The server's part of a round."""
    sampling: Sampling = Sampling()
    """The chain from T to 0."""

    @property
    def finetune(self) -> Training | None:
        """Training of the final model on the client's records before it samples; None: sample the shared model."""
        return None

    def steps(self, round_number: int, records: int) -> range:
        """The steps of `local` that a client with so many records takes in this round."""
        return self.local.of(records).part(round_number, self.rounds)

    @property
    def trained_model(self) -> AnyModel:
        return self.model

    @property
    def joining(self) -> Training:
        """`finetune`, by default 100 steps at a tenth of the learning rate (SPIRE's comparison, appendix B)."""
        rate = self.local.learning_rate / 10
        return self.finetune or replace(self.local, steps=100, epochs=None, learning_rate=rate, decay="constant")

    def shared(self, server: Params) -> Params:
        """The parameters of the model that all share."""
        return tree.without(MOMENTS, server)

    def join(self, server: Params, rng: torch.Generator) -> tuple[Params, Params]:
        return self.shared(server), {}

    def init_server(self, public: Records | None, rng: torch.Generator) -> Params:
        return self.with_moments(self.model.init(rng))

    def with_moments(self, weights: Params) -> Params:
        """These weights as a server's first state: with the moments of `local`'s optimiser where they are averaged."""
        if self.averaging.moments != "averaged":
            return weights
        names = {"adamw": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",) * (self.local.momentum > 0)}
        moments: Params = {}
        for name in names[self.local.optimizer]:
            moments |= tree.prefixed(name, tree.scale(weights, 0.0))
        if self.local.optimizer == "adamw":
            moments |= {f"step/{k}": torch.zeros(()) for k in weights}
        return {**weights, **tree.prefixed(MOMENTS, moments)}

    @property
    def accountant(self) -> str:
        return "exact" if self.averaging.privacy is None else self.averaging.privacy.accountant

    def local_update(self, server: Params, state: Params, data: Records, rnd: Round) -> LocalResult:
        """Gradient steps from the server's weights on the client's records; send the difference."""
        return self.send(server, *self.fit_round(server, state, data, rnd), state, rnd)

    def send(self, server: Params, w: Params, moments: Params, loss: float, state: Params, rnd: Round) -> LocalResult:
        """Send how far weights and averaged moments moved; keep `state` and the client's own moments."""
        mine = tree.prefixed(MOMENTS, moments)
        if self.averaging.moments == "averaged":
            shared = {k: mine.pop(k) for k in server if k in mine}
            w = {**w, **{k: v.sqrt() if SQUARES in k else v for k, v in shared.items()}}
        sent = self.averaging.release(tree.sub(w, server), rnd, rounds=self.rounds)
        kept = {**state, **tree.prefixed(SCRATCH, mine)} if mine else state  # A state that stays is not stored again.
        return LocalResult(kept, sent, {"train/loss": loss})

    def fit_round(
        self, server: Params, state: Params, data: Records, rnd: Round, *, start: Params | None = None, **more: Any
    ) -> tuple[Params, Params, float]:
        """(weights, moments, mean loss) after this round's steps of `local` from `start`.

        `start` is by default the server's weights; `more` are other arguments of `fit`.
        """
        moments = None
        if self.averaging.moments != "reset":
            shared = {k: v.square() if SQUARES in k else v for k, v in tree.under(MOMENTS, server).items()}
            moments = {**shared, **tree.under(f"{SCRATCH}/{MOMENTS}", state)}
        start = start or tree.without(MOMENTS, server)
        steps = self.steps(rnd.number, len(data))
        training = replace(self.local, ema=0.0)
        records = (data.images, data.labels)
        more = {"model": self.model, "moments": moments, "steps": steps, **more}
        return fit(more.pop("model"), start, *records, training=training, rng=rnd.rng, **more)

    def upload_event(self, records: int, round_number: int) -> Event:
        return self.averaging.upload_event(rounds=self.rounds)

    def upload_spec(self, server: Params, examples: int, round_number: int) -> UploadSpec:
        """An update of the parameters that clients see."""
        return self.averaging.upload_spec(tree.without(SERVER_ONLY, server))

    def mean_spec(self, server: Params) -> MeanSpec:
        return self.averaging.mean_spec(server, rounds=self.rounds)

    def aggregate(self, server: Params, uploads: Mean, rnd: Round) -> tuple[Params, Metrics, list[Event]]:
        """The server's optimiser takes one step along the clients' mean update."""
        mean, events = self.averaging.publish(uploads, rnd, rounds=self.rounds)
        moments = f"{SERVER_ONLY}/averaging"
        before = {k: server[k] for k in mean}
        if self.averaging.secure_aggregation:  # The decoded mean is float64.
            mean = {k: v.to(before[k].dtype) for k, v in mean.items()}
        after, moved = self.averaging.step(before, mean, tree.under(moments, server))
        metrics = {"server/update_norm": tree.norm(tree.without(MOMENTS, mean))}
        return self.with_average({**server, **after, **tree.prefixed(moments, moved)}, after, rnd), metrics, events

    def with_average(self, server: Params, weights: Params, rnd: Round) -> Params:
        """The server's state with the moving average of these leaves of it, which become it in the last round."""
        last = rnd.number == self.rounds - 1
        if self.local.ema:
            before = tree.under(AVERAGE, server) or weights
            kept = self.local.ema_weight(rnd.number + 1)
            average = {k: torch.lerp(v, before[k], kept) for k, v in weights.items()}
            server = {**server, **(average if last else tree.prefixed(AVERAGE, average))}
        return tree.without(MOMENTS, tree.without(AVERAGE, server)) if last else server

    def personalize(self, server: Params, state: Params, data: Records, rng: torch.Generator) -> Params:
        """The shared model, fine-tuned if `finetune` says so; an unseen client has a personal model already."""
        if self.finetune is None or tree.without(SCRATCH, state):
            return state
        return fit(self.model, self.shared(server), data.images, data.labels, training=self.finetune, rng=rng)[0]

    def deploy(self, server: Params, state: Params | None = None) -> Deployed:
        """The client's personal model where it has one, else the shared model."""
        personal = tree.without(SCRATCH, state or {})
        return deploy_model(self.model, self.sampling, shared=self.shared(server), personal=personal or None)


@settings(frozen=True, kw_only=True)
class FineTuned(Averaged):
    """A method whose final model a client may fine-tune before it samples."""

    finetune: Training | None = None
    """Training of the final model on the client's records before it samples; None: sample the shared model."""
    pretrain: Training | None = None
    """Training of the first model on the public records (Nguyen et al. 2022, arXiv 2206.15387); None: random."""

    def init_server(self, public: Records | None, rng: torch.Generator) -> Params:
        """Random weights, or those of `pretrain`."""
        start = super().init_server(public, rng)
        if self.pretrain is None:
            return start
        weights = tree.without(MOMENTS, start)
        if public is None or not len(public):
            raise ValueError("pretrain must be none where there are no public records: data.public is 0")
        fitted, _, _ = fit(self.model, weights, public.images, public.labels, training=self.pretrain, rng=rng)
        return {**start, **fitted}


def deploy_model(model: AnyModel, sampling: Sampling, *, shared: Params | None, personal: Params | None) -> Deployed:
    """The personal model, or without one the shared one, ready to sample or to classify.

    An attack may query both denoisers of pictures. Table models have a chain of their own in place of `sampling`.
    """
    params = shared if personal is None else personal
    whose = "the shared model" if personal is None else "a client's model"
    assert params is not None
    if isinstance(model, Classifier):
        return Deployed(classify=model.classify(params))
    if isinstance(model, DiscreteDiffusion):
        rows = {"ancestral": model.sampler(params)}
        return Deployed(rows, conditional=model.conditional, about=f"rows of {whose}", of_server=personal is None)
    both = {"global": shared, "client": personal}
    targets = {name: Target((model.denoiser(p),), model.abar) for name, p in both.items() if p is not None}
    samplers = sampling.samplers(model, targets["global" if personal is None else "client"].denoisers[0])
    return Deployed(
        samplers,
        conditional=model.conditional,
        about=f"images of {whose}",
        of_server=personal is None,
        targets=targets,
    )
