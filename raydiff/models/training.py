"""Plain optimisation of a model's loss on one data set: the loop that every method's training goes through."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from raydiff import tree
from raydiff.models.ddpm import DDPM, device
from raydiff.models.optimizers import adamw_step, sgd_step
from raydiff.tree import Params

Objective = Callable[[Params, tuple[Tensor, Tensor], Params, Params], Tensor]
"""loss(params, (x, labels), draws, extras): a pure function of tensors; extras are constants of this client."""

Gradient = Callable[[Params], tuple[Params, Tensor]]
"""theta, whose leaves have no `grad` yet, -> (its gradient, loss) in one step, whose batch and draws are its own: other
ones at each call."""

Optimizer = Literal["adamw", "sgd"]
Decay = Literal["cosine", "constant"]

Draw = tuple[tuple[Tensor, Tensor], Params]
"""(batch, draws) of a step."""

AVERAGE = "average"  # Among the moments: the moving average of the weights, below this prefix.
ROWS = "rows"  # Among the draws of a step: which records are in its batch.
AHEAD, AHEAD_BYTES = 32, 2**26  # steps, and bytes, that are drawn before they are taken
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
    """How a model is trained: batches, an optimiser, a learning rate over time."""

    steps: int = 1000
    """Optimisation steps in all, where `epochs` does not count them."""
    batch: int = 64
    """Records per step."""
    learning_rate: float = 2e-3
    """Initial learning rate."""
    weight_decay: float = 0.0
    """Weight decay: adamw's is decoupled from the gradient, sgd's is added to it, as torch has them."""
    optimizer: Optimizer = "adamw"
    """adamw or sgd."""
    decay: Decay = "cosine"
    """Of the learning rate over all steps: to zero along a cosine, or constant."""
    epochs: int | None = None
    """Passes over the records in all: epochs * ceil(records / batch) steps; where given, `steps` is not used."""
    momentum: float = 0.0
    """Of sgd: v <- momentum * v + gradient, and a step goes along v; it starts anew where the optimiser does."""
    replacement: bool = True
    """Draw each batch from all records; false: each pass takes every record once, in a random order of its own, and its
    last batch is what is left. A training that is continued, or another round's, begins a new pass."""

    ema: float = 0.0
    """Decay per step of a moving average of the weights, with which a whole training ends in place of its last weights;
    the average of the first k steps decays by (1 + k) / (10 + k) where that is less."""

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
        if self.epochs is not None and self.epochs < 0:
            raise ValueError(f"epochs must be >= 0 or none, got {self.epochs}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema must be in [0, 1), got {self.ema}")
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"momentum must be 0 with optimizer {self.optimizer}, got {self.momentum}")

    def of(self, records: int) -> Training:
        """The same on so many records: with `steps` in place of `epochs`."""
        if self.epochs is None:
            return self
        return replace(self, steps=self.epochs * math.ceil(records / self.batch), epochs=None)

    def rate(self, step: int) -> float:
        """The learning rate of step 0 .. steps - 1."""
        if self.decay == "constant":
            return self.learning_rate
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * min(1.0, step / max(self._counted, 1))))

    def part(self, number: int, of: int) -> range:
        """The steps of part 0 .. of - 1 of this training, as even as can be."""
        return range(self._counted * number // of, self._counted * (number + 1) // of)

    def refuse_epochs(self, name: str, why: str) -> None:
        """Raises ValueError where batches are not drawn by `Task`: there epochs and passes mean nothing."""
        if self.epochs is not None or not self.replacement:
            raise ValueError(f"{name}.epochs must be none and {name}.replacement true: {why}")

    @property
    def _counted(self) -> int:
        if self.epochs is not None:
            raise ValueError("epochs are no number of steps before the records are known: ask `of`")
        return self.steps


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
    moments: Params | None = None
    """The optimiser's state, {} at first; None: it is not asked for."""
    objective: Objective | None = None
    """What is minimised; None: the model's own loss."""
    extras: Params = field(default_factory=dict)
    """Its constants."""

    def to(self, where: torch.device) -> Task:
        """The same with records and constants there."""
        extras = {k: v.to(where) for k, v in self.extras.items()}
        return replace(self, images=self.images.to(where), labels=self.labels.to(where), extras=extras)

    def batches(self) -> Iterator[Draw]:
        """(batch, draws) of one step after the other, without end, where the records are.

        What is drawn for several steps travels to an accelerator together: each copy makes it wait. No more is drawn
        than this task takes, so that the generator stands where it would have stood.
        """
        where, left, rows = self.images.device, len(self.steps), self._rows()
        while True:
            drawn = [self._drawn(next(rows))]
            if where.type != "cpu":
                size = sum(v.numel() * v.element_size() for v in drawn[0].values())
                drawn += [self._drawn(next(rows)) for _ in range(min(AHEAD, left, AHEAD_BYTES // size) - 1)]
                counts = [len(one[ROWS]) for one in drawn]
                there = {k: torch.cat([one[k] for one in drawn]).to(where).split(counts) for k in drawn[0]}
                drawn = [{k: parts[i] for k, parts in there.items()} for i in range(len(drawn))]
            left -= len(drawn)
            for draws in drawn:
                batch = draws.pop(ROWS)
                yield (self.images[batch], self.labels[batch]), draws

    def _drawn(self, rows: Tensor) -> Params:
        return {ROWS: rows, **self.model.draws(len(rows), self.rng)}

    def _rows(self) -> Iterator[Tensor]:
        records, count = len(self.images), self.training.batch
        while True:
            if self.training.replacement:
                yield torch.randint(records, (count,), generator=self.rng)
            else:
                yield from torch.randperm(records, generator=self.rng).split(count)

    def loss(self, params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        """The objective, or without one the model's own loss."""
        return (self.objective or self.model.loss)(params, batch, draws, extras)

    def alone(self) -> Fitted:
        """Do it, in this process and without any other task."""
        here = self.to(device())
        batches = here.batches()

        def gradient(theta: Params) -> tuple[Params, Tensor]:
            loss = here.loss(theta, *next(batches), here.extras)
            loss.backward()
            return {k: v.grad for k, v in theta.items() if v.grad is not None}, loss.detach()

        return optimize(self.params, gradient, training=self.training, steps=self.steps, moments=self.moments)


Train = Callable[[Task], Fitted]
"""Does a task: `Task.alone`, or something faster."""

TRAINER_OVERRIDE: ContextVar[Train | None] = ContextVar("train", default=None)
"""What does the tasks of `fit` in place of `Task.alone`. `lockstep` sets it to train several clients together, and the
round loop sets it to train on several processes (`runtime.data_parallel`): so no method needs to know of either."""


Watch = Callable[[int, int, Tensor], None]
"""Told after each step: how many are done, of how many, and the losses so far (as many entries as steps in all)."""

ON_STEP: ContextVar[Watch | None] = ContextVar("watch", default=None)
"""What is told of the steps of `optimize` in this process (`federated.heartbeat`)."""


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
    """Take these steps of `training.of(N)` (None: all) on images (N, C, H, W) and labels (N, K).

    Gives (params, moments, mean loss). `moments` is the optimiser's state, {} at first: handing it back continues the
    optimisation as if it had not been interrupted, save that without replacement a new pass begins. Without it, None,
    a new optimisation is made, whose state is dropped: {} comes back. `objective` defaults to the
    model's own loss; `extras` are its constants. Raises Diverged when the loss is no longer finite, ValueError without
    records.
    """
    training = training.of(len(images))
    steps = training.part(0, 1) if steps is None else steps
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
        moments=moments,
        objective=objective,
        extras=extras or {},
    )
    return (TRAINER_OVERRIDE.get() or Task.alone)(task)


def optimize(
    params: Params, gradient: Gradient, *, training: Training, steps: range | None = None, moments: Params | None = None
) -> Fitted:
    """Steps of `training`'s optimiser (None: all, else one at least) along a gradient, wherever it comes from."""
    where, steps = device(), training.part(0, 1) if steps is None else steps
    start = tree.Flat.of(params)
    buffer = start.buffer.to(where, copy=True)  # All parameters: `theta` are views of it.
    theta = {k: v.requires_grad_() for k, v in start.layout.leaves(buffer).items()}
    state = {k: v.to(where, copy=True) for k, v in (moments or {}).items()}
    if training.ema:
        state = tree.prefixed(AVERAGE, {k: v.detach().clone() for k, v in theta.items()}) | state
    average = tree.under(AVERAGE, state)  # Its tensors are the state's, and change with it.
    losses, watch = torch.zeros(len(steps), device=where), ON_STEP.get()
    for i, step in enumerate(steps):
        for leaf in theta.values():
            leaf.grad = None
        gradients, losses[i] = gradient(theta)
        rate, decay = training.rate(step), training.weight_decay
        if training.optimizer == "sgd":
            sgd_step(theta, gradients, state, rate=rate, decay=decay, momentum=training.momentum)
        else:
            adamw_step(theta, gradients, state, rate=rate, decay=decay)
        if average:
            share = 1 - min(training.ema, (1 + step) / (10 + step))
            torch._foreach_lerp_(list(average.values()), [v.detach() for v in theta.values()], share)
        if step % CHECK_EVERY == 0 or step == steps[-1]:
            _check_finite(losses[: i + 1], steps[0])
        if watch is not None:
            watch(i + 1, len(steps), losses)
    weights = tree.Flat(start.layout, buffer.cpu())
    if not tree.is_finite(weights):  # No loss shows the last update.
        raise Diverged(steps[-1], math.nan)
    mean, over = float(losses.double().mean()), steps.stop == training.part(0, 1).stop
    kept = {} if moments is None else {k: v.cpu() for k, v in state.items()}
    if average and over:
        weights = tree.Flat.of({k: v.cpu() for k, v in average.items()})
    return weights, kept, mean


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
    moments, steps = tree.under("moments", state), training.of(len(images)).part(part, parts)
    params, moments, _ = fit(model, params, images, labels, training=training, rng=rng, steps=steps, moments=moments)
    return params if part == parts - 1 else {**tree.prefixed("model", params), **tree.prefixed("moments", moments)}


def with_clipped_copies(
    images: Tensor, labels: Tensor, *, clip: float, center: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The images and their clipped copies, labels with the flag: the training set of a `with_clipped_flag` model."""
    flags = torch.arange(2).repeat_interleave(len(images))[:, None]
    both = torch.cat([images, tree.clip_records(images, clip, center)])
    return both, torch.cat([labels.repeat(2, 1), flags], dim=1)


def _check_finite(losses: Tensor, first: int) -> None:
    bad = (~losses.isfinite()).nonzero()
    if len(bad):
        raise Diverged(first + int(bad[0]), float(losses[bad[0]]))
