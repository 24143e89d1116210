"""Which records belong to which client of a trial."""

from __future__ import annotations

import functools

from torch import Tensor

from raydiff import seeding
from raydiff.data import partition
from raydiff.data.datasets import Dataset
from raydiff.experiment.config import Experiment
from raydiff.models.d3pm import DiscreteDiffusion


@functools.lru_cache(maxsize=4)
def shares(experiment: Experiment, dataset: Dataset) -> tuple[Tensor, ...]:
    """Positions of each client's training records, the newcomers' last, without what its audit leaves out."""
    train, parts = dataset.splits["train"], _partitioned(experiment, dataset)
    model, audit = experiment.method.model, experiment.audit
    if audit is None or not isinstance(model, DiscreteDiffusion):
        return tuple(parts)
    return tuple(part[audit.kept(train.select(part), model)] for part in parts)


def _partitioned(experiment: Experiment, dataset: Dataset) -> list[Tensor]:
    train, rng = dataset.splits["train"], seeding.generator(experiment.seed, "partition")
    if experiment.newcomers is None:
        return partition.partition(train, experiment.clients, how=experiment.partition, rng=rng)
    late, rest = partition.newcomers(train, experiment.newcomers, rng=seeding.generator(experiment.seed, "newcomers"))
    parts = partition.partition(train.select(rest), experiment.clients, how=experiment.partition, rng=rng)
    return [*(rest[part] for part in parts), *late]
