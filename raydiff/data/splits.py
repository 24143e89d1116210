"""How the rows of a source are cut into disjoint splits: by their places and the seed, never by what they hold.

So a record with another label is in the same split, at the same place, and so is every other record: a guarantee that
covers labels would not hold otherwise. How many records of a class a split has is left to chance.
"""

from __future__ import annotations

from collections.abc import Sized

import torch
from torch import Tensor

from raydiff.seeding import generator

SPLITS = ("train", "public", "validation", "calibration", "test")


def cut(
    records: Sized,
    own_test: int,
    *,
    sizes: dict[str, int | None],
    seed: int,
    name: str,
    public: Tensor | None = None,
) -> dict[str, Tensor]:
    """Row numbers of each split, in random order, of N records, the last `own_test` of them the source's own test.

    `sizes` has a number for each of `SPLITS`, or None: all that is left; `public` are the public rows, where they were
    drawn before. Raises ValueError where sizes are too large.
    """
    own = len(records) - own_test
    if own < 1:
        raise ValueError(f"{name} has test rows only")
    left = torch.arange(own) if public is None else torch.ones(own).index_fill(0, public, 0).nonzero()[:, 0]
    order = left[torch.randperm(len(left), generator=generator(seed, "splits", "train"))]
    test = {"test": sizes["test"]}
    # The training split is dealt last, so that another size of it moves no other split.
    others = {split: sizes[split] for split in ("public", "validation", "calibration", "train")}
    beside = name
    if public is not None:
        del others["public"]
        beside = f"{name} beside the {len(public)} public ones"
    if own_test:
        test_order = own + torch.randperm(own_test, generator=generator(seed, "splits", "test"))
        rows = _deal(test_order, test, f"test rows in {name}") | _deal(order, others, f"train rows in {beside}")
    else:
        rows = _deal(order, test | others, f"rows in {beside}")
    if public is not None:
        rows["public"] = public
    return {split: rows[split] for split in SPLITS}


def _deal(order: Tensor, sizes: dict[str, int | None], pool: str) -> dict[str, Tensor]:
    """Cut `order` into pieces of the given sizes; None is all that is left, at least one row."""
    least = {split: 1 if n is None else n for split, n in sizes.items()}
    if sum(least.values()) > len(order):
        wanted = " + ".join(f"data.{split}{'>=1' if n is None else f'={n}'}" for split, n in sizes.items())
        raise ValueError(f"there are {len(order)} {pool}, too few for {wanted}: lower one of these")
    pieces, start = {}, 0
    for split, n in sizes.items():
        stop = len(order) if n is None else start + n
        pieces[split] = order[start:stop].clone()
        start = stop
    return pieces
