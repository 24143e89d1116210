"""Records of a client that joins a finished run, and held-out ones of its classes.

They are rows of the run in no split, then its validation split, and its test split; or of another data set, and its
test rows, else half of its rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from raydiff.data import records_from_elsewhere, source_registry
from raydiff.data.datasets import Data, Dataset, source_of
from raydiff.data.pictures import describe_conversion
from raydiff.data.records import Records, label_numbers
from raydiff.data.source import Source
from raydiff.data.splits import SPLITS, cut
from raydiff.lookup import is_outside
from raydiff.seeding import generator
from raydiff.settings import Count, settings


@dataclass(frozen=True, eq=False)
class UnseenClient:
    """The records of an unseen client."""

    records: Records  # its training records
    held_out: Records  # reference for its generated records, with at least two of each of its classes
    says: str  # origin of both
    notes: tuple[str, ...] = ()  # conversions


@settings(frozen=True, kw_only=True)
class Choice:
    """Selection of an unseen client's records."""

    data: str | None = None
    """A data set, named as in `Data.name`; None: the run's."""
    classes: tuple[str, ...] = ()
    """Names of its classes, or numbers if no name is a number; empty: all."""
    records: Count | None = None
    """Number of training records; None: as many as a client of the run, of another data set all."""
    seed: int = 0
    """Seed of the selection."""


def choose_client(choice: Choice, config: Data, dataset: Dataset, *, usual: int) -> UnseenClient:
    """An unseen client of a run on `dataset` (`config`, loaded), whose clients have `usual` records.

    Raises ValueError if classes or shapes differ from the run's, pictures are records of the run, or there are too few.
    """
    names = dataset.label_names[0]
    values = {str(number): v for v, number in enumerate(label_numbers(names))} | {c: v for v, c in enumerate(names)}
    if unknown := [name for name in choice.classes if name not in values]:
        raise ValueError(f"the run's data have no class {unknown[0]!r}; they have {', '.join(names)}")
    classes = sorted({values[name] for name in choice.classes})
    same = choice.data is None or _is_same(choice.data, config)
    client = _of_run(choice, config, dataset, classes, usual) if same else _of_other(choice, config, dataset, classes)
    # Distances compare halves, of two records of each class at least, and three in each half.
    held_out = client.held_out.labels[:, 0].bincount(minlength=len(names))
    for c in client.records.labels[:, 0].unique().tolist():
        if (count := int(held_out[c])) < 2:
            raise ValueError(f"class {names[c]!r} has {count} held-out records, and 2 are needed: {client.says}")
    if (held_out // 2).sum() < 3:
        raise ValueError(f"there are {int(held_out.sum())} held-out records, and 6 are needed: {client.says}")
    return client


def _of_run(choice: Choice, config: Data, dataset: Dataset, classes: Sequence[int], usual: int) -> UnseenClient:
    source = _source(config.name, config)
    splits = dataset.splits
    used = torch.cat([records.numbers for records in splits.values()])
    every = torch.arange(len(source.labels))
    pools = [every[~torch.isin(every, used)], splits["validation"].numbers]
    rng = generator(choice.seed, "newcomer", "rows")
    rows = torch.cat([pool[torch.randperm(len(pool), generator=rng)] for pool in pools])  # independent of labels
    rows = rows[torch.isin(source.labels[rows, 0], torch.tensor(classes))] if classes else rows
    where = f"that no client trained on in {config.name} (rows of no split, then the validation split)"
    rows = _first(rows, choice.records, where, usual=usual)
    records = source.records({"new": rows}, config)["new"].without_base()
    says = f"{source.says}: rows of no split, then of the validation split; held out: the test split"
    return UnseenClient(records, splits["test"].of_classes(records.labels[:, 0].tolist()).without_base(), says)


def _of_other(choice: Choice, config: Data, dataset: Dataset, classes: Sequence[int]) -> UnseenClient:
    source = _source(config.name, config)
    other = _source(str(choice.data), config)
    if other.modality != source.modality:
        raise ValueError(f"codes of {other.says} are not the run's: a new client of a table has rows of the same file")
    wanted = {dataset.label_names[0][c] for c in classes}
    is_wanted = torch.tensor([name in wanted or not wanted for name in other.names[0]])
    rows = is_wanted[other.labels[:, 0]].nonzero()[:, 0]
    if not len(rows):
        raise ValueError(f"there are no records of {' or '.join(sorted(wanted)) or 'any class'} in {other.says}")
    own_test = int((rows >= len(other.labels) - other.own_test).sum())
    most = min(own_test or len(rows) // 2, len(dataset.splits["test"]))
    sizes: dict[str, int | None] = {**dict.fromkeys(SPLITS, 0), "test": most, "train": None}
    places = cut(rows, own_test, sizes=sizes, seed=choice.seed, name=repr(choice.data))
    what = "its test rows" if own_test else "half of them"
    train = _first(rows[places["train"]], choice.records, f"beside those held out ({what}) in {other.says}", usual=None)
    private = {split: records for split, records in dataset.splits.items() if split != "public"}
    chosen = {"new": train, "held out": rows[places["test"]]}
    read = records_from_elsewhere.read_other_records(
        other, chosen, source, private, config, role="a new client's records"
    )
    says = f"{other.says}; held out: {what}, at most as many as the run's test split has"
    held_out = read["held out"].of_classes(read["new"].labels[:, 0].tolist())
    return UnseenClient(read["new"], held_out, says, (*other.notes, *describe_conversion(config, chosen, read)))


def _source(name: str, config: Data) -> Source:
    return source_of(replace(config, name=name), source_registry.folder_of(name, config.root))


def _is_same(name: str, config: Data) -> bool:
    """Whether the name is that of the run's data set; colour-mnist shares the folder of mnist."""
    folders = [source_registry.folder_of(n, config.root) for n in (name, config.name)]
    named = is_outside(name) or is_outside(config.name) or "colour-mnist" in (name, config.name)
    return folders[0] == folders[1] and (name == config.name or not named)


def _first(rows: Tensor, count: int | None, where: str, *, usual: int | None) -> Tensor:
    if len(rows) < (count or 1):
        raise ValueError(f"there are {len(rows)} records of its classes {where}, and a new client needs {count or 1}")
    return rows[: usual if count is None else count]
