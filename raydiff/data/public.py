"""Public records from another data set than the clients': pictures that no client holds, checked to be so."""

from __future__ import annotations

from collections.abc import Mapping

from raydiff.data import other_source
from raydiff.data.pictures import Colour
from raydiff.data.records import Records
from raydiff.data.source import Source
from raydiff.data.splits import stratified
from raydiff.seeding import generator

PURPOSE = other_source.Purpose(
    records="public records",
    alike="set data.size and data.colour to make them alike",
    own="public pictures are also records of the private data",
    rule="public data must hold no client's records",
)


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

    Their numbers go on from the last row of `source`. Raises ValueError, in one sentence, where there are too few, and
    as `foreign.read` does.
    """
    if count > len(other.labels):
        raise ValueError(f"there are {len(other.labels)} rows in {other.says}, too few for data.public={count}")
    rows = stratified(other.strata, generator(seed, "splits", "public"))[:count].clone()
    read, notes = other_source.read(other, {"public": rows}, source, splits, size=size, colour=colour, purpose=PURPOSE)
    return read["public"], (f"from {other.says}", *notes)
