"""Disjoint splits of a source's rows, by place and seed: another label of a record moves no record."""

from collections.abc import Sized

import torch
from torch import Tensor

from raydiff.seeding import generator

SPLITS = ("train", "public", "validation", "calibration", "test")


def cut(
    records: Sized, own_test: int, *, sizes: dict[str, int | None], seed: int, name: str, public: Tensor | None = None
) -> dict[str, Tensor]:
    """Row numbers of each split, in random order, of N records, of which the last `own_test` are test rows.

    `sizes` has a number for each of `SPLITS` (None: all remaining rows); `public` are public rows drawn before. Raises
    ValueError if sizes are too large.
    """
    count = len(records) - own_test
    if count < 1:
        raise ValueError(f"{name} has test rows only")
    left = torch.arange(count) if public is None else torch.ones(count).index_fill(0, public, 0).nonzero()[:, 0]
    order = left[torch.randperm(len(left), generator=generator(seed, "splits", "train"))]
    taken = {} if public is None else {"public": public}
    beside = name if public is None else f"{name} beside the {len(public)} public ones"
    # Train comes last, so that its size moves no other split.
    others = {split: sizes[split] for split in (*SPLITS[1:], "train") if split not in ("test", *taken)}
    test = {"test": sizes["test"]}
    if own_test:
        test_order = count + torch.randperm(own_test, generator=generator(seed, "splits", "test"))
        rows = _deal(test_order, test, f"test rows in {name}") | _deal(order, others, f"train rows in {beside}") | taken
    else:
        rows = _deal(order, test | others, f"rows in {beside}") | taken
    return {split: rows[split] for split in SPLITS}


def _deal(order: Tensor, sizes: dict[str, int | None], pool: str) -> dict[str, Tensor]:
    """Cut `order` into pieces of these sizes; None: all remaining rows, at least one."""
    if sum(1 if n is None else n for n in sizes.values()) > len(order):
        wanted = " + ".join(f"data.{split}{'>=1' if n is None else f'={n}'}" for split, n in sizes.items())
        raise ValueError(f"there are {len(order)} {pool}, too few for {wanted}: lower some of these")
    fixed = [len(order) - sum(n for n in sizes.values() if n is not None) if n is None else n for n in sizes.values()]
    return dict(zip(sizes, (piece.clone() for piece in order[: sum(fixed)].split(fixed)), strict=True))
