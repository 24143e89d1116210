"""Which records belong to which client of a trial, and which are public."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from raydiff import seeding
from raydiff.data import datasets, partition
from raydiff.data.datasets import Dataset
from raydiff.data.source_registry import identity
from raydiff.evaluation.evaluation_settings import AUDIT
from raydiff.experiment import config, overrides
from raydiff.experiment.config import Experiment
from raydiff.formats.json_files import dumps, flatten_tree, read_json
from raydiff.lookup import imported
from raydiff.models.d3pm import DiscreteDiffusion


@functools.lru_cache(maxsize=4)
def client_shares(experiment: Experiment, dataset: Dataset) -> tuple[Tensor, ...]:
    """Positions of each client's training records, unseen clients last, without those that its audit removes."""
    parts = _partition_records(experiment, dataset)
    model = experiment.method.model
    audit = experiment.audit
    if audit is None or not isinstance(model, DiscreteDiffusion):
        return tuple(parts)
    kept = imported(f"{AUDIT}:select_records")
    return tuple(part[kept(audit, dataset.splits["train"].select(part), model)] for part in parts)


def _partition_records(experiment: Experiment, dataset: Dataset) -> list[Tensor]:
    train = dataset.splits["train"]
    rng = seeding.generator(experiment.seed, "partition")
    if experiment.unseen is None:
        return partition.partition(train, experiment.clients, how=experiment.partition, rng=rng)
    late, rest = partition.draw_unseen(train, experiment.unseen, rng=seeding.generator(experiment.seed, "newcomers"))
    parts = partition.partition(train.select(rest), experiment.clients, how=experiment.partition, rng=rng)
    return [*(rest[part] for part in parts), *late]


PUBLIC = {f"data.{n}" for n in ("split_seed", "public", "public_from", "labels", "superclasses", "classes", "test")}
PUBLIC |= {"data.fitted_on"}
"""Fields that can change the public rows."""
DEALT = ("data.train", "data.validation", "data.calibration", "seed", "clients", "partition", "unseen", "audit")
"""Other fields, with their own fields, that can move records from one client to another."""


def privacy_units(experiment: Experiment, unit: str, secret: bytes) -> dict[str, str]:
    """The settings that decide whom a guarantee covers, and keyed digests of public and of clients' rows."""
    data = experiment.data
    dataset = datasets.load_dataset(experiment.data)
    rows = [sorted(dataset.splits["public"].numbers.tolist())]
    if unit == "client":
        train = dataset.splits["train"].numbers
        rows += sorted(sorted(train[part].tolist()) for part in client_shares(experiment, dataset))
    other = data.public_from and identity(data.public_from, data.root)
    text = dumps([identity(data.name, data.root), other, data.superclasses, data.labels, data.classes, rows])
    return {
        **_select_deciding(overrides.flatten_settings(experiment), unit),
        "digest": seeding.keyed_digest(secret, "units", text),
    }


def alike(trials: Sequence[Path], unit: str) -> bool:
    """Whether trials on one data set have the same units; by their settings alone if the data cannot be read."""
    try:
        begun = [trial for trial in trials if (trial / "config.json").exists()]
        flats = {trial: flatten_tree(read_json(trial / "config.json")) for trial in begun}
        names = {trial: identity(flat.get("data.name", ""), flat.get("data.root")) for trial, flat in flats.items()}
        distinct = {(names[t], *_select_deciding(flat, unit).items()): t for t, flat in flats.items()}
        if len(distinct) == len(set(names.values())):
            return True
        read = [config.read_config(trial / "config.json") for trial in distinct.values()]
        return len({privacy_units(e, unit, b"-")["digest"] for e in read}) == len(set(names.values()))
    except ValueError:
        return False


def _select_deciding(flat: Mapping[str, Any], unit: str) -> dict[str, str]:
    names = [k for k in flat if k in PUBLIC or (unit == "client" and (k in DEALT or k.partition(".")[0] in DEALT))]
    return {name: overrides.format_value(flat[name]) for name in names}
