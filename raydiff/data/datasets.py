"""Data sets of pictures or tables, cut once into disjoint splits.

Clients hold `train`; `validation` chooses checkpoints; `calibration` sets attack thresholds; `test` gives the final
numbers.
"""

import dataclasses
import functools
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from raydiff import tree
from raydiff.data import records_from_elsewhere, source_registry, superclasses
from raydiff.data.modality import PICTURES, Modality
from raydiff.data.pictures import PictureOptions, describe_conversion
from raydiff.data.records import Records as Records
from raydiff.data.source import Source
from raydiff.data.splits import SPLITS as SPLITS, cut
from raydiff.data.tables import read
from raydiff.data.tables.read import TableOptions
from raydiff.lookup import MOST_KINDS, check_one_of
from raydiff.settings import Count, Natural, settings

FittedOn = Literal["public", "all"]


@settings(frozen=True, kw_only=True)
class Data(TableOptions, PictureOptions):
    """Which data set, and how it is cut. The default sizes suit digits (1797 rows).

    Raises:
        ValueError: If a name is empty, or fields exclude each other.

    Examples:
        >>> rd.Data(name="mnist", train=1000, superclasses="parity").public
        250
    """

    name: str = field(default="digits", metadata={"location": "folder"})
    """digits, mnist, colour-mnist, cifar10, cifar100, faces, another folder below the root, a path, hub:owner/name, a
    table (adult, german, loan, a .csv, .tsv or .parquet file), or module:name, a function as in
    `source_registry.SOURCES`."""
    root: str | None = field(default=None, metadata={"location": "value"})
    """Folder of data sets; None: the environment variable RAYDIFF_DATA."""
    labels: tuple[str, ...] = ()
    """Label columns, the class first; empty: the only one, of parquet files `label` or else `fine_label`."""
    superclasses: str | None = None
    """Replace classes by superclasses, dropping other classes: parity or pairs of the ten digits; cifar100 (its 20
    coarse classes), or cifar100-10x2 (10 of these with 2 classes each). Clients then see only the superclass."""
    train: Count | None = None
    """Training records of all clients together; None: all remaining rows."""
    public: Natural = 250
    """Records declared public, for clip norms, the feature network and the like."""
    public_from: str | None = field(default=None, metadata={"location": "folder"})
    """Another data set (as in `name`) for the public records; None: rows of this one."""
    validation: Natural = 200
    """Records for the choice of checkpoints."""
    calibration: Natural = 100
    """Records for attack thresholds."""
    test: Natural = 400
    """Records for final numbers; from the source's test rows if it has some."""
    split_seed: int = 0
    """Seed of the splits, independent of the experiment's seed."""
    fitted_on: FittedOn = "public"
    """Records from which undeclared types, bins, categories and classes are taken. public: the public split alone
    (of a table drawn without reading rows). all: everybody's, before any mechanism: epsilon is then inf."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("name", "public_from"):
            if getattr(self, name) == "":
                raise ValueError(f"data.{name} must name a data set or a folder, got ''")
        if self.public_from is not None and self.public < 1:
            raise ValueError("data.public must be at least 1 with data.public_from, got 0")
        if self.public_from is not None and (read.is_table(self.name) or read.is_table(self.public_from)):
            raise ValueError("data.public_from must be none where a data set is a table")
        if self.superclasses is not None:
            check_one_of("data.superclasses", self.superclasses, superclasses.TABLES)
        if len(set(self.labels)) < len(self.labels):
            raise ValueError(f"data.labels must name each column once, got {' '.join(self.labels)}")


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set, cut into the five `SPLITS`: disjoint, each in an order that does not depend on the records' contents.

    `label_names` are those of the values 0, 1, ... of each label column; `hidden_names` those of the classes that
    superclasses hide from the clients. `digest` is the hex SHA-256 over images, labels, row numbers and base
    distributions of every split. `notes` tell of conversions, and of rows or files left out. `modality` is what one
    record is. `fitted_columns` (of pictures label columns) have undeclared categories; `private_fit` says what
    was taken for them from all records, "" if only public records were used."""

    name: str
    splits: dict[str, Records]
    label_names: tuple[tuple[str, ...], ...]
    digest: str
    label_columns: tuple[str, ...] = ()
    says: str = ""
    notes: tuple[str, ...] = ()
    hidden_names: tuple[str, ...] = ()
    modality: Modality = PICTURES
    fitted_columns: tuple[str, ...] = ()
    private_fit: str = ""

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


