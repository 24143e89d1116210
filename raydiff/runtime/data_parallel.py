"""Data-parallel training of one model with Ray Train's TorchTrainer.

All n processes draw the same batches from the same generator, take every n-th record of each, and sum their gradients.
The steps are those of a single process, up to the order in which floats are added.
"""

import contextlib
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
import torch.distributed as dist
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, get_device
from torch import Tensor

from raydiff import process
from raydiff.experiment.config import Experiment, Numerics, Runtime
from raydiff.experiment.trial import Trial, compute, local_executor, without_secret
from raydiff.federated.rounds import ClientExecutor
from raydiff.models.compute import device
from raydiff.models.training import Diverged, Fitted, Task, optimize
from raydiff.runtime.actors import RayExecutor, start_workers
from raydiff.runtime.cluster import check_shared_storage, join_cluster
from raydiff.runtime.place import (
    COORDINATOR,
    Place,
    bundle,
    cap_memory,
    check_bundles_fit,
    shape_slot,
    total_of,
)
from raydiff.runtime.plan import Planned
from raydiff.tree import Params, arrays, tensors


@dataclass(frozen=True)
class DataParallel:
    """Trains as `Task.alone` does, on `numerics.server_workers` processes of a running Ray."""

    experiment: Experiment
    folder: Path  # scratch folder of Ray Train, which all nodes see

    def __call__(self, task: Task) -> Fitted:
        """Train, and advance the task's generator. Raises Diverged."""
        runtime = self.experiment.runtime
        numerics = self.experiment.numerics
        trainer = TorchTrainer(
            _process,  # rank 0's result is Result.return_value
            train_loop_config={"task": ray.put(task), "experiment": self.experiment},
            scaling_config=ScalingConfig(
                num_workers=numerics.server_workers,
                use_gpu=runtime.gpu_server > 0,
                resources_per_worker=_resources(runtime, numerics),
            ),
            run_config=RunConfig(
                storage_path=str(self.folder), failure_config=FailureConfig(max_failures=runtime.failures)
            ),
        )
        # In the main thread Ray Train reports an interrupted training as a success.
        thread = ThreadPoolExecutor(1)
        try:
            fitted = thread.submit(trainer.fit).result().return_value  # type: ignore[attr-defined]
        finally:
            thread.shutdown(wait=False)
            shutil.rmtree(self.folder, ignore_errors=True)
        if isinstance(fitted, Diverged):
            raise fitted
        params, moments, loss, stream = fitted
        task.rng.set_state(torch.tensor(stream))
        return tensors(params), tensors(moments), loss


@contextlib.contextmanager
def prepare_parallel_places(planned: Planned) -> Iterator[Place]:
    """Yield what makes each trial's executor and the trainer of its server. Raises ValueError if they do not fit."""
    runtime = planned.base.runtime
    numerics = replace(planned.base.numerics, server_workers=planned.server_workers)
    with join_cluster() as nodes:
        if len(nodes) > 1:
            check_shared_storage(planned.folder.parents[1])
        shape = shape_slot(runtime, threads=numerics.threads, clients=planned.most_clients, nodes=nodes)
        bundles = shape.bundles[1:] if runtime.pool == "ray" else []
        needed = bundles + [_resources(runtime, numerics)] * numerics.server_workers
        check_bundles_fit(needed, total_of(needed), nodes)
        workers = start_workers(shape, None) if bundles else []
        if not workers:
            cap_memory(max(shape.gpu_per_worker, shape.gpu_server))

        def place(this: Trial) -> tuple[ClientExecutor, DataParallel]:
            executor = RayExecutor(workers, this, gpu=shape.gpu_per_worker) if workers else local_executor(this)
            return executor, DataParallel(without_secret(this.experiment), this.folder / "train")  # Ray Train keeps it.

        yield place


def _resources(runtime: Runtime, numerics: Numerics) -> dict[str, float]:
    """Resources of each process. Together they have one coordinator's CPUs: the workers wait meanwhile."""
    return bundle(round(COORDINATOR * numerics.threads / numerics.server_workers, 4), runtime.gpu_server)


def _process(config: dict[str, Any]) -> Any:
    """Train in one process. Ray Train's results cannot hold tensors."""
    experiment: Experiment = config["experiment"]
    compute(experiment)
    process.prepare_process()
    cap_memory(experiment.runtime.gpu_server)
    if experiment.runtime.gpu_server:
        torch.cuda.set_device(get_device())
    task: Task = ray.get(config["task"])
    fitted = train_together(task)
    if isinstance(fitted, Diverged):
        return fitted
    params, moments, loss = fitted
    return arrays(dict(params)), arrays(moments), loss, task.rng.get_state().numpy()


def train_together(task: Task) -> Fitted | Diverged:
    """Train as one process of a process group; the result is the same in all of them."""
    task = task.to(device())
    batches = task.batches()
    try:
        return optimize(
            task.params,
            lambda theta: _gradient(task, theta, next(batches)),
            training=task.training,
            steps=task.steps,
            moments=task.moments,
        )
    except Diverged as e:
        return e


def _gradient(task: Task, theta: Params, drawn: tuple[tuple[Tensor, Tensor], Params]) -> tuple[Params, Tensor]:
    """The gradient of a whole batch, and its loss: the sum over all processes, weighted by their records."""
    (images, labels), draws = drawn
    rank = dist.get_rank()
    size = dist.get_world_size()
    count = len(images)
    # A process without records needs a graph for the collective: one record with weight 0.
    mine = slice(rank, None, size) if rank < count else slice(0, 1)
    weight = len(range(rank, count, size)) / count
    part = {k: v[mine] for k, v in draws.items()}
    loss = weight * task.loss(theta, (images[mine], labels[mine]), part, task.extras)
    loss.backward()
    grads = {k: v.grad for k, v in theta.items() if v.grad is not None}
    flat = torch.cat([loss.detach().flatten(), *(g.flatten() for g in grads.values())])
    dist.all_reduce(flat)
    total, *pieces = flat.split([1, *(g.numel() for g in grads.values())])
    return {k: v.view_as(g) for (k, g), v in zip(grads.items(), pieces, strict=True)}, total[0]
