"""The training loop of all methods: optimisation of a model's loss on one data set."""

import functools
import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import torch
from annotated_types import Ge, Le, Lt
from torch import Tensor

from raydiff import tree
from raydiff.models.compute import device
from raydiff.models.ddpm import DDPM
from raydiff.models.optimizers import adamw_step, sgd_step
from raydiff.settings import Count, Natural, NonNegative, Positive, settings
from raydiff.tree import NotFinite, Params

Objective = Callable[[Params, tuple[Tensor, Tensor], Params, Params], Tensor]
"""loss(params, (x, labels), draws, extras): a pure function of tensors; extras are constants of the client."""

Pair = tuple[Tensor, Tensor]
"""Images (N, C, H, W) and labels (N, K)."""

Gradient = Callable[[Params], tuple[Params, Tensor]]
"""theta (leaves without `grad`) -> (gradient, loss) of one step. Each call takes a new batch and new draws."""


AVERAGE = "average"  # prefix of the moving average of the weights among the moments
ROWS = "rows"  # key of the batch's row numbers among the draws of a step
# largest number of steps, and their bytes, drawn in advance for an accelerator
AHEAD = 32
AHEAD_BYTES = 2**26
WIDEST = 0.28  # of `Training.ema`: the mean of all weights so far has 0.289
CHECK_EVERY = 50  # steps between checks of the loss, each of which waits for the accelerator


