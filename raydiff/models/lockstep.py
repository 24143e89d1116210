"""Clients of one process that train in lock-step: a step of all is one `torch.func.vmap` over their stacked parameters.

Each client's round runs as it always does until it calls `training.fit`. There it waits until every other one of its
cohort waits too, or has ended. Tasks that are alike are then done together, the others one by one, and every client
goes on with its own result. Batches, timesteps and noise come from each client's own generator, in the order that they
have when it trains by itself; the results are the same up to the order in which floats are added.

A waiting client keeps its place in a thread. Only one thread runs at any time, and hands over explicitly: nothing
races, torch's global generator included, and there is no lock to die of.

Shapes: M clients; a stacked leaf is (M, ...).
"""

from __future__ import annotations

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

from raydiff.models.ddpm import device, device_lost
from raydiff.models.training import TRAINER_OVERRIDE, Diverged, Fitted, Task, optimize
from raydiff.tree import Params

T = TypeVar("T")

COUNT = "step/"  # AdamW keeps the number of its steps in the leaves below this prefix.


class Abandoned(BaseException):
    """Nobody waits for this client any more. Not an Exception, so that no method takes it for one of its own."""


def in_step(calls: Sequence[Callable[[], T]]) -> Iterator[tuple[T, list[int]]]:
    """The results of all calls, in order, each with the number of clients that did each of its `fit`s together.

    All have ended before the first result is given. An exception in a call is raised in its place among the results; it
    does not keep the others from ending.
    """
    turns = [_Turn(call) for call in calls]
    try:
        for turn in turns:
            turn.go_on(None)
        while waiting := [(turn, turn.task) for turn in turns if turn.task is not None]:
            for (turn, _), answer in zip(waiting, answers([task for _, task in waiting]), strict=True):
                turn.go_on(answer)
    finally:  # An interrupt must leave no thread behind.
        for turn in turns:
            if turn.task is not None:
                turn.go_on((Abandoned(), 0))
    for turn in turns:
        yield turn.outcome.result(), turn.sizes


Answer = tuple[Fitted | BaseException, int]
"""(result or what to raise, number of tasks that were done together)."""


class _Turn(Generic[T]):
    """A call in a thread of its own, which runs only from `go_on` to its next `fit` or its end."""

    def __init__(self, call: Callable[[], T]) -> None:
        self.task: Task | None = None
        self.outcome: Future[T] = Future()
        self.sizes: list[int] = []
        self._call = call
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def go_on(self, answer: Answer | None) -> None:
        """Let it run, with the answer to its task; None: from the start. Then `task` is its next one, None if it has
        ended."""
        self.task = None
        if answer is None:
            self._thread.start()
        else:
            self._answers.put(answer)
        self.task = self._tasks.get()

    def _run(self) -> None:
        TRAINER_OVERRIDE.set(self._meet)  # This thread alone sees it.
        try:
            self.outcome.set_result(self._call())
        except BaseException as e:
            self.outcome.set_exception(e)
        finally:
            self._tasks.put(None)

    def _meet(self, task: Task) -> Fitted:
        self._tasks.put(task)
        answer, size = self._answers.get()
        self.sizes.append(size)
        if isinstance(answer, BaseException):
            raise answer
        return answer


class NotTogether(RuntimeError):
    """`torch.func.vmap` cannot do this loss, which a client by itself can; says why."""


def answers(tasks: Sequence[Task]) -> list[Answer]:
    """The tasks, done: those that are alike together, the others one by one."""
    done: dict[int, Answer] = {}
    for group in _alike(tasks):
        members = [tasks[i] for i in group]
        done.update(zip(group, _at_once(members) if len(members) > 1 else map(_alone, members), strict=True))
    return [done[i] for i in range(len(tasks))]


def _at_once(tasks: Sequence[Task]) -> list[Answer]:
    """Tasks that are alike, together; one by one where their loss cannot be, which is warned of, or where one diverges,
    for then each says so by itself. Any other error is each one's answer: trying again would hide it."""
    streams = [task.rng.get_state() for task in tasks]
    try:
        return [(fitted, len(tasks)) for fitted in together(tasks)]
    except NotTogether as e:
        warnings.warn(f"{type(tasks[0].model).__name__}: clients train one by one: {e}", RuntimeWarning, stacklevel=1)
    except Diverged:
        pass
    except Exception as e:
        return [(e, len(tasks))] * len(tasks)
    for task, stream in zip(tasks, streams, strict=True):
        task.rng.set_state(stream)
    return [_alone(task) for task in tasks]


