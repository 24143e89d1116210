"""Superclasses: clients see a record's superclass; its class is a hidden base distribution."""

import dataclasses

import torch

from raydiff.data.source import Source
from raydiff.lookup import Door

TABLES: Door[dict[str, tuple[str, ...]]] = Door(
    "table of superclasses",  # name -> {superclass: its classes}
    {
        "parity": {"even": ("0", "2", "4", "6", "8"), "odd": ("1", "3", "5", "7", "9")},
        "pairs": {"0/1": ("0", "1"), "2/3": ("2", "3"), "4/5": ("4", "5"), "6/7": ("6", "7"), "8/9": ("8", "9")},
        "cifar100": "raydiff.papers.feddistr.cifar100:CIFAR100",
        "cifar100-10x2": "raydiff.papers.feddistr.cifar100:CIFAR100_10X2",
    },
)


def merge_classes(source: Source, name: str) -> Source:
    """`source` with superclasses as classes, and the classes as hidden base distributions.

    Rows of classes in no superclass are left out. Raises ValueError if the source lacks all classes of a superclass.
    """
    table = TABLES[name]
    classes = source.names[0]
    parents = {fine: place for place, of in enumerate(table.values()) for fine in of}
    if missing := [of[0] for of in table.values() if not set(of) & set(classes)]:
        raise ValueError(f"data.superclasses={name} needs the class {missing[0]!r}, which {source.says} has not")
    bases = tuple(fine for fine in classes if fine in parents)
    base_of = torch.tensor([bases.index(fine) if fine in parents else -1 for fine in classes])
    base = base_of[source.labels[:, 0]]
    out = source.rows((base >= 0).nonzero()[:, 0])
    base, rows = base[base >= 0], len(base)
    parent = torch.tensor([parents[fine] for fine in bases])[base]
    note = [f"{rows - len(base)} of {rows} rows left out: their class is in no superclass of {name}"]
    return dataclasses.replace(
        out,
        labels=torch.cat([parent[:, None], out.labels[:, 1:]], dim=1),
        columns=("superclass", *source.columns[1:]),
        names=(tuple(table), *source.names[1:]),
        notes=(*source.notes, *(note if len(base) < rows else ())),
        base=base,
        base_names=bases,
        fitted_columns=tuple(column for column in source.columns[1:] if column in source.fitted_columns),
    )
