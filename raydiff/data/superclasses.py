"""Superclasses: clients see a record's superclass; its class is a hidden base distribution.

Source: FedDistr, arXiv 2410.12530, appendix A.1.

Shapes: N rows, n of them kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

from raydiff.data.source import Picture, Source
from raydiff.lookup import nearest

CIFAR100: dict[str, tuple[str, ...]] = {
    "aquatic_mammals": ("beaver", "dolphin", "otter", "seal", "whale"),
    "fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "flowers": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "food_containers": ("bottle", "bowl", "can", "cup", "plate"),
    "fruit_and_vegetables": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "household_electrical_devices": ("clock", "keyboard", "lamp", "telephone", "television"),
    "household_furniture": ("bed", "chair", "couch", "table", "wardrobe"),
    "insects": ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    "large_carnivores": ("bear", "leopard", "lion", "tiger", "wolf"),
    "large_man-made_outdoor_things": ("bridge", "castle", "house", "road", "skyscraper"),
    "large_natural_outdoor_scenes": ("cloud", "forest", "mountain", "plain", "sea"),
    "large_omnivores_and_herbivores": ("camel", "cattle", "chimpanzee", "elephant", "kangaroo"),
    "medium_mammals": ("fox", "porcupine", "possum", "raccoon", "skunk"),
    "non-insect_invertebrates": ("crab", "lobster", "snail", "spider", "worm"),
    "people": ("baby", "boy", "girl", "man", "woman"),
    "reptiles": ("crocodile", "dinosaur", "lizard", "snake", "turtle"),
    "small_mammals": ("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    "trees": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
    "vehicles_1": ("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
    "vehicles_2": ("lawn_mower", "rocket", "streetcar", "tank", "tractor"),
}
"""The coarse classes of CIFAR-100 (Krizhevsky 2009), each with its five fine classes, both in alphabetical order."""

TABLES: dict[str, dict[str, tuple[str, ...]]] = {
    "parity": {"even": ("0", "2", "4", "6", "8"), "odd": ("1", "3", "5", "7", "9")},
    "pairs": {"0/1": ("0", "1"), "2/3": ("2", "3"), "4/5": ("4", "5"), "6/7": ("6", "7"), "8/9": ("8", "9")},
    "cifar100": CIFAR100,
    # FedDistr takes 10 of 20 superclasses and 2 of 5 subclasses, without saying which
    "cifar100-10x2": {name: CIFAR100[name][:2] for name in sorted(CIFAR100)[:10]},
}
"""Name -> {superclass: its classes}."""


def check(name: str) -> None:
    """Raises ValueError, with the nearest name, unless there is a table of this name."""
    if name not in TABLES:
        hint = nearest(name, TABLES) or f"; known: {', '.join(TABLES)}"
        raise ValueError(f"data.superclasses has no table {name!r}{hint}")


def applied(source: Source, name: str) -> Source:
    """`source` with superclasses as classes, and the classes as hidden base distributions.

    Rows of classes in no superclass are left out, and the others numbered anew.

    Raises:
        ValueError: The table names a class that the source lacks.
    """
    table = TABLES[name]
    parents = {fine: parent for parent, of in table.items() for fine in of}
    if missing := [fine for fine in parents if fine not in source.names[0]]:
        raise ValueError(
            f"data.superclasses={name} needs the class {missing[0]!r}, which {source.says} has not "
            f"(its {source.columns[0]} is one of {_few(source.names[0])})"
        )
    bases = tuple(fine for fine in source.names[0] if fine in parents)
    base_of = torch.tensor([bases.index(fine) if fine in parents else -1 for fine in source.names[0]])
    parent_of = torch.tensor([list(table).index(parents[fine]) for fine in bases])
    base = base_of[source.labels[:, 0]]
    kept = (base >= 0).nonzero()[:, 0]
    labels = source.labels[kept].clone()
    labels[:, 0] = parent_of[base[kept]]

    def pictures(rows: Tensor) -> Iterator[Picture]:
        return source.pictures(kept[rows])

    left_out = len(base) - len(kept)
    note = [f"{left_out} of {len(base)} rows left out: their class is in no superclass of {name}"] if left_out else []
    return dataclasses.replace(
        source,
        labels=labels,
        columns=("superclass", *source.columns[1:]),
        names=(tuple(table), *source.names[1:]),
        own_test=int((kept >= len(base) - source.own_test).sum()),
        pictures=pictures,
        notes=(*source.notes, *note),
        base=base[kept],
        base_names=bases,
        fitted_columns=tuple(column for column in source.columns[1:] if column in source.fitted_columns),
    )


def _few(names: tuple[str, ...]) -> str:
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