def anywhere(config: Data) -> Data:
    """The same data set for processes with another working directory and environment: paths are absolute."""
    places = {"root": config.root or os.environ.get("RAYDIFF_DATA")}
    for name in ("name", "public_from"):
        value = getattr(config, name)
        places[name] = value if value and source_registry.is_path(value, config.root) else None
    changes: dict[str, Any] = {name: absolute(path) for name, path in places.items() if path}
    return dataclasses.replace(config, **changes)


def absolute(path: str) -> str:
    """The path from the root of this machine's files."""
    return str(Path(path).expanduser().absolute())


def load_dataset(config: Data) -> Dataset:
    """The data set that `config` describes, cached in the process.

    Raises ValueError for an unknown name, a missing or malformed file, an undecodable or unfitting picture, a single
    class, or splits larger than the data.
    """
    other = None if config.public_from is None else source_registry.folder_of(config.public_from, config.root)
    # A relative and an absolute path are one data set, read once.
    return _load(anywhere(config), source_registry.folder_of(config.name, config.root), other)


@functools.lru_cache(maxsize=8)
def _load(config: Data, folder: Path | None, public_folder: Path | None) -> Dataset:
    source = source_of(config, folder)
    sizes = {split: getattr(config, split) for split in SPLITS} | ({"public": 0} if config.public_from else {})
    name = repr(config.name)
    rows = cut(source.labels, source.own_test, public=source.public, sizes=sizes, seed=config.split_seed, name=name)
    splits = source.records(rows, config)
    notes = describe_conversion(config, rows, splits)
    if len(present := source.labels[:, 0].unique()) < 2:
        only = source.names[0][int(present)]
        raise ValueError(f"{name} has one class only, {only!r}: there is nothing to condition on")
    if config.public_from is not None:
        other = source_registry.open_source(config.public_from, public_folder, config.labels, table=config.superclasses)
        splits["public"], more = records_from_elsewhere.public_records(
            other, source, splits, config, count=config.public, seed=config.split_seed
        )
        notes = (*notes, *(f"public records: {note}" for note in more))
    splits["public"] = splits["public"].without_base()  # visible to clients
    if source.codes is None and config.fitted_on == "public":
        _check_classes(source, splits["public"])
    learnt = "the classes" if source.codes is None else "types, bins, names of categories and classes"
    digest = tree.digest({f"{split}/{k}": v for split, records in splits.items() for k, v in records.leaves.items()})
    return Dataset(
        name=config.name,
        splits=splits,
        label_names=source.names,
        digest=digest,
        label_columns=source.columns,
        says=source.says,
        notes=(*source.notes, *notes),
        hidden_names=source.base_names,
        modality=source.modality,
        fitted_columns=source.fitted_columns,
        private_fit=f"{learnt}, taken from all records" if config.fitted_on == "all" and source.fitted_columns else "",
    )


def source_of(config: Data, folder: Path | None) -> Source:
    """All rows of the data set in this folder."""
    return source_registry.open_source(
        config.name,
        folder,
        config.labels,
        table=config.superclasses,
        options=config,
        public=None if config.fitted_on == "all" else config.public,
        seed=config.split_seed,
    )


def _check_classes(source: Source, public: Records) -> None:
    """Raises ValueError for an undeclared class without a public record: its existence would depend on private data."""
    unseen = list[str]()
    for column in source.fitted_columns:
        k = source.columns.index(column)
        values = source.labels[~torch.isin(source.labels[:, k], public.labels[:, k]), k].unique().tolist()
        unseen += [f"the {column} {source.names[k][value]!r}" for value in values]
    if unseen:
        more = f" or {len(unseen) - MOST_KINDS} others" if len(unseen) > MOST_KINDS else ""
        raise ValueError(
            f"none of the {len(public)} public records has {', '.join(unseen[:MOST_KINDS])}{more} of {source.says}: "
            "raise data.public, declare the classes that records have (ClassLabel), or set data.fitted_on to all "
            "(epsilon is then inf)"
        )
