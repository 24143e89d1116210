"""Public records from another data set than the clients': pictures that no client holds, checked to be so.

Pictures are compared after they were converted and resized, by a hash of their pixels. That finds copies of the same
picture in whatever file; it does not find a picture that was cropped, or stored again with losses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from raydiff.data import pictures
from raydiff.data.pictures import Colour
from raydiff.data.records import Records
from raydiff.data.source import Source
from raydiff.data.splits import stratified
from raydiff.seeding import generator


def records(
    other: Source,
    source: Source,
    splits: Mapping[str, Records],
    *,
    count: int,
    seed: int,
    size: int | None,
    colour: Colour,
) -> tuple[Records, tuple[str, ...]]:
    """`count` rows of `other`, stratified by class and labelled as in `source`, and notes on them.

    Their numbers go on from the last row of `source`. Raises ValueError, in one sentence, where there are too few,
    labels or shapes do not go together, or one is the same picture as a record of the other splits.
    """
    if count > len(other.labels):
        raise ValueError(f"there are {len(other.labels)} rows in {other.says}, too few for data.public={count}")
    rows = stratified(other.labels[:, 0], generator(seed, "splits", "public"))[:count].clone()
    labels = _relabelled(other.labels[rows], other, source)
    read, notes = pictures.read(other, {"public": rows}, size=size, colour=colour)
    images, ours = read["public"].images, splits["train"].images
    if images.shape[1:] != ours.shape[1:]:
        forms = f"{pictures.form(images.shape[1:])}, but those of {source.says} are {pictures.form(ours.shape[1:])}"
        raise ValueError(f"the pictures of {other.says} are {forms}: set data.size and data.colour to make them alike")
    public = Records(images, labels, rows + len(source.labels))
    _refuse_overlap(public, splits, other, source)
    return public, (f"from {other.says}", *other.notes, *notes)


def _relabelled(labels: Tensor, other: Source, source: Source) -> Tensor:
    """Labels (n, K) of `other`, in the values that the same names have in `source`."""
    if len(other.columns) != len(source.columns):
        has = [f"{s.says} has the label columns {' '.join(s.columns)}" for s in (other, source)]
        raise ValueError(f"public records need the same label columns, but {has[0]}, and {has[1]}")
    out = labels.clone()
    for k, (theirs, ours) in enumerate(zip(other.names, source.names, strict=True)):
        for value in labels[:, k].unique().tolist():
            if theirs[value] not in ours:
                unknown = f"{other.says} has the {other.columns[k]} {theirs[value]!r}"
                raise ValueError(f"{unknown}, which {source.says} has not: public records need the same names")
            out[labels[:, k] == value, k] = ours.index(theirs[value])
    return out


def _refuse_overlap(public: Records, splits: Mapping[str, Records], other: Source, source: Source) -> None:
    held = {
        key: (split, int(number))
        for split, records in splits.items()
        for key, number in zip(_hashes(records), records.numbers, strict=True)
    }
    shared = [(i, held[key]) for i, key in enumerate(_hashes(public)) if key in held]
    if not shared:
        return
    i, (split, number) = shared[0]
    theirs, ours = _where(other, int(public.numbers[i]) - len(source.labels)), _where(source, number)
    raise ValueError(
        f"{len(shared)} of the {len(public)} public pictures are also records of the private data, such as {theirs}, "
        f"which is {ours} (split {split}): public data must hold no client's records"
    )


def _hashes(records: Records) -> list[bytes]:
    return [hashlib.sha256(image.numpy().tobytes()).digest() for image in records.images]


def _where(source: Source, row: int) -> str:
    return next(source.pictures(torch.tensor([row])))[0]
