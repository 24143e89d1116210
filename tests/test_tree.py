"""Algebra on dicts of tensors."""

import math
import pickle
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from raydiff import tree
from raydiff.seeding import generator
from raydiff.tree import Params


def params(seed: int) -> Params:
    rng = generator(seed)
    return {"a": torch.randn(3, 2, generator=rng), "b/c": torch.randn((), generator=rng), "d": torch.zeros(0)}


def equal(a: Params, b: Params) -> bool:
    return tree.digest(a) == tree.digest(b)


def test_leaf_by_leaf() -> None:
    a, b = params(0), params(1)
    assert torch.equal(tree.add(a, b)["a"], a["a"] + b["a"])
    assert torch.equal(tree.sub(a, b)["b/c"], a["b/c"] - b["b/c"])
    assert torch.equal(tree.scale(a, -3.0)["a"], -3 * a["a"])


def test_arguments_are_left_alone_and_results_are_new() -> None:
    a, b = params(0), params(1)
    before = tree.digest(a), tree.digest(b)
    for result in (tree.add(a, b), tree.sub(a, b), tree.scale(a, 1.0)):
        for leaf in result.values():
            leaf.fill_(7.0)
    assert (tree.digest(a), tree.digest(b)) == before


@pytest.mark.parametrize("f", [tree.add, tree.sub])
def test_trees_of_different_keys_are_refused(f: Callable[[Params, Params], Params]) -> None:
    with pytest.raises(ValueError, match=r"differ in their keys: \['extra'\]"):
        f(params(0), {**params(1), "extra": torch.ones(1)})


def test_norm_is_that_of_all_leaves_together() -> None:
    a = params(0)
    together = torch.cat([v.reshape(-1) for v in a.values()]).double()
    assert tree.norm(a) == pytest.approx(float(together.norm()), rel=1e-12)
    assert tree.norm({}) == 0
    assert tree.norm({"x": torch.full((4,), 1e30)}) == pytest.approx(2e30)  # its square is beyond float32


def test_the_largest_entry_of_all_leaves() -> None:
    assert tree.largest({"a": torch.tensor([1.0, -3.0]), "b": torch.tensor(2.0), "c": torch.zeros(0)}) == 3
    assert tree.largest({}) == 0
    assert math.isnan(tree.largest({"a": torch.tensor([1.0]), "b": torch.tensor([0.0, math.nan])}))


def test_prefixes() -> None:
    a = params(0)
    both = {**tree.prefixed("own", a), **tree.prefixed("owner", params(1)), "free": torch.ones(1)}
    assert equal(tree.under("own", both), a)  # "owner/..." begins with "own" too
    assert sorted(tree.without("own", both)) == ["free", "owner/a", "owner/b/c", "owner/d"]


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=8, max_size=8), st.floats(0.01, 100))
def test_clipping_bounds_each_record_and_keeps_its_direction(values: list[float], clip: float) -> None:
    x = torch.tensor(values).view(2, 1, 2, 2)
    clipped = tree.clip_records(x, clip)
    for before, after in zip(x.double(), clipped.double(), strict=True):
        length = float(before.norm())
        assert float(after.norm()) == pytest.approx(min(length, clip), rel=1e-5)
        if length <= clip * (1 - 1e-6):
            assert torch.equal(before, after)
        if length > 1e-30:
            torch.testing.assert_close(after * length, before * after.norm(), rtol=1e-4, atol=1e-5 * length * clip)


def test_bytes() -> None:
    assert tree.nbytes({"x": torch.zeros(3, 5), "y": torch.zeros(7, dtype=torch.int64)}) == 3 * 5 * 4 + 7 * 8
    assert tree.nbytes({}) == 0


def test_finite_is_every_entry_of_every_leaf() -> None:
    large = torch.full((4,), 3e38)  # finite, and its sum is not
    good = {"x": torch.ones(2, 3), "n": torch.ones(2, dtype=torch.int64), "none": torch.zeros(0), "large": large}
    assert tree.is_finite(good) and tree.is_finite({}) and not bool(large.sum().isfinite())
    for bad in (math.nan, math.inf, -math.inf):
        assert not tree.is_finite({**good, "y": torch.tensor([0.0, bad])})
    assert not tree.is_finite({"y": torch.tensor([math.inf, -math.inf])})


def test_digest_sees_names_shapes_types_and_bits() -> None:
    x = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    nearly = x.clone()
    nearly[1, 1] = torch.nextafter(torch.tensor(3.0), torch.tensor(4.0))
    negative_zero = x.clone()
    negative_zero[0, 0] = -0.0
    leaves = (x.view(4), x.view(torch.int32), nearly, negative_zero)
    digests = [tree.digest(p) for p in ({"x": x}, {"y": x}, {"x": x, "y": x}, {}, *({"x": leaf} for leaf in leaves))]
    assert len(set(digests)) == len(digests)


