"""Source: all N rows of a data set before the splits, with K label columns in memory and pictures on demand."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from raydiff.data.modality import PICTURES, Modality
from raydiff.data.pictures import Picture, PictureOptions
from raydiff.data.records import Records

MOST_VALUES = 65_536  # of a label column, since models have a row of weights for each value
HIDDEN = re.compile(r"\.|__MACOSX$")
OWN_TEST = ("test", "validation", "val")  # names of a source's test rows beside `train`; the first that exists is read


def visible(folder: Path, *, below: bool = False) -> tuple[list[Path], list[Path]]:
    """(folders, files) in this folder, or also `below` it, by name, but those that systems and tools put there."""
    folders = list[Path]()
    files = list[Path]()
    for parent, names, others in os.walk(folder):
        names[:] = sorted(name for name in names if not HIDDEN.match(name))
        folders += [Path(parent, name) for name in names]
        files += [Path(parent, name) for name in sorted(others) if not HIDDEN.match(name)]
        if not below:
            break
    return folders, files


def by_split(paths: Sequence[Path]) -> tuple[list[Path], list[Path], tuple[str, ...]]:
    """(train*, the first of `OWN_TEST` with a *, notes); nothing without train*."""
    named = {name: [path for path in paths if path.name.lower().startswith(name)] for name in ("train", *OWN_TEST)}
    test = next((name for name in OWN_TEST if named["train"] and named[name]), "")
    note = () if test in ("", OWN_TEST[0]) else (f"test rows are those of {test}",)
    return named["train"], named.get(test, []), note


@dataclass(frozen=True)
class Source:
    """All N rows of a data set.

    `labels` (N, K) int64, of which column 0 is the class, are values of `columns`; each column's values 0, 1, ... have
    `names`. The last `own_test` rows are test rows. `pictures` takes ascending row numbers (n,) and gives n pictures,
    in which `top` is white. `notes` tell of conversions, and of rows or files left out. With superclasses `base` (N,)
    int64 are the classes, of `base_names`. A table has `codes` (N, n) int64 in place of pictures. The values
    of `fitted_columns` (of a table also columns of codes) are undeclared, and taken from rows; `public` (p,) int64 are
    the public rows, if they were drawn before any row was read."""

    labels: Tensor
    columns: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]
    own_test: int
    pictures: Callable[[Tensor], Iterator[Picture]]
    says: str
    top: int = 255
    notes: tuple[str, ...] = ()
    base: Tensor | None = None
    base_names: tuple[str, ...] = ()
    codes: Tensor | None = None
    modality: Modality = PICTURES
    fitted_columns: tuple[str, ...] = ()
    public: Tensor | None = None

    def select(self, labels: Sequence[str]) -> Source:
        """The source with only these label columns, in this order; all if empty."""
        for name in labels:
            if name not in self.columns:
                raise ValueError(f"{self.says} has no label column {name!r}; it has {', '.join(self.columns)}")
        if not labels:
            return self
        index = [self.columns.index(name) for name in labels]
        return dataclasses.replace(
            self,
            labels=self.labels[:, index],
            columns=tuple(labels),
            names=tuple(self.names[i] for i in index),
            fitted_columns=tuple(name for name in labels if name in self.fitted_columns),
        )

    def rows(self, kept: Tensor) -> Source:
        """The source with only these rows, ascending."""
        return dataclasses.replace(
            self,
            labels=self.labels[kept],
            own_test=int((kept >= len(self.labels) - self.own_test).sum()),
            pictures=lambda rows: self.pictures(kept[rows]),
            base=None if self.base is None else self.base[kept],
        )

    def records(self, rows: dict[str, Tensor], options: PictureOptions) -> dict[str, Records]:
        """Return the records of each split. Raises ValueError as `Modality.encode`."""
        read = self.modality.encode(rows, options, stored=self.pictures, top=self.top, codes=self.codes)
        splits = {}
        for split, (images, numbers) in read.items():
            base = None if self.base is None else self.base[numbers]
            splits[split] = Records(images, self.labels[numbers], numbers, base)
        return splits

    def where(self, row: int) -> str:
        """Location of this row."""
        return next(self.pictures(torch.tensor([row])))[0]

    def with_used_values(self, *, declared: bool) -> Source:
        """Return the source with the label values that rows other than test rows have, renumbered in their order.

        `declared`: with all that have a name. Test rows of other values are left out. A column that loses a value is
        fitted: rows decide which it has. Raises ValueError for a value without a name.
        """
        used = [values.unique() for values in self.labels[: len(self.labels) - self.own_test].T]
        for k, (column, names) in enumerate(zip(self.columns, self.names, strict=True)):
            if len(wrong := used[k][(used[k] < 0) | (used[k] >= len(names))]):
                where = self.where(int((self.labels[:, k] == wrong[0]).nonzero()[0]))
                raise ValueError(
                    f"{where} has the {column} {int(wrong[0])}, but names are of 0 to {len(names) - 1}: name it, or "
                    "leave such rows out of the files"
                )
        if declared:
            used = [torch.arange(len(names)) for names in self.names]
        kept = torch.stack([torch.isin(self.labels[:, k], values) for k, values in enumerate(used)]).all(0)
        if not kept.any():
            return self
        out = self.rows(kept.nonzero()[:, 0])
        labels = [torch.searchsorted(values, out.labels[:, k].contiguous()) for k, values in enumerate(used)]
        named = tuple(tuple(n[v] for v in values.tolist()) for n, values in zip(self.names, used, strict=True))
        lost = {c for c, have, every in zip(self.columns, named, self.names, strict=True) if len(have) < len(every)}
        unseen = f"test rows left out: those whose {' or '.join(self.columns)} no other row has"
        return dataclasses.replace(
            out,
            labels=torch.stack(labels, 1),
            names=named,
            notes=self.notes if kept.all() else (*self.notes, unseen),
            fitted_columns=tuple(c for c in self.columns if c in lost or c in self.fitted_columns),
        )
