"""Records of another data set, made to go with the first: labels by name, pictures of one shape, no picture of its own.

Pictures are compared after they were converted and resized, by a hash of their pixels. That finds copies of the same
picture in whatever file; it does not find a picture that was cropped, or stored again with losses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from raydiff import tree
from raydiff.data import pictures
from raydiff.data.pictures import Colour
from raydiff.data.records import Records
from raydiff.data.source import Source
from raydiff.seeding import generator


@dataclass(frozen=True, kw_only=True)
class Purpose:
    """What the other records are for: the words of what is refused."""

    records: str
    """"public records need the same label columns"."""
    alike: str
    """How to make the pictures alike."""
    own: str
    """What the first data set's records are, of which the others hold none."""
    rule: str
    """Why they may hold none."""


PUBLIC = Purpose(
    records="public records",
    alike="set data.size and data.colour to make them alike",
    own="public pictures are also records of the private data",
    rule="public data must hold no client's records",
)


def read(
    other: Source,
    rows: dict[str, Tensor],
    source: Source,
    splits: Mapping[str, Records],
    *,
    size: int | None,
    colour: Colour,
    purpose: Purpose,
) -> tuple[dict[str, Records], tuple[str, ...]]:
    """The records at these row numbers of `other`, by name, labelled as in `source`, and notes on them.

    Their numbers go on from the last row of `source`. Raises ValueError, in one sentence, where labels or shapes do not
    go together, or one is the same picture as a record of `splits`.
    """
    relabelled = {name: _relabelled(other.labels[numbers], other, source, purpose) for name, numbers in rows.items()}
    found, notes = pictures.read(other, rows, size=size, colour=colour)
    shape, ours = next(iter(found.values())).images.shape[1:], splits["train"].images.shape[1:]
    if shape != ours:
        forms = f"{pictures.form(shape)}, but those of {source.says} are {pictures.form(ours)}"
        raise ValueError(f"the pictures of {other.says} are {forms}: {purpose.alike}")
    out = {
        name: Records(records.images, relabelled[name], records.numbers + len(source.labels))
        for name, records in found.items()
    }
    _refuse_overlap(list(out.values()), splits, other, source, purpose)
    return out, (*other.notes, *notes)


def public_records(
    other: Source,
    source: Source,
    splits: Mapping[str, Records],
    *,
    count: int,
    seed: int,
    size: int | None,
    colour: Colour,
) -> tuple[Records, tuple[str, ...]]:
    """`count` rows of `other`, labelled as in `source`, and notes on them.

    Their numbers go on from the last row of `source`. Raises ValueError, in one sentence, where there are too few, and
    as `read` does.
    """
    if count > len(other.labels):
        raise ValueError(f"there are {len(other.labels)} rows in {other.says}, too few for data.public={count}")
    rows = torch.randperm(len(other.labels), generator=generator(seed, "splits", "public"))[:count].clone()
    found, notes = read(other, {"public": rows}, source, splits, size=size, colour=colour, purpose=PUBLIC)
    return found["public"], (f"from {other.says}", *notes)


def _relabelled(labels: Tensor, other: Source, source: Source, purpose: Purpose) -> Tensor:
    """Labels (n, K) of `other`, in the values that the same names have in `source`."""
    if len(other.columns) != len(source.columns):
        has = [f"{s.says} has the label columns {' '.join(s.columns)}" for s in (other, source)]
        raise ValueError(f"{purpose.records} need the same label columns, but {has[0]}, and {has[1]}")
    out = labels.clone()
    for k, (theirs, ours) in enumerate(zip(other.names, source.names, strict=True)):
        for value in labels[:, k].unique().tolist():
            if theirs[value] not in ours:
                unknown = f"{other.says} has the {other.columns[k]} {theirs[value]!r}"
                raise ValueError(f"{unknown}, which {source.says} has not: {purpose.records} need the same names")
            out[labels[:, k] == value, k] = ours.index(theirs[value])
    return out


def _refuse_overlap(
    new: Sequence[Records], splits: Mapping[str, Records], other: Source, source: Source, purpose: Purpose
) -> None:
    held = {key: (split, number) for split, records in splits.items() for key, number in _hashed(records)}
    hashed = [pair for records in new for pair in _hashed(records)]
    shared = [(number, held[key]) for key, number in hashed if key in held]
    if not shared:
        return
    theirs, (split, number) = shared[0]
    places = f"{_where(other, theirs - len(source.labels))}, which is {_where(source, number)} (split {split})"
    raise ValueError(f"{len(shared)} of the {len(hashed)} {purpose.own}, such as {places}: {purpose.rule}")


def _hashed(records: Records) -> list[tuple[str, int]]:
    return list(zip(tree.digests(records.images), records.numbers.tolist(), strict=True))


def _where(source: Source, row: int) -> str:
    return next(source.pictures(torch.tensor([row])))[0]
