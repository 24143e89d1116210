"""Shadow models on a Ray cluster: a plain task for each. What it makes stays in the sweep's cache, and only the
shadow's number comes back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayTaskError

from raydiff.experiment.tracking import keep_private
from raydiff.results.shadows import Attacked, Request, open_attacked
from raydiff.runtime.slots import cap_memory, storage_is_shared


def check(attacked: Attacked, nodes: Sequence[Mapping[str, float]]) -> None:
    """Raises ValueError where no node has room for one shadow, or not all nodes share the cache."""
    trial = attacked.finished.trial
    needed = _needed(attacked)
    if not any(all(node.get(k, 0.0) >= v for k, v in needed.items()) for node in nodes):
        said = " and ".join(f"{v:g} {k}" for k, v in needed.items())
        raise ValueError(f"a shadow needs {said} on one node, and no node has it: --workers 1 trains them here")
    if len(nodes) > 1:
        storage_is_shared(trial.sweep)


def train(attacked: Attacked, numbers: Sequence[int], *, workers: int) -> Iterator[int]:
    """Train these shadows, `workers` at a time; gives each one's number when it is in the cache.

    Raises ValueError where a training fails.
    """
    needed = _needed(attacked)
    gpu = needed.get("GPU", 0.0)
    task = ray.remote(num_cpus=needed["CPU"], num_gpus=gpu)(_train)
    waiting, running = list(numbers), list[Any]()
    while waiting or running:
        while waiting and len(running) < workers:
            running.append(task.remote(attacked.request, waiting.pop(0), gpu))
        done, running = ray.wait(running)
        try:
            yield ray.get(done[0])
        except RayTaskError as e:
            if isinstance(e.cause, ValueError):
                raise ValueError(str(e.cause)) from None
            raise


def _train(request: Request, number: int, gpu: float) -> int:
    keep_private()
    cap_memory(gpu)
    open_attacked(request).losses(number)
    return number


def _needed(attacked: Attacked) -> dict[str, float]:
    """As a worker of the trial itself."""
    runtime = attacked.finished.trial.experiment.runtime
    gpu = {"GPU": runtime.worker_share} if runtime.worker_share else {}
    return {"CPU": float(runtime.threads), **gpu}
