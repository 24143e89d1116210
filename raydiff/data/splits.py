"""How the rows of a source are cut into disjoint splits, stratified by class."""

from __future__ import annotations

import torch
from torch import Tensor

from raydiff.seeding import generator

SPLITS = ("train", "public", "validation", "calibration", "test")


def cut(
    classes: Tensor,
    own_test: int,
    *,
    sizes: dict[str, int | None],
    seed: int,
    name: str,
    public: Tensor | None = None,
) -> dict[str, Tensor]:
    """Row numbers of each split, in stratified order; classes (N,), the last `own_test` of them the source's own test.

    `sizes` has a number for each of `SPLITS`, or None: all that is left; `public` are the public rows, where they were
    drawn without a look at the classes. Raises ValueError where sizes are too large.
    """
    own = len(classes) - own_test
    if own < 1:
        raise ValueError(f"{name} has test rows only")
    left = torch.arange(own) if public is None else torch.ones(own).index_fill(0, public, 0).nonzero()[:, 0]
    order = left[stratified(classes[left], generator(seed, "splits", "train"))] if len(left) else left
    test = {"test": sizes["test"]}
    # The training split is dealt last, so that another size of it moves no other split.
    others = {split: sizes[split] for split in ("public", "validation", "calibration", "train")}
    beside = name
    if public is not None:
        del others["public"]
        beside = f"{name} beside the {len(public)} public ones"
    if own_test:
        test_order = own + stratified(classes[own:], generator(seed, "splits", "test"))
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


def stratified(classes: Tensor, rng: torch.Generator) -> Tensor:
    """All rows in a random order in which every run of neighbours holds each class in its share.

    The i-th of the n rows of a class stands at the relative place (i + 1/2) / n.
    """
    shuffled = torch.randperm(len(classes), generator=rng)
    rename = torch.randperm(int(classes.max()) + 1, generator=rng)  # No class may win all ties.
    renamed = rename[classes[shuffled]]
    by_class = shuffled[torch.argsort(renamed, stable=True)]
    counts = torch.bincount(renamed)
    rank = torch.cat([torch.arange(n) for n in counts.tolist()])
    place = (rank + 0.5).double() / counts.repeat_interleave(counts)
    return by_class[torch.argsort(place, stable=True)]