class Model(Protocol):
    """A trainable model: a denoiser or a classifier."""

    def init(self, rng: torch.Generator) -> Params:
        """Fresh parameters."""

    def draws(self, count: int, rng: torch.Generator) -> Params:
        """The random part of one step on a batch of `count`, other than the batch."""

    def loss(self, params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        """Scalar loss on images (B, C, H, W) and labels (B, K)."""


class Diverged(NotFinite):
    """The loss became NaN or infinite. Its arguments are the step and the loss."""

    def __str__(self) -> str:
        return "the loss became {1} at step {0}: lower the learning rate".format(*self.args)


@settings(frozen=True, kw_only=True)
class Training:
    """Batches, optimiser and learning-rate schedule of a training.

    Raises:
        ValueError: If `momentum` is given without sgd.

    Examples:
        >>> training = rd.Training(epochs=3, batch=64, learning_rate=1e-3)
        >>> training.of(records=100).steps
        6
    """

    steps: Natural = 1000
    """Optimisation steps in all, unless `epochs` is set."""
    batch: Count = 64
    """Records per step."""
    learning_rate: Positive = 2e-3
    """Initial learning rate."""
    weight_decay: NonNegative = 0.0
    """Weight decay: adamw's is decoupled from the gradient, sgd's is added to it, as torch has them."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """adamw or sgd."""
    decay: Literal["cosine", "constant"] = "cosine"
    """Of the learning rate over all steps: to zero along a cosine, or constant."""
    epochs: Natural | None = None
    """Passes over the records in all: epochs * ceil(records / batch) steps, in place of `steps`."""
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Of sgd: v <- momentum * v + gradient, and a step goes along v; it restarts with the optimiser."""
    replacement: bool = True
    """Draw each batch from all records; false: each pass takes every record once, in random order, and its last batch
    is the rest. A continued training, or another round's, begins a new pass."""

    warmup: Natural = 0
    """First steps, over which the learning rate rises from zero along a line."""
    max_grad_norm: Positive | None = None
    """Longer gradients of a step are scaled to this norm, over all parameters together."""
    ema: Annotated[float, Ge(0), Le(WIDEST)] = 0.0
    """Width of a moving average of weights, which is the result: standard deviation of the averaged steps over their
    number, at most 0.28 (Karras et al. 2024, arXiv 2312.02696, section 3.1). Of a server's rounds where it averages."""

    def __post_init__(self) -> None:
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(f"momentum must be 0 with optimizer {self.optimizer}, got {self.momentum}")

    def of(self, records: int) -> "Training":
        """This training on so many records: `epochs` converted to `steps`."""
        if self.epochs is None:
            return self
        return replace(self, steps=self.epochs * math.ceil(records / self.batch), epochs=None)

    def rate(self, step: int) -> float:
        """The learning rate of step 0 .. steps - 1."""
        rate = self.learning_rate * min(1.0, (step + 1) / max(self.warmup, 1))
        if self.decay == "constant":
            return rate
        return rate * 0.5 * (1 + math.cos(math.pi * min(1.0, step / max(self._counted, 1))))

    def ema_weight(self, update: int) -> float:
        """The moving average's weight on itself in its update 1, 2, ...; the rest is on the new weights."""
        return float((1 - 1 / update) ** (_power(self.ema) + 1))

    def part(self, index: int, parts: int) -> range:
        """The steps of part 0 .. parts - 1 of this training, cut as evenly as possible."""
        return range(self._counted * index // parts, self._counted * (index + 1) // parts)

    def refuse_epochs(self, name: str, why: str) -> None:
        """Raises ValueError if epochs or passes are set, for callers that draw their own batches."""
        if self.epochs is not None or not self.replacement:
            raise ValueError(f"{name}.epochs must be none and {name}.replacement true: {why}")

    @property
    def _counted(self) -> int:
        if self.epochs is not None:
            raise ValueError("the steps of epochs depend on the number of records: call `of` first")
        return self.steps


Fitted = tuple[Params, Params, float]
"""(parameters, the optimiser's state, mean loss)."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """The arguments of `fit`, with at least one step and one record."""

    model: Model
    params: Params
    images: Tensor
    labels: Tensor
    training: Training
    rng: torch.Generator = field(repr=False)
    steps: range
    moments: Params | None = None
    objective: Objective | None = None
    extras: Params = field(default_factory=dict)

    def to(self, where: torch.device) -> "Task":
        """This task with records and constants on that device."""
        extras = {k: v.to(where) for k, v in self.extras.items()}
        return replace(self, images=self.images.to(where), labels=self.labels.to(where), extras=extras)

    def batches(self) -> Iterator[tuple[tuple[Tensor, Tensor], Params]]:
        """Endless (batch, draws) of each step, on the records' device.

        Draws of several steps are copied to an accelerator together, but never more than the task takes.
        """
        where = self.images.device
        left = len(self.steps)
        rows = self._rows()
        while True:
            drawn = [self._draw(next(rows))]
            if where.type != "cpu":
                size = sum(v.numel() * v.element_size() for v in drawn[0].values())
                drawn += [self._draw(next(rows)) for _ in range(min(AHEAD, left, AHEAD_BYTES // size) - 1)]
                counts = [len(one[ROWS]) for one in drawn]
                copied = {k: torch.cat([one[k] for one in drawn]).to(where).split(counts) for k in drawn[0]}
                drawn = [{k: parts[i] for k, parts in copied.items()} for i in range(len(drawn))]
            left -= len(drawn)
            for draws in drawn:
                batch = draws.pop(ROWS)
                yield (self.images[batch], self.labels[batch]), draws

    def _draw(self, rows: Tensor) -> Params:
        return {ROWS: rows, **self.model.draws(len(rows), self.rng)}

    def _rows(self) -> Iterator[Tensor]:
        records = len(self.images)
        count = self.training.batch
        while True:
            if self.training.replacement:
                yield torch.randint(records, (count,), generator=self.rng)
            else:
                yield from torch.randperm(records, generator=self.rng).split(count)

    def loss(self, params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        """The objective, by default the model's loss."""
        return (self.objective or self.model.loss)(params, batch, draws, extras)

    def alone(self) -> Fitted:
        """Train in this process, without other tasks."""
        here = self.to(device())
        batches = here.batches()

        def gradient(theta: Params) -> tuple[Params, Tensor]:
            loss = here.loss(theta, *next(batches), here.extras)
            loss.backward()
            return {k: v.grad for k, v in theta.items() if v.grad is not None}, loss.detach()

        return optimize(self.params, gradient, training=self.training, steps=self.steps, moments=self.moments)


Train = Callable[[Task], Fitted]
TRAINER_OVERRIDE: ContextVar[Train | None] = ContextVar("train", default=None)
"""Trains the tasks of `fit` in place of `Task.alone`: `lockstep`, or `runtime.data_parallel`."""

ON_STEP: ContextVar[Callable[[int, int, Tensor], None] | None] = ContextVar("watch", default=None)
"""Callback of `optimize` after each step (`federated.heartbeat`): steps done, steps in all, losses (steps in all,)."""


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
    """Train a model on images (N, C, H, W) and labels (N, K) by these steps of `training.of(N)` (None: all).

    `moments` is the optimiser's state, {} at first; passing the returned one continues the optimisation (without
    replacement in a new pass). None: a new optimisation, whose state is dropped. The objective is by default the
    model's loss; `extras` are its constants. Raises Diverged, and ValueError where there are no records.
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
    params: Params,
    gradient: Gradient,
    *,
    training: Training,
    steps: range | None = None,
    moments: Params | None = None,
    lanes: bool = False,
) -> Fitted:
    """These steps (None: all) of `training`'s optimiser along any gradient, as `fit` returns them.

    `lanes`: each leaf is a stack of independent trainings', and may be overwritten.
    """
    where = device()
    if steps is None:
        steps = training.part(0, 1)
    start = tree.Flat.of(params)
    buffer = start.buffer.to(where, copy=not lanes)  # `theta` holds views of it.
    theta = {k: v.requires_grad_() for k, v in start.layout.leaves(buffer).items()}
    # Contiguous, as the leaves are: fused optimisers read tensors by their memory.
    state = {k: v.to(where, copy=not lanes).contiguous() for k, v in (moments or {}).items()}
    if training.ema:
        state = tree.prefixed(AVERAGE, {k: v.detach().clone() for k, v in theta.items()}) | state
    average = tree.under(AVERAGE, state)  # shares the state's tensors
    losses = torch.zeros(len(steps), device=where)
    watch = ON_STEP.get()
    for i, step in enumerate(steps):
        for leaf in theta.values():
            leaf.grad = None
        gradients, losses[i] = gradient(theta)
        if training.max_grad_norm is not None:
            _shorten(gradients, training.max_grad_norm, lanes)
        rate = training.rate(step)
        decay = training.weight_decay
        if training.optimizer == "sgd":
            sgd_step(theta, gradients, state, rate=rate, decay=decay, momentum=training.momentum)
        else:
            adamw_step(theta, gradients, state, rate=rate, decay=decay)
        if average:
            weight = 1 - training.ema_weight(step + 1)
            torch._foreach_lerp_(list(average.values()), [v.detach() for v in theta.values()], weight)
        if step % CHECK_EVERY == 0 or step == steps[-1]:
            _check_finite(losses[: i + 1], steps[0])
        if watch is not None:
            watch(i + 1, len(steps), losses)
    weights = tree.Flat(start.layout, buffer.cpu())
    if not tree.is_finite(weights):  # The losses do not show the last update.
        raise Diverged(steps[-1], math.nan)
    if average and steps.stop == training.part(0, 1).stop:
        weights = tree.Flat.of({k: v.cpu() for k, v in average.items()})
    kept = {} if moments is None else {k: v.cpu() for k, v in state.items()}
    return weights, kept, float(losses.double().mean())


@functools.lru_cache
def _power(width: float) -> float:
    """gamma of a power function whose moving average has this width (Karras et al. 2024, Eq. 126).

    width^-2 = (gamma + 2)^2 (gamma + 3) / (gamma + 1).
    """
    t = width**-2
    return float(np.roots([1, 7, 16 - t, 12 - t]).real.max())


@torch.no_grad()
def _shorten(gradients: Params, longest: float, lanes: bool) -> None:
    """Scale the gradients, in place, to this norm where theirs, over all leaves of a lane together, is longer."""
    squares = [g.square().reshape(len(g) if lanes else 1, -1).sum(1) for g in gradients.values()]
    scale = (longest / torch.stack(squares).sum(0).sqrt()).clamp_max(1)
    for g in gradients.values():
        g.mul_(scale.view(-1, *[1] * (g.dim() - 1)) if lanes else scale[0])


def fit_personal(
    model: Model, personal: Params, fixed: Params, data: Pair, *, rng: torch.Generator, **more: Any
) -> Fitted:
    """`fit` of the parameters in `personal` alone, while the model's others are `fixed`."""
    return fit(model, personal, *data, rng=rng, objective=Completed(model), extras=fixed, **more)


@dataclass(frozen=True)
class Completed:
    """The loss of a model whose untrained parameters are `extras`. Equal for equal models, as lock-step requires."""

    model: Model

    def __call__(self, params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        return self.model.loss({**extras, **params}, batch, draws, {})


def with_clipped_flag(model: DDPM) -> DDPM:
    """The model with one more condition: 0 = unclipped, 1 = clipped (PFDM, appendix D)."""
    return replace(model, labels=(*model.labels, 2))


def fit_part(
    model: Model, state: Params, data: Pair, *, training: Training, rng: torch.Generator, part: int, parts: int
) -> Params:
    """Part 0 .. parts - 1 of the training of a new model; `state` is the previous part's result, {} at first.

    The last part returns the parameters, earlier parts also the optimiser's state.
    """
    params = tree.under("model", state) if part else model.init(rng)
    moments = tree.under("moments", state)
    steps = training.of(len(data[0])).part(part, parts)
    params, moments, _ = fit(model, params, *data, training=training, rng=rng, steps=steps, moments=moments)
    return params if part == parts - 1 else {**tree.prefixed("model", params), **tree.prefixed("moments", moments)}


def with_clipped_copies(images: Tensor, labels: Tensor, *, clip: float, center: Tensor | None = None) -> Pair:
    """The images and their clipped copies, labels with the flag: the training set of a `with_clipped_flag` model."""
    flags = torch.arange(2).repeat_interleave(len(images))[:, None]
    both = torch.cat([images, tree.clip_records(images, clip, center)])
    return both, torch.cat([labels.repeat(2, 1), flags], dim=1)


def _check_finite(losses: Tensor, first: int) -> None:
    bad = (~losses.isfinite()).nonzero()
    if len(bad):
        raise Diverged(first + int(bad[0]), float(losses[bad[0]]))