def together(tasks: Sequence[Task]) -> list[Fitted]:
    """Tasks that are alike, in one training. Raises Diverged if one of them does, NotTogether where vmap cannot."""
    one, tasks = tasks[0], [task.to(device()) for task in tasks]
    _build(tasks[0])
    extras = _stacked([task.extras for task in tasks])
    each, drawn = torch.func.vmap(one.loss), zip(*(task.batches() for task in tasks), strict=True)
    losses: list[Tensor] = []

    def gradient(theta: Params) -> tuple[Params, Tensor]:
        batches, draws = zip(*next(drawn), strict=True)
        images, labels = (torch.stack(parts) for parts in zip(*batches, strict=True))
        try:
            with sdpa_kernel(SDPBackend.MATH):  # vmap would do fused attention client by client.
                loss = each(theta, (images, labels), _stacked(draws), extras)
            loss.sum().backward()  # The sum mixes nothing: no client's parameters are in another's loss.
        except RuntimeError as e:
            if losses or _of_the_machine(e):
                raise
            raise NotTogether(" ".join(str(e).split())) from e  # `_build` has just evaluated this loss.
        losses.append(loss.detach())
        return {k: v.grad for k, v in theta.items() if v.grad is not None}, losses[-1].mean()

    moments = None
    if one.moments is not None:
        moments = _stacked([task.moments or {} for task in tasks])
        moments |= {k: v for k, v in one.moments.items() if k.startswith(COUNT)}  # All have taken as many steps.
    params, kept, _ = optimize(
        _stacked([task.params for task in tasks]),
        gradient,
        training=one.training,
        steps=one.steps,
        moments=moments,
    )
    means = torch.stack(losses).double().mean(0).tolist()  # (M,)
    return [(_of(params, i), _of(kept, i), mean) for i, mean in enumerate(means)]


def _build(task: Task) -> None:
    """Evaluate the loss of one client, as in a training by itself: what a process makes when it is first used is made
    here. Within vmap a module's first weights cannot be drawn, so that the first cohort of a process would fail."""
    theta = {k: v.detach().to(device()).requires_grad_() for k, v in task.params.items()}
    task.loss(theta, *next(replace(task, rng=torch.Generator().manual_seed(0)).batches()), task.extras)


def _of_the_machine(error: RuntimeError) -> bool:
    """Whether there was no memory, or the device is lost: that says nothing about the loss."""
    return isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error) or device_lost(error)


def _alone(task: Task) -> Answer:
    try:
        return task.alone(), 1
    except Exception as e:  # It is raised again where the client called `fit`.
        return e, 1


def _alike(tasks: Sequence[Task]) -> list[list[int]]:
    """Positions of the tasks in groups that can be done together."""
    groups: list[tuple[Any, list[int]]] = []
    for i, task in enumerate(tasks):
        kind = _kind(task)
        for other, members in groups:
            if kind == other:
                members.append(i)
                break
        else:
            groups.append((kind, [i]))
    return [members for _, members in groups]


def _kind(task: Task) -> Any:
    """What tasks must agree in: all but numbers of records, unless passes are cut by them, and values other than
    AdamW's count of steps."""
    moments = task.moments or {}
    trees = (task.params, moments, task.extras, {"images": task.images[0], "labels": task.labels[0]})
    shapes = [{k: (v.shape, v.dtype) for k, v in tree.items()} for tree in trees]
    counts = {k: float(v) for k, v in moments.items() if k.startswith(COUNT)}
    records = None if task.training.replacement else len(task.images)
    return (task.model, task.objective, task.training, task.steps, shapes, counts, records, task.moments is None)


def _stacked(trees: Sequence[Params]) -> Params:
    return {k: torch.stack([tree[k] for tree in trees]) for k in trees[0]}


def _of(stacked: Params, i: int) -> Params:
    """Client i's part, by itself in memory."""
    return {k: v.clone() if k.startswith(COUNT) else v[i].clone() for k, v in stacked.items()}
