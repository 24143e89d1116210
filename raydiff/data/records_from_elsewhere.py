"""Records of another data set, labelled by the names of the first, of the same shape.

The first data set's pictures are refused: those of equal pixels after conversion and resizing; cropped or recompressed
copies are not noticed.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from raydiff import tree
from raydiff.data import pictures
from raydiff.data.pictures import PictureOptions
from raydiff.data.records import Records
from raydiff.data.source import Source
from raydiff.seeding import generator


def read_other_records(
    other: Source,
    rows: dict[str, Tensor],
    source: Source,
    splits: Mapping[str, Records],
    options: PictureOptions,
    *,
    role: str,
) -> dict[str, Records]:
    """The records at these rows of `other`, by name, labelled as in `source`.

    Their numbers continue those of `source`. Raises ValueError if labels or shapes do not fit, or a picture is also a
    record of `splits`.
    """
    relabelled = _relabel(other.labels, torch.cat(list(rows.values())), other, source, role)
    read = other.records(rows, options)
    shape = next(iter(read.values())).images.shape[1:]
    ours = splits["train"].images.shape[1:]
    if shape != ours:
        raise ValueError(
            f"the pictures of {other.says} are {pictures.form(shape)}, but those of {source.says} are "
            f"{pictures.form(ours)}: set data.size and data.colour to make them alike"
        )
    out = {k: Records(r.images, relabelled[r.numbers], r.numbers + len(source.labels)) for k, r in read.items()}
    places = {key: (split, row) for split, records in splits.items() for key, row in _hash_pictures(records)}
    hashed = [pair for records in out.values() for pair in _hash_pictures(records)]
    if copies := [(row, *places[key]) for key, row in hashed if key in places]:
        theirs, split, row = copies[0]
        raise ValueError(
            f"{role} must hold no record of the run, but {len(copies)} of {len(hashed)} pictures are, such as "
            f"{other.where(theirs - len(source.labels))}, which is {source.where(row)} (split {split})"
        )
    return out


def public_records(
    other: Source, source: Source, splits: Mapping[str, Records], options: PictureOptions, *, count: int, seed: int
) -> tuple[Records, tuple[str, ...]]:
    """`read_other_records` of `count` random rows of `other`. Raises ValueError also if there are fewer."""
    if count > len(other.labels):
        raise ValueError(f"there are {len(other.labels)} rows in {other.says}, too few for data.public={count}")
    chosen = {"public": torch.randperm(len(other.labels), generator=generator(seed, "splits", "public"))[:count]}
    records = read_other_records(other, chosen, source, splits, options, role="public records")
    return records["public"], (
        f"from {other.says}",
        *other.notes,
        *pictures.describe_conversion(options, chosen, records),
    )


def _relabel(labels: Tensor, rows: Tensor, other: Source, source: Source, role: str) -> Tensor:
    """Labels (N, K) of `other`, in these rows in the values of `source` with the same names."""
    if len(other.columns) != len(source.columns):
        has = [f"{s.says} has the label columns {' '.join(s.columns)}" for s in (other, source)]
        raise ValueError(f"{role} need the same label columns, but {has[0]}, and {has[1]}")
    out = labels.clone()
    for k, (theirs, ours) in enumerate(zip(other.names, source.names, strict=True)):
        for value in labels[rows, k].unique().tolist():
            if theirs[value] not in ours:
                raise ValueError(
                    f"{other.says} has the {other.columns[k]} {theirs[value]!r}, which {source.says} has not: {role} "
                    "need the same names"
                )
            out[labels[:, k] == value, k] = ours.index(theirs[value])
    return out


def _hash_pictures(records: Records) -> list[tuple[str, int]]:
    return list(zip(tree.digests(records.images), records.numbers.tolist(), strict=True))
