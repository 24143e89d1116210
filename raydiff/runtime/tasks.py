"""Numbered tasks on a Ray cluster, with the results of one process: parts of a generated data set, shadow models."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import ray
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.util import ActorPool

from raydiff import process
from raydiff.models.compute import device
from raydiff.results import finished, generation, shadows
from raydiff.runtime.cluster import check_shared_storage, in_one_sentence
from raydiff.runtime.place import Resources, bundle, cap_memory, count_fitting, format_resources

Do = Callable[[int], object]
RESTARTS = 3  # of a worker that died, and of its current task


def spread_samples(workers: int, nodes: Sequence[Resources]) -> generation.Spread:
    """Return what writes parts with up to so many workers, which divide the nodes' GPUs if this process has one."""

    def spread(make: generation.Maker, parts: Sequence[int]) -> Iterator[int]:
        if not parts:
            return
        trial = make.finished.trial
        out = make.out.absolute()
        gpu = _gpu_fraction(min(workers, len(parts)), nodes) if device().type == "cuda" else 0.0
        needed = bundle(trial.experiment.numerics.threads, gpu)

        open_task = functools.partial(_open_maker, trial.folder, make.source.client, out, make.request)
        yield from _run_tasks(open_task, parts, needed, workers=workers, nodes=nodes, folders=(trial.sweep, out))

    return spread


def _open_maker(folder: Path, client: int | None, out: Path, request: generation.GenerationRequest) -> Do:
    return generation.maker(finished.open_finished(folder), client, out, request).write


def train_shadows(attacked: shadows.Attacked, *, workers: int, nodes: Sequence[Resources]) -> Iterator[int]:
    """Train all shadow models with up to `workers` workers, and yield each one's number when it is in the cache."""
    trial = attacked.finished.trial
    request = attacked.request
    needed = bundle(trial.experiment.numerics.threads, trial.experiment.runtime.gpu_per_worker)
    yield from _run_tasks(
        lambda: shadows.open_attacked(request).losses,
        range(request.shadows),
        needed,
        workers=workers,
        nodes=nodes,
        folders=(trial.sweep,),
    )


class _TaskWorker:
    def __init__(self, open_task: Callable[[], Do], gpu: float) -> None:
        process.prepare_process()
        self._gpu = gpu
        self._open = functools.cache(open_task)

    def do(self, number: int) -> int:
        cap_memory(self._gpu)  # Not in `__init__`: Ray reports errors of tasks only in one sentence.
        self._open()(number)
        return number


def _run_tasks(
    open_task: Callable[[], Do],
    numbers: Sequence[int],
    needed: Mapping[str, float],
    *,
    workers: int,
    nodes: Sequence[Resources],
    folders: Sequence[Path],
) -> Iterator[int]:
    """Yield the numbers of the tasks as they finish, on as many of the workers as fit.

    Raises ValueError if none fits, one is lost, a task fails, or a node does not see the folders.
    """
    count = min(workers, len(numbers), count_fitting([needed], nodes))
    if not count:
        raise ValueError(f"no node has {format_resources(needed)} for a worker: --workers 1 needs no Ray")
    if len(nodes) > 1:
        for folder in folders:
            check_shared_storage(folder)
    cpu = needed["CPU"]
    gpu = needed.get("GPU", 0.0)
    actor = ray.remote(num_cpus=cpu, num_gpus=gpu, max_restarts=RESTARTS, max_task_retries=RESTARTS)(_TaskWorker)
    pool = ActorPool([actor.remote(open_task, gpu) for _ in range(count)])
    try:
        done = 0
        with (
            in_one_sentence(),
            process.saying(lambda: f"waiting for {len(numbers) - done} tasks on {count} worker(s)", process.WAIT_S),
        ):
            for number in pool.map_unordered(lambda one, number: one.do.remote(number), list(numbers)):
                done += 1
                yield number
    except (RayActorError, OutOfMemoryError) as e:
        raise ValueError("a worker was lost: run the same command to continue") from e


def _gpu_fraction(workers: int, nodes: Sequence[Resources]) -> float:
    gpus = sum(node.get("GPU", 0.0) for node in nodes)
    return math.floor(1e4 / math.ceil(workers / gpus)) / 1e4 if gpus >= 1 else 0.0
