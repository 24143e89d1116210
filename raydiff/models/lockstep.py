"""Clients of one process that train in lock-step: one step of all is a `torch.func.vmap` over their stacked parameters.

A client's round runs until it calls `training.fit`, and waits there until every other client waits too or has ended.
Similar tasks are then trained as lanes of one batch, the others one by one. Each client draws from its generator in the
order of a training by itself, so results differ only by the order in which floats are added.

Each client has a thread, of which only one runs at any time and hands over explicitly: no races, no deadlocks.

Shapes: M lanes; a stacked leaf is (M, ...).
"""

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from raydiff.models.compute import device, device_lost, out_of_memory
from raydiff.models.training import TRAINER_OVERRIDE, Diverged, Fitted, Task, optimize
from raydiff.tree import Flat, Layout, Params

T = TypeVar("T")

COUNT = "step/"  # prefix of AdamW's step counts
WORTH_TRANSPOSING = 2  # steps: in more of them `_stacked` saves more than it costs


class Abandoned(BaseException):
    """The cohort has ended. No Exception, so that methods do not catch it."""


def run_in_lockstep(calls: Sequence[Callable[[], T]]) -> Iterator[tuple[T, list[int]]]:
    """The results of all calls, in order, each with the number of lanes of each of its `fit`s.

    All calls end before the first result is yielded. An exception in a call is raised in place of its result.
    """
    lanes = [_Lane(call) for call in calls]
    try:
        for lane in lanes:
            lane.resume(None)
        while waiting := [(lane, lane.task) for lane in lanes if lane.task is not None]:
            for (lane, _), outcome in zip(waiting, train_all([task for _, task in waiting]), strict=True):
                lane.resume(outcome)
    finally:  # An interrupt must leave no thread behind.
        for lane in lanes:
            if lane.task is not None:
                lane.resume((Abandoned(), 0))
    for lane in lanes:
        yield lane.result.result(), lane.sizes


Outcome = tuple[Fitted | BaseException, int]
"""(result of a task or exception to raise, number of lanes)."""


class _Lane(Generic[T]):
    """A call in a thread, which runs only from `resume` to its next `fit` or its end."""

    def __init__(self, call: Callable[[], T]) -> None:
        self.task: Task | None = None
        self.result: Future[T] = Future()
        self.sizes: list[int] = []
        self._call = call
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._outcomes: SimpleQueue[Outcome] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def resume(self, outcome: Outcome | None) -> None:
        """Run with the outcome of its task (None: from the start) until its next `task`, None when it has ended."""
        self.task = None
        if outcome is None:
            self._thread.start()
        else:
            self._outcomes.put(outcome)
        self.task = self._tasks.get()

    def _run(self) -> None:
        TRAINER_OVERRIDE.set(self._wait)  # local to this thread
        try:
            self.result.set_result(self._call())
        except BaseException as e:
            self.result.set_exception(e)
        finally:
            self._tasks.put(None)

    def _wait(self, task: Task) -> Fitted:
        self._tasks.put(task)
        outcome, size = self._outcomes.get()
        self.sizes.append(size)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


class NotBatchable(RuntimeError):
    """`torch.func.vmap` cannot evaluate this loss."""


def train_all(tasks: Sequence[Task]) -> list[Outcome]:
    """Train similar tasks together, the others one by one."""
    outcomes: dict[int, Outcome] = {}
    for group in _similar(tasks):
        members = [tasks[i] for i in group]
        outcomes.update(zip(group, _try_batched(members) if len(members) > 1 else map(_alone, members), strict=True))
    return [outcomes[i] for i in range(len(tasks))]


def _try_batched(tasks: Sequence[Task]) -> list[Outcome]:
    """Similar tasks together; one by one if their loss is not batchable, or if one diverges.

    The diverging one then reports it by itself. Any other error is the outcome of all: a second try would hide it.
    """
    streams = [task.rng.get_state() for task in tasks]
    try:
        return [(fitted, len(tasks)) for fitted in train_batched(tasks)]
    except NotBatchable as e:
        warnings.warn(f"{type(tasks[0].model).__name__}: clients train one by one: {e}", RuntimeWarning, stacklevel=1)
    except Diverged:
        pass
    except Exception as e:
        return [(e, len(tasks))] * len(tasks)
    for task, stream in zip(tasks, streams, strict=True):
        task.rng.set_state(stream)
    return [_alone(task) for task in tasks]


