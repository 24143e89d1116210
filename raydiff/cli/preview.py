"""Look at a data set as a trial would use it: pictures or columns, labels, splits, norms, partition; train nothing.

    raydiff preview digits                                 # a preset
    raydiff preview path/to/folder --data.size 32          # a data set, by its name or path
    raydiff preview mnist-cpu --clients 4 --partition dirichlet

Overrides are those of raydiff run. Pictures, norms and counts of a table's cells are of the public split only; labels
are public by declaration, but of a table only where its partition deals by label.
"""

import itertools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pandas as pd
from torch import Tensor

from raydiff import seeding
from raydiff.cli import arguments
from raydiff.cli.options import parse_command
from raydiff.data import datasets, partition
from raydiff.data.datasets import SPLITS, Data, Dataset
from raydiff.data.records import Center
from raydiff.data.tables.read import is_table
from raydiff.evaluation import figures
from raydiff.experiment import overrides, suggested
from raydiff.experiment.config import Experiment
from raydiff.experiment.presets import PRESETS
from raydiff.storage import staging

MOST_ROWS = 24  # of a table that is printed, and most columns


@dataclass(frozen=True, kw_only=True)
class PreviewOptions:
    out: Path | None = None
    """Folder for the pictures (default: <storage>/previews/NAME)."""


def main(argv: Sequence[str]) -> int:
    """Load the data, print its tables, draw its pictures."""
    name, rest = arguments.split_first(argv, "digits")
    is_preset = name in PRESETS
    if is_preset:
        start: Experiment = PRESETS[name]().experiment
    else:
        usual = "tabular-german" if is_table(name) else "digits"
        start = replace(PRESETS[usual]().experiment, data=Data(name=name))
    options, fields = parse_command(PreviewOptions, rest, __doc__, start)
    changes = overrides.parse_fields(start, fields)
    experiment: Experiment = overrides.override(start, changes)
    if not is_preset:
        experiment = overrides.override(experiment, suggested.splits(experiment.data, changes))
    method = experiment.method
    dataset = datasets.load_dataset(experiment.data)
    has_clip = hasattr(method, "center") and (is_preset or "method.clip" in changes)  # Else it is yet to be chosen.
    clip = getattr(method, "clip", None) if has_clip else None
    center = cast(Center, getattr(method, "center", "grey"))
    public = dataset.splits["public"]
    train = dataset.splits["train"]
    rng = seeding.generator(experiment.seed, "partition")
    parts = partition.partition(train, experiment.clients, how=experiment.partition, rng=rng)
    counts = partition.counts(train, parts, len(dataset.base_names))
    modality = dataset.modality
    hides_labels = not (modality.labels_are_public or experiment.partition.publishes_labels)
    about = modality.describe_public(public, center=center, clip=clip)
    labels = _labels(dataset, ("public",) if hides_labels else SPLITS)
    print(_source(dataset), labels, about, _clients(dataset, counts, hides_labels=hides_labels), sep="\n\n")
    storage = staging.storage_root(experiment.runtime.storage)
    if not options.out:
        staging.create_storage(storage)
    folder = options.out or storage / "previews" / Path(name).absolute().name
    if not hides_labels:
        folder.mkdir(parents=True, exist_ok=True)
        figures.draw_counts(counts, dataset.base_names, folder / "partition.png")
    modality.draw(public, dataset.label_names[0], folder / "pictures.png")
    print("" if hides_labels else f"\npictures in {folder}")
    words = itertools.chain.from_iterable((f"--{path}", *values) for path, values in fields)
    print(f"next: raydiff {'run' if is_preset else 'init'} {shlex.join([name, *words])}")
    return 0


def _source(dataset: Dataset) -> str:
    splits = ", ".join(f"{split} {len(dataset.splits[split])}" for split in SPLITS)
    lines = [f"{dataset.name}: {dataset.says}", *(f"  {note}" for note in dict.fromkeys(dataset.notes))]
    return "\n".join([*lines, dataset.modality.describe(dataset.shape), f"splits: {splits}"])


def _labels(dataset: Dataset, splits: Sequence[str]) -> str:
    """A table for each label column: records by value and split."""
    blocks = []
    for k, (column, names) in enumerate(zip(dataset.label_columns, dataset.label_names, strict=True)):
        counts = {split: dataset.splits[split].labels[:, k].bincount(minlength=len(names)) for split in splits}
        role = "a condition" if k else "the class"
        blocks.append(_table(f"label column {column} ({role}): {len(names)} values", pd.DataFrame(counts, index=names)))
    return "\n".join(blocks)


def _clients(dataset: Dataset, counts: Tensor, *, hides_labels: bool) -> str:
    title = f"partition: training records of {len(counts)} clients by class (seed and partition as in the trial)"
    clients = [f"client {m}" for m in range(len(counts))]
    frame = pd.DataFrame(counts.numpy(), index=clients, columns=dataset.base_names)
    frame = frame.assign(all=frame.sum(axis=1))
    return _table(title.replace(" by class", ""), frame[["all"]]) if hides_labels else _table(title, frame)


def _table(title: str, frame: pd.DataFrame) -> str:
    return f"{title}: too large to print" if max(frame.shape) > MOST_ROWS else f"{title}\n{frame.to_string()}"
