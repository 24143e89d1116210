"""Data sets, of pictures or tables, cut once into disjoint splits: train, public, validation, calibration, test.

Five splits, so that nothing is chosen on the rows that judge it: clients hold `train`; `public` is what the
parameters of a mechanism may be taken from; `validation` chooses checkpoints; `calibration` sets attack
thresholds; `test` gives the final numbers. What a name can be is in `sources`.

Shapes: N records, C channels, H x W pixels, K label columns.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from raydiff import tree
from raydiff.data import other_source, pictures, superclasses
from raydiff.data import sources as names
from raydiff.data.pictures import Colour
from raydiff.data.records import Records as Records
from raydiff.data.source import Source
from raydiff.data.splits import SPLITS as SPLITS
from raydiff.data.splits import cut
from raydiff.data.tables import read
from raydiff.data.tables.encode import Mapping
from raydiff.lookup import check_one_of

FittedOn = Literal["public", "all"]


@dataclass(frozen=True, kw_only=True)
class Data:
    """Which data set, and how it is cut. The default sizes suit digits (1797 rows)."""

    name: str = "digits"
    """digits, mnist, colour-mnist, cifar10, cifar100, faces, another folder below the root, a path (it has a /), or
    hub:owner/name, a data set of the Hugging Face hub. Or a table: adult, german, loan, a .csv or .parquet file. Or
    module:name, a function like those of `sources.SOURCES` from anywhere."""
    root: str | None = None
    """Folder of data sets; None: the environment variable RAYDIFF_DATA."""
    size: int | None = None
    """Crop each picture to its central square and resize it to size x size by area averaging; None: as stored."""
    colour: Colour = "stored"
    """Convert all pictures to grey or rgb; stored: as they are, which must be one of the two."""
    labels: tuple[str, ...] = ()
    """Label columns, the class first; empty: the only one, or `label` or else `fine_label` of parquet files."""
    bins: int | None = None
    """The most categories of a column of a table; None: the preset's, or 5."""
    superclasses: str | None = None
    """Put classes together, and leave the others out, by a table: parity or pairs of the ten digits; cifar100, its 20
    coarse classes, or cifar100-10x2, 10 of these with 2 classes each. Clients then know the superclass alone."""
    train: int | None = None
    """Training records of all clients together; None: all that the other splits leave."""
    public: int = 250
    """Records declared public: a clip norm, the feature network and the like may be taken from them."""
    public_from: str | None = None
    """Another data set (as in `name`) that the public records are taken from; None: rows of the same."""
    validation: int = 200
    """Records for the choice of checkpoints."""
    calibration: int = 100
    """Records for attack thresholds."""
    test: int = 400
    """Records for final numbers; from the source's own test rows where it has some."""
    split_seed: int = 0
    """Seed of the cut, apart from the experiment's: trials that differ in that one share their splits."""
    fitted_on: FittedOn = "public"
    """Whose records tell what nobody gives: types, bins, categories and classes of a table, the classes of pictures.
    public: those of the public split alone; of a table this is then drawn without a look at any row. all: everybody's,
    before any mechanism, so that no guarantee is left: every client has an event for it, and epsilon is inf."""

    def __post_init__(self) -> None:
        for field in ("name", "public_from"):
            if getattr(self, field) == "":
                raise ValueError(f"data.{field} must name a data set or a folder, got ''")
        if self.public_from is not None and self.public < 1:
            raise ValueError(f"data.public must be at least 1 where data.public_from is given, got {self.public}")
        least = {"size": 1, "train": 1, "public": 0, "validation": 0, "calibration": 0, "test": 0}
        for field, low in least.items():
            value = getattr(self, field)
            if value is not None and value < low:
                raise ValueError(f"data.{field} must be at least {low}, got {value}")
        if self.bins is not None and self.bins < 2:
            raise ValueError(f"data.bins must be at least 2, got {self.bins}")
        check_one_of("data.fitted_on", self.fitted_on, get_args(FittedOn))
        if self.public_from is not None and (read.is_table(self.name) or read.is_table(self.public_from)):
            raise ValueError("data.public_from must be none where a data set is a table")
        if self.superclasses is not None:
            superclasses.check(self.superclasses)
        if len(set(self.labels)) < len(self.labels):
            raise ValueError(f"data.labels must name each column once, got {' '.join(self.labels)}")


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set, cut into splits."""

    name: str
    splits: dict[str, Records]
    """The five `SPLITS`: disjoint, each in an order that depends on nothing that a record holds."""
    label_names: tuple[tuple[str, ...], ...]
    """For each label column the names of its values 0, 1, ..."""
    digest: str
    """Hex SHA-256 over images, labels, row numbers and base distributions of every split."""
    label_columns: tuple[str, ...] = ()
    """Names of the label columns."""
    says: str = ""
    """Where it is from, in a few words."""
    notes: tuple[str, ...] = ()
    """What was done to the pictures on the way in, or left out: a sentence each."""
    hidden_names: tuple[str, ...] = ()
    """Names of the classes that superclasses hide from the clients; empty without superclasses."""
    mapping: Mapping | None = None
    """Of a table: what the codes of its columns mean. None: the records are pictures."""
    found: tuple[str, ...] = ()
    """Label columns, and of a table all columns, whose categories nobody has given."""
    learned: str = ""
    """What was taken from everybody's records with `found`, in words; "": nothing, the public records alone tell it."""

    @property
    def base_names(self) -> tuple[str, ...]:
        """Names of the base distributions: the hidden classes, or else the classes."""
        return self.hidden_names or self.label_names[0]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W); of a table (1, 1, n)."""
        channels, height, width = self.splits["train"].images.shape[1:]
        return channels, height, width

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Number of values of each label column."""
        return tuple(len(names) for names in self.label_names)


