"""Plain optimisation of a model's loss on one data set: the loop that every method's training goes through."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from raydiff import tree
from raydiff.models.ddpm import DDPM, device
from raydiff.tree import Params

Objective = Callable[[Params, tuple[Tensor, Tensor], Params, Params], Tensor]
"""loss(params, (x, labels), draws, extras): a pure function of tensors; extras are constants of this client."""

Gradient = Callable[[Params], tuple[Params, Tensor]]
"""theta -> (its gradient, loss) in one step, whose batch and draws are its own: other ones at each call."""

Optimizer = Literal["adamw", "sgd"]
Decay = Literal["cosine", "constant"]

CHECK_EVERY = 50  # The loss is looked at after so many steps, for each look waits for the accelerator.


class Model(Protocol):
    """What can be trained: a denoiser, a classifier."""

    def init(self, rng: torch.Generator) -> Params:
        """Fresh parameters."""

    def draws(self, count: int, rng: torch.Generator) -> Params:
        """The random part of one step on a batch of `count`, the batch apart."""

    def loss(self, params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        """Of images (B, C, H, W) and labels (B, K): a number."""


class Diverged(RuntimeError):
    """The loss became NaN or infinite. The federation adds the client's name."""

    def __init__(self, step: int, loss: float) -> None:
        super().__init__(step, loss)
        self.step, self.loss = step, loss

    def __str__(self) -> str:
        return f"the loss became {self.loss} at step {self.step}"


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a model is trained: batches drawn with replacement, an optimiser, a learning rate over time."""

    steps: int = 1000
    """Optimisation steps in all."""
    batch: int = 64
    """Records per step."""
    learning_rate: float = 2e-3
    """Initial learning rate."""
    weight_decay: float = 0.0
    """Decoupled weight decay of adamw; sgd has none."""
    optimizer: Optimizer = "adamw"
    """adamw, or sgd without momentum."""
    decay: Decay = "cosine"
    """Of the learning rate over all steps: to zero along a cosine, or constant."""

    def __post_init__(self) -> None:
        if self.steps < 0 or self.batch < 1:
            raise ValueError(f"steps must be >= 0 and batch >= 1, got {self.steps} and {self.batch}")
        if not (self.learning_rate > 0 and math.isfinite(self.learning_rate)):
            raise ValueError(f"learning_rate must be a positive number, got {self.learning_rate}")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay must be >= 0, got {self.weight_decay}")
        if self.optimizer not in get_args(Optimizer):
            raise ValueError(f"optimizer must be one of {', '.join(get_args(Optimizer))}, got {self.optimizer!r}")
        if self.decay not in get_args(Decay):
            raise ValueError(f"decay must be one of {', '.join(get_args(Decay))}, got {self.decay!r}")
        if self.optimizer == "sgd" and self.weight_decay:
            raise ValueError(f"weight_decay must be 0 with optimizer sgd, got {self.weight_decay}")

    def rate(self, step: int) -> float:
        """The learning rate of step 0 .. steps - 1."""
        if self.decay == "constant":
            return self.learning_rate
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, step / max(self.steps, 1))))

    def part(self, number: int, of: int) -> range:
        """The steps of part 0 .. of - 1 of this training, as even as can be."""
        return range(self.steps * number // of, self.steps * (number + 1) // of)


Fitted = tuple[Params, Params, float]
"""(parameters, the optimiser's state, mean loss)."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What `fit` is asked for: at least one step on at least one record."""

    model: Model
    """What is trained."""
    params: Params
    """Where its parameters start."""
    images: Tensor
    """(N, C, H, W)."""
    labels: Tensor
    """(N, K)."""
    training: Training
    """How it is trained."""
    rng: torch.Generator = field(repr=False)
    """Of batches and draws; each step moves it on."""
    steps: range
    """Which steps of `training`."""
    moments: Params = field(default_factory=dict)
    """The optimiser's state, {} at first."""
    objective: Objective | None = None
    """What is minimised; None: the model's own loss."""
    extras: Params = field(default_factory=dict)
    """Its constants."""

    def to(self, where: torch.device) -> Task:
        """The same with records and constants there."""
        extras = {k: v.to(where) for k, v in self.extras.items()}
        return replace(self, images=self.images.to(where), labels=self.labels.to(where), extras=extras)

    def draw(self) -> tuple[tuple[Tensor, Tensor], Params]:
        """(batch, draws) of the next step, where the records are."""
        where, count = self.images.device, self.training.batch
        rows = torch.randint(len(self.images), (count,), generator=self.rng).to(where)
        draws = {k: v.to(where) for k, v in self.model.draws(count, self.rng).items()}
        return (self.images[rows], self.labels[rows]), draws

    def loss(self, params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        """The objective, or without one the model's own loss."""
        return (self.objective or self.model.loss)(params, batch, draws, extras)

    def gradient(self, theta: Params) -> tuple[Params, Tensor]:
        """That of the loss on the next batch."""
        batch, draws = self.draw()
        loss = self.loss(theta, batch, draws, self.extras)
        loss.backward()
        return {k: v.grad for k, v in theta.items() if v.grad is not None}, loss.detach()

    def alone(self) -> Fitted:
        """Do it, in this process and without any other task."""
        here = self.to(device())
        return optimize(self.params, here.gradient, training=self.training, steps=self.steps, moments=self.moments)


Train = Callable[[Task], Fitted]
"""Does a task: `Task.alone`, or something faster."""

TRAIN: ContextVar[Train | None] = ContextVar("train", default=None)
"""What does the tasks of `fit` in place of `Task.alone`. `lockstep` sets it to train several clients together, and the
round loop sets it to train on several processes (`runtime.data_parallel`): so no method needs to know of either."""


def fit(
    model: Model,
    params: Params,
    images: Tensor,
    labels: Tensor,
    *,
    training: Training,
    rng: torch.Generator,
    steps: range | None = None,
    moments: Params | None = None,
    objective: Objective | None = None,
    extras: Params | None = None,
) -> Fitted:
    """Take these steps of `training` (None: all) on images (N, C, H, W) and labels (N, K).

    Gives (params, moments, mean loss). `moments` is the optimiser's state: handing it back continues the optimisation
    as if it had not been interrupted. `objective` defaults to the model's own loss; `extras` are its constants. Raises
    Diverged when the loss is no longer finite, ValueError without records.
    """
    steps = range(training.steps) if steps is None else steps
    if not steps:
        return params, moments or {}, 0.0
    if not len(images):
        raise ValueError("there are no records to train on")
    task = Task(
        model=model,
        params=params,
        images=images,
        labels=labels,
        training=training,
        rng=rng,
        steps=steps,
        moments=moments or {},
        objective=objective,
        extras=extras or {},
    )
    return (TRAIN.get() or Task.alone)(task)


def optimize(
    params: Params, gradient: Gradient, *, training: Training, steps: range | None = None, moments: Params | None = None
) -> Fitted:
    """Steps of `training`'s optimiser (None: all, else one at least) along a gradient, wherever it comes from."""
    where, steps = device(), range(training.steps) if steps is None else steps
    theta = {k: v.detach().to(where, copy=True).requires_grad_() for k, v in params.items()}
    optimizer = _optimizer(theta, training, moments)
    losses = torch.zeros(len(steps), device=where)
    for i, step in enumerate(steps):
        for group in optimizer.param_groups:
            group["lr"] = training.rate(step)
        optimizer.zero_grad()
        gradients, losses[i] = gradient(theta)
        for name, g in gradients.items():
            theta[name].grad = g
        optimizer.step()
        if step % CHECK_EVERY == 0 or step == steps[-1]:
            _check_finite(losses[: i + 1], steps[0])
    if not torch.stack([v.detach().sum() for v in theta.values()]).isfinite().all():  # No loss shows the last update.
        raise Diverged(steps[-1], math.nan)
    mean = float(losses.double().mean())
    return {k: v.detach().cpu() for k, v in theta.items()}, _moments(optimizer, theta), mean


def fit_personal(
    model: Model,
    personal: Params,
    fixed: Params,
    data: tuple[Tensor, Tensor],
    *,
    training: Training,
    rng: torch.Generator,
    steps: range | None = None,
    moments: Params | None = None,
) -> Fitted:
    """`fit` of the parameters in `personal` alone; the model's others are `fixed`.

    `data` is (images (N, C, H, W), labels (N, K)).
    """
    loss = _Completed(model)
    return fit(
        model, personal, *data, training=training, rng=rng, steps=steps, moments=moments, objective=loss, extras=fixed
    )


@dataclass(frozen=True)
class _Completed:
    """The loss of a model of which only some parameters are trained; `extras` are the others. Equal for equal models,
    which a function made at each call would not be."""

    model: Model

    def __call__(self, params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        return self.model.loss({**extras, **params}, batch, draws, {})


def with_clipped_flag(model: DDPM) -> DDPM:
    """The model with one condition more: 0 = unclipped, 1 = clipped (PFDM, appendix D)."""
    return replace(model, labels=(*model.labels, 2))


def fit_part(
    model: Model,
    state: Params,
    images: Tensor,
    labels: Tensor,
    *,
    training: Training,
    rng: torch.Generator,
    part: int,
    parts: int,
) -> Params:
    """Part 0 .. parts - 1 of a whole training of a new model; `state` is what the part before gave, {} at first.

    The last part gives the parameters, those before it also the optimiser's state.
    """
    params = tree.under("model", state) if part else model.init(rng)
    moments, steps = tree.under("moments", state), training.part(part, parts)
    params, moments, _ = fit(model, params, images, labels, training=training, rng=rng, steps=steps, moments=moments)
    return params if part == parts - 1 else {**tree.prefixed("model", params), **tree.prefixed("moments", moments)}


def with_clipped_copies(
    images: Tensor, labels: Tensor, *, clip: float, center: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The images and their clipped copies, labels with the flag: the training set of a `with_clipped_flag` model."""
    flags = torch.arange(2).repeat_interleave(len(images))[:, None]
    both = torch.cat([images, tree.clip_records(images, clip, center)])
    return both, torch.cat([labels.repeat(2, 1), flags], dim=1)


def _optimizer(theta: Params, training: Training, moments: Params | None) -> torch.optim.Optimizer:
    leaves = list(theta.values())
    if training.optimizer == "sgd":
        return torch.optim.SGD(leaves, lr=training.learning_rate, fused=True)
    optimizer = torch.optim.AdamW(leaves, lr=training.learning_rate, weight_decay=training.weight_decay, fused=True)
    if moments:
        for name, leaf in theta.items():
            state = {k: moments[f"{k}/{name}"].to(leaf.device, copy=True) for k in ("exp_avg", "exp_avg_sq", "step")}
            optimizer.state[leaf] = state
    return optimizer


def _moments(optimizer: torch.optim.Optimizer, theta: Params) -> Params:
    """AdamW's state; SGD has none (its `momentum_buffer` is None)."""
    states = ((name, k, v) for name, leaf in theta.items() for k, v in optimizer.state[leaf].items())
    return {f"{k}/{name}": v.detach().cpu() for name, k, v in states if v is not None}


def _check_finite(losses: Tensor, first: int) -> None:
    bad = (~losses.isfinite()).nonzero()
    if len(bad):
        raise Diverged(first + int(bad[0]), float(losses[bad[0]]))