def test_digest_does_not_see_order_or_strides() -> None:
    x = torch.randn(4, 3, generator=generator(0))
    strided: Tensor = x.t().contiguous().t()
    assert strided.stride() != x.stride()
    a = {"x": x, "y": torch.tensor(True)}
    b = {"y": torch.tensor(True), "x": strided.requires_grad_()}
    assert tree.digest(a) == tree.digest(b)


# --- flat trees ---


def several() -> dict[str, Tensor]:
    """Leaves whose sizes are no multiples of what memory is aligned to, a number, and one without entries."""
    rng = torch.Generator().manual_seed(3)
    shapes: dict[str, tuple[int, ...]] = {"w": (3, 5), "a": (), "none": (0, 2), "b": (16,)}
    return {k: torch.randn(shape, generator=rng) for k, shape in shapes.items()}


def test_a_flat_tree_has_the_leaves_where_torch_would_have_put_them() -> None:
    flat = tree.Flat.of(several())
    assert list(flat) == sorted(flat) and tree.digest(flat) == tree.digest(several())
    assert all(v.data_ptr() % tree.ALIGNMENT == 0 for v in flat.values() if v.numel())
    assert tree.nbytes(flat) == tree.nbytes(several()) and tree.Flat.of(flat) is flat
    flat["w"].zero_()
    assert int(flat.buffer.count_nonzero()) == 1 + 16  # Those of "a" and "b": between the leaves there is nothing.


def test_a_layout_has_one_view_of_many_trees() -> None:
    trees = [{"a": torch.randn(2, 3), "b": torch.randn(5), "c": torch.randn(())} for _ in range(4)]
    layout = tree.Layout.of(trees[0])
    whole = {k: torch.stack([one[k] for one in trees]) for k in trees[0]}
    rows = layout.joined(whole, 4)
    assert tree.digest(layout.leaves(rows)) == tree.digest(whole)
    assert [tree.digest(layout.leaves(row)) for row in rows] == [tree.digest(one) for one in trees]
    assert [tree.digest(layout.leaves(row)) for row in rows[1:, :]] == [tree.digest(one) for one in trees[1:]]


def test_what_is_done_to_flat_trees_is_done_to_their_leaves() -> None:
    a, b = several(), tree.scale(several(), 0.3)
    flat, other = tree.Flat.of(a), tree.Flat.of(b)
    for f in (tree.add, tree.sub):
        result = f(flat, other)
        assert isinstance(result, tree.Flat) and tree.digest(result) == tree.digest(f(a, b))
        assert tree.digest(f(flat, b)) == tree.digest(f(a, b))  # One of them is no flat tree.
    assert tree.norm(flat) == tree.norm(a) and tree.largest(flat) == tree.largest(a)
    assert tree.without("absent", flat) is flat and list(tree.without("w", tree.Flat.of({"w/x": a["b"]}))) == []
    flat["b"][3] = math.nan
    assert tree.is_finite(other) and not tree.is_finite(flat) and math.isnan(tree.largest(flat))


def test_a_flat_tree_travels_whole() -> None:
    flat = tree.Flat.of(several())
    buffers: list[pickle.PickleBuffer] = []
    received = pickle.loads(pickle.dumps(flat, protocol=5, buffer_callback=buffers.append), buffers=buffers)
    assert isinstance(received, tree.Flat) and tree.digest(received) == tree.digest(flat) and len(buffers) == 1
    assert tree.tensors(tree.arrays(flat)) is flat


def test_a_flat_tree_is_only_read() -> None:
    flat = tree.Flat.of(several())
    for write in (
        lambda: flat.update(a=torch.ones(())),
        lambda: flat.__setitem__("a", torch.ones(())),
        lambda: flat.pop("a"),
        lambda: flat.__ior__({}),
    ):
        with pytest.raises(TypeError, match="read-only"):
            write()
    assert dict(flat) | {"a": 1} != flat


def test_types_that_differ_are_not_flat() -> None:
    mixed = several() | {"b": torch.ones(2, dtype=torch.float64)}
    with pytest.raises(ValueError, match=r"one type, got torch\.float32, torch\.float64"):
        tree.Flat.of(mixed)
    assert tree.digest(tree.flatten(mixed)) == tree.digest(mixed)
    assert isinstance(tree.flatten(several()), tree.Flat)


def test_a_layout_travels_without_what_is_derived_from_it() -> None:
    """Each message has one; a process derives the views of equal layouts once."""
    flat = tree.Flat.of({"w": torch.ones(3, 4), "none": torch.ones(2, 0, 3), "number": torch.tensor(1.0)})
    fresh = tree.Layout(flat.layout.names, flat.layout.shapes, flat.layout.dtype)
    assert len(pickle.dumps(flat.layout)) == len(pickle.dumps(fresh))
    first, second = (pickle.loads(pickle.dumps(flat)) for _ in range(2))
    assert first.layout is second.layout and first.layout == flat.layout
    assert {k: v.stride() for k, v in first.items()} == {k: v.clone().stride() for k, v in flat.items()}
