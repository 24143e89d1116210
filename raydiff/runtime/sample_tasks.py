"""Parts of a data set made on a Ray cluster: each worker opens the finished trial once, and writes the parts that it is
dealt. They are those of one process: a part has streams of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util import ActorPool

from raydiff.experiment.tracking import keep_private
from raydiff.models.ddpm import device
from raydiff.results import generate
from raydiff.results.finished import open_finished
from raydiff.results.generate import Maker, Request, Spread
from raydiff.runtime.slots import cap_memory, storage_is_shared, unplaced


class Sampler:
    """One worker."""

    def __init__(self, trial: Path, client: int | None, out: Path, request: Request, gpu: float) -> None:
        keep_private()
        cap_memory(gpu)
        self._maker = generate.maker(open_finished(trial), client, out, request)

    def write(self, part: int) -> int:
        """Write a part, and give its number."""
        self._maker.write(part)
        return part


def over(workers: int, nodes: Sequence[Mapping[str, float]]) -> Spread:
    """Parts over so many workers on these nodes, on the kind of device that this process has: GPUs are shared among
    them."""

    def spread(make: Maker, parts: Sequence[int]) -> Iterator[int]:
        trial, out = make.finished.trial, make.out.absolute()
        count = min(workers, len(parts))
        if count == 0:
            return
        gpu = _share(count, nodes) if device().type == "cuda" else 0.0
        _check(count, trial.experiment.runtime.threads, gpu, nodes)
        if len(nodes) > 1:
            storage_is_shared(trial.sweep)
            storage_is_shared(out)
        actor = ray.remote(num_cpus=trial.experiment.runtime.threads, num_gpus=gpu)(Sampler)
        asked = (trial.folder, make.source.client, out, make.request, gpu)
        pool = ActorPool([actor.remote(*asked) for _ in range(count)])
        yield from _in_one_sentence(pool.map_unordered(lambda worker, part: worker.write.remote(part), list(parts)))

    return spread


def _in_one_sentence(made: Iterator[int]) -> Iterator[int]:
    try:
        yield from made
    except RayTaskError as e:
        if isinstance(e.cause, (ValueError, OSError)):
            raise ValueError(str(e.cause)) from None
        raise
    except RayActorError as e:
        cause = getattr(e, "cause", None)
        raise ValueError(f"a worker was lost ({cause or 'it died'}): the same command goes on with what is left") from e


def _share(workers: int, nodes: Sequence[Mapping[str, float]]) -> float:
    gpus = sum(node.get("GPU", 0.0) for node in nodes)
    return math.floor(1e4 / math.ceil(workers / gpus)) / 1e4 if gpus >= 1 else 0.0


def _check(workers: int, threads: int, gpu: float, nodes: Sequence[Mapping[str, float]]) -> None:
    """Raises ValueError where they do not fit side by side: the last ones would wait for ever."""
    one = {"CPU": float(threads)} | ({"GPU": gpu} if gpu else {})
    if left := unplaced([one] * workers, nodes):
        raise ValueError(f"{workers} workers were asked for, but the nodes have room for {workers - left}: --workers")