def train_batched(tasks: Sequence[Task]) -> list[Fitted]:
    """Similar tasks in one training. Raises Diverged if one of them does, NotBatchable where vmap cannot."""
    one = tasks[0]
    tasks = [task.to(device()) for task in tasks]
    _warm_up(tasks[0])
    extras = _stacked([task.extras for task in tasks])
    each = torch.func.vmap(one.loss)
    drawn = zip(*(task.batches() for task in tasks), strict=True)
    losses: list[Tensor] = []
    transposed = len(one.steps) > WORTH_TRANSPOSING

    def gradient(theta: Params) -> tuple[Params, Tensor]:
        batches, draws = zip(*next(drawn), strict=True)
        images, labels = (torch.stack(parts) for parts in zip(*batches, strict=True))
        try:
            with sdpa_kernel(SDPBackend.MATH):  # vmap would loop over lanes in fused attention.
                loss = each(_transposed(theta) if transposed else theta, (images, labels), _stacked(draws), extras)
            loss.sum().backward()  # No lane's parameters are in another's loss.
        except RuntimeError as e:
            if losses or out_of_memory(e) or "allocate memory" in str(e) or device_lost(e):
                raise  # Memory and device errors say nothing about the loss.
            raise NotBatchable(" ".join(str(e).split())) from e  # `_warm_up` has just evaluated this loss.
        losses.append(loss.detach())
        return {k: v.grad for k, v in theta.items() if v.grad is not None}, losses[-1].mean()

    moments = None
    if one.moments is not None:
        moments = _stacked([task.moments or {} for task in tasks], transposed=transposed)
        moments |= {k: v.clone() for k, v in one.moments.items() if k.startswith(COUNT)}  # equal in all lanes
    first = _stacked([task.params for task in tasks], transposed=transposed)
    params, kept, _ = optimize(first, gradient, training=one.training, steps=one.steps, moments=moments, lanes=True)
    means = torch.stack(losses).double().mean(0).tolist()  # (M,)
    if transposed:
        params = _transposed(params)
        kept = _transposed(kept)
    return list(zip(_lanes(params, len(tasks)), _lanes(kept, len(tasks)), means, strict=True))


def _warm_up(task: Task) -> None:
    """Evaluate one client's loss, which builds and caches its modules: within vmap weights cannot be drawn."""
    theta = {k: v.detach().to(device()).requires_grad_() for k, v in task.params.items()}
    task.loss(theta, *next(replace(task, rng=torch.Generator().manual_seed(0)).batches()), task.extras)


def _alone(task: Task) -> Outcome:
    try:
        return task.alone(), 1
    except Exception as e:  # `_Lane._wait` raises it where the client called `fit`.
        return e, 1


def _similar(tasks: Sequence[Task]) -> list[list[int]]:
    """Positions of the tasks in groups that can be trained together."""
    signatures = [_signature(task) for task in tasks]
    first = [signatures.index(signature) for signature in signatures]
    return [[i for i, other in enumerate(first) if other == leader] for leader in dict.fromkeys(first)]


def _signature(task: Task) -> Any:
    """What tasks must agree in: all but values (AdamW's step counts apart) and, where no pass is cut, record counts."""
    moments = task.moments or {}
    trees = (task.params, moments, task.extras, {"images": task.images[0], "labels": task.labels[0]})
    shapes = [{k: (v.shape, v.dtype) for k, v in tree.items()} for tree in trees]
    counts = {k: float(v) for k, v in moments.items() if k.startswith(COUNT)}
    records = None if task.training.replacement else len(task.images)
    return (task.model, task.objective, task.training, task.steps, shapes, counts, records, task.moments is None)


def _stacked(trees: Sequence[Params], *, transposed: bool = False) -> Params:
    """Views where the trees are one or share a layout. `transposed`: matrices (a, b) as (M, b, a).

    In that order the gradient of a linear layer's weights is computed; autograd would copy it into another, which takes
    as long as the layer.
    """
    one = trees[0]
    if all(other is one for other in trees):
        stacked = {k: v.expand(len(trees), *v.shape) for k, v in one.items()}
    elif isinstance(one, Flat) and all(isinstance(other, Flat) and other.layout == one.layout for other in trees):
        stacked = one.layout.leaves(torch.stack([other.buffer for other in trees if isinstance(other, Flat)]))
    else:
        stacked = {k: torch.stack([other[k] for other in trees]) for k in one}
    return _transposed(stacked) if transposed else stacked


def _transposed(stacked: Params) -> Params:
    return {k: v.mT if v.dim() == 3 else v for k, v in stacked.items()}


def _lanes(stacked: Params, count: int) -> list[Params]:
    """The tree of each lane.

    All lanes are copied leaf by leaf into rows, and each gets a copy of its row, so that it holds no memory of the
    others.
    """
    whole = {k: v.expand(count) if k.startswith(COUNT) else v for k, v in stacked.items()}
    if len({v.dtype for v in whole.values()}) != 1:
        return [{k: v[i].clone(memory_format=torch.contiguous_format) for k, v in whole.items()} for i in range(count)]
    layout = Layout.of({k: v[0] for k, v in whole.items()})
    return [Flat(layout, row.clone()) for row in layout.joined(whole, count)]