def load(config: Data) -> Dataset:
    """The data set that `config` describes.

    Cached in the process, so warm workers read a data set once; files are taken not to change meanwhile.
    Raises ValueError, in one sentence, on an unknown name, a missing, damaged or malformed file, a picture
    that cannot be decoded or does not fit, a single class, and splits larger than the data.
    """
    other = None if config.public_from is None else names.folder_of(config.public_from, config.root)
    return _load(config, names.folder_of(config.name, config.root), other)


@functools.lru_cache(maxsize=8)
def _load(config: Data, folder: Path | None, public_folder: Path | None) -> Dataset:
    source = source_of(config, folder)
    sizes = {split: getattr(config, split) for split in SPLITS}
    if config.public_from is not None:
        sizes["public"] = 0
    rows = cut(
        source.labels,
        source.own_test,
        sizes=sizes,
        seed=config.split_seed,
        name=repr(config.name),
        public=source.public,
    )
    splits, notes = pictures.read(source, rows, size=config.size, colour=config.colour)
    if len(present := source.labels[:, 0].unique()) < 2:
        only = source.names[0][int(present)]
        raise ValueError(f"{config.name!r} has one class only, {only!r}: there is nothing to condition on")
    notes = (*source.notes, *notes)
    if config.public_from is not None:
        other = names.source(config.public_from, public_folder, config.labels, table=config.superclasses)
        splits["public"], more = other_source.public_records(
            other, source, splits, count=config.public, seed=config.split_seed, size=config.size, colour=config.colour
        )
        notes = (*notes, *(f"public records: {note}" for note in more))
    splits["public"] = splits["public"].without_base()  # Clients have public records too.
    if source.codes is None and config.fitted_on == "public":
        _check_classes(source, splits["public"])
    digest = tree.digest({f"{split}/{k}": v for split, records in splits.items() for k, v in records.leaves.items()})
    return Dataset(
        name=config.name,
        splits=splits,
        label_names=source.names,
        digest=digest,
        label_columns=source.columns,
        says=source.says,
        notes=notes,
        hidden_names=source.base_names,
        mapping=source.mapping,
        found=source.found,
        learned=_learned(source) if config.fitted_on == "all" else "",
    )


def source_of(config: Data, folder: Path | None) -> Source:
    """All rows of the data set in this folder."""
    public, how = None if config.fitted_on == "all" else config.public, {"table": config.superclasses}
    return names.source(
        config.name, folder, config.labels, bins=config.bins, public=public, seed=config.split_seed, **how
    )


def _check_classes(source: Source, public: Records) -> None:
    """Raises ValueError where a record has a class that is neither given nor a public record's: that there is such a
    class would then be known from it."""
    for column in source.found:
        k = source.columns.index(column)
        unseen = source.labels[~torch.isin(source.labels[:, k], public.labels[:, k]), k]
        if len(unseen):
            raise ValueError(
                f"none of the {len(public)} public records has the {column} {source.names[k][int(unseen.min())]!r} of "
                f"{source.says}, and nobody names its values: raise data.public, name them in parquet files "
                "(ClassLabel), or set data.fitted_on to all (epsilon is then inf)"
            )


def _learned(source: Source) -> str:
    if not source.found:
        return ""
    what = "the classes" if source.codes is None else "types, bins, names of categories and classes"
    return f"{what}, taken from all records"
