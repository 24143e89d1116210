"""Numbered tasks on a Ray cluster: the parts of a generated data set, and shadow models.

Each worker opens the trial once. A task has random streams of its own and writes its result to the storage, so results
are those of one process.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import ray
from ray.exceptions import RayActorError
from ray.util import ActorPool

from raydiff import process
from raydiff.models.ddpm import device
from raydiff.results import generation as generate
from raydiff.results import shadows
from raydiff.results.finished import open_finished
from raydiff.results.generation import Maker, Request, Spread
from raydiff.results.shadows import Attacked, open_attacked
from raydiff.runtime.slots import cap_memory, in_one_sentence, say, storage_is_shared, unplaced

Do = Callable[[int], object]
RESTARTS = 3  # of a worker that died, and of its current task


def of_samples(workers: int, nodes: Sequence[Mapping[str, float]]) -> Spread:
    """Return what writes parts with so many workers on these nodes, which share the GPUs if this process has one."""

    def spread(make: Maker, parts: Sequence[int]) -> Iterator[int]:
        trial, out = make.finished.trial, make.out.absolute()
        count = min(workers, len(parts))
        if count == 0:
            return
        gpu = _share(count, nodes) if device().type == "cuda" else 0.0
        needed = _needed(trial.experiment.numerics.threads, gpu)
        if left := unplaced([needed] * count, nodes):
            raise ValueError(f"--workers is {count}, but only {count - left} fit on the nodes")
        opened = functools.partial(_writer, trial.folder, make.source.client, out, make.request)
        yield from _done(opened, parts, needed, workers=count, nodes=nodes, folders=(trial.sweep, out))

    return spread


def of_shadows(attacked: Attacked, *, workers: int, nodes: Sequence[Mapping[str, float]]) -> Iterator[int]:
    """Train all shadow models with up to `workers` workers, and yield each one's number when it is in the cache.

    Raises ValueError if no worker fits on a node, or a training fails.
    """
    trial, request = attacked.finished.trial, attacked.request
    needed = _needed(trial.experiment.numerics.threads, trial.experiment.runtime.gpu_per_worker)
    most = min(workers, request.shadows)
    count = most - unplaced([needed] * most, nodes)
    if not count:
        raise ValueError(f"a shadow needs {say(needed)} on one node, and no node has it: --workers 1 trains them here")
    opened = functools.partial(_trainer, request)
    yield from _done(opened, range(request.shadows), needed, workers=count, nodes=nodes, folders=(trial.sweep,))


class _TaskWorker:
    def __init__(self, opened: Callable[[], Do], gpu: float) -> None:
        process.begin()
        self._open, self._gpu = opened, gpu
        self._do: Do | None = None

    def do(self, number: int) -> int:
        if self._do is None:  # Not in `__init__`: Ray reports errors of tasks only in one sentence.
            cap_memory(self._gpu)
            self._do = self._open()
        self._do(number)
        return number


def _done(
    opened: Callable[[], Do],
    numbers: Sequence[int],
    needed: Mapping[str, float],
    *,
    workers: int,
    nodes: Sequence[Mapping[str, float]],
    folders: Sequence[Path],
) -> Iterator[int]:
    """Yield the numbers of the tasks as they finish.

    Raises ValueError if one fails, a worker is lost, or a node does not see the folders.
    """
    for folder in folders if len(nodes) > 1 else ():
        storage_is_shared(folder)
    cpu, gpu = needed["CPU"], needed.get("GPU", 0.0)
    actor = ray.remote(num_cpus=cpu, num_gpus=gpu, max_restarts=RESTARTS, max_task_retries=RESTARTS)(_TaskWorker)
    pool = ActorPool([actor.remote(opened, gpu) for _ in range(workers)])
    try:
        with in_one_sentence():
            yield from pool.map_unordered(lambda one, number: one.do.remote(number), list(numbers))
    except RayActorError as e:
        cause = getattr(e, "cause", None)
        raise ValueError(f"a worker was lost ({cause or 'it died'}): run the same command to continue") from e


def _writer(trial: Path, client: int | None, out: Path, request: Request) -> Do:
    return generate.maker(open_finished(trial), client, out, request).write


def _trainer(request: shadows.Request) -> Do:
    return open_attacked(request).losses


def _needed(threads: int, gpu: float) -> dict[str, float]:
    return {"CPU": float(threads)} | ({"GPU": gpu} if gpu else {})


def _share(workers: int, nodes: Sequence[Mapping[str, float]]) -> float:
    gpus = sum(node.get("GPU", 0.0) for node in nodes)
    return math.floor(1e4 / math.ceil(workers / gpus)) / 1e4 if gpus >= 1 else 0.0
