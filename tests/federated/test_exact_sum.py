"""Exact sums: each summand is rounded once, and then neither order nor grouping matters."""

import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from raydiff.federated.exact_sum import BLOCK, SUM_BITS, ExactSum, Grid, OutOfRange
from raydiff.seeding import generator
from raydiff.tree import Flat, Params

ROOM = 8.0
FLOATS = st.floats(-ROOM, ROOM, width=32) | st.sampled_from([0.0, -0.0, 2.0**-149, -(2.0**-140), 2.0**-126, ROOM])


def leaf(values: list[float], dtype: torch.dtype = torch.float32) -> Params:
    return {"w": torch.tensor(values, dtype=dtype)}


def exact(grid: Grid, summands: list[tuple[Params, float]]) -> ExactSum:
    total = ExactSum(grid)
    for params, weight in summands:
        total.add(params, weight)
    return total


def steps_of(total: ExactSum) -> dict[str, np.ndarray]:
    """The sum in steps of the grid, leaf by leaf: integers, added modulo 2**64."""
    assert total.layout is not None
    steps = total.layout.leaves(torch.from_numpy(total._bits - total._origin().reshape(1).view(np.int64) * total.count))
    return {k: v.numpy() for k, v in steps.items()}


def half_a_step(grid: Grid) -> float:
    return math.ldexp(0.5, grid.exponent)


def by_hand(grid: Grid, values: list[float], weights: list[int]) -> int:
    """The sum in steps of the grid, in the integers: half a step rounds to the even neighbour, as Python's does."""
    step = Fraction(2) ** grid.exponent
    return sum(round(Fraction(value) * weight / step) for value, weight in zip(values, weights, strict=True))


# --- the arithmetic, against the integers ---


@given(st.lists(st.tuples(FLOATS, st.integers(0, 1000)), min_size=1, max_size=30), st.integers(1, 10**9))
def test_it_is_the_integers_sum(pairs: list[tuple[float, int]], more: int) -> None:
    grid = Grid.of(ROOM * 1000, max(len(pairs), more))
    total = exact(grid, [(leaf([value]), weight) for value, weight in pairs])
    assert steps_of(total)["w"].tolist() == [by_hand(grid, *map(list, zip(*pairs, strict=True)))]


def test_a_sum_by_hand() -> None:
    grid = Grid(exponent=-2, summands=4, largest=100.0)  # Quarters.
    total = exact(grid, [(leaf([0.125, 1.0]), 1), (leaf([0.375, -3.0]), 1), (leaf([0.2, 0.26]), 3)])
    # .125 and .375 are ties: they go to the even neighbour.
    assert steps_of(total)["w"].tolist() == [0 + 2 + 2, 4 - 12 + 3]
    assert total.over(5)["w"].tolist() == pytest.approx([4 / 4 / 5, -5 / 4 / 5], rel=1e-7)


@given(
    st.lists(st.lists(FLOATS, min_size=3, max_size=3), min_size=2, max_size=12),
    st.randoms(use_true_random=False),
)
def test_neither_order_nor_grouping_changes_a_bit(rows: list[list[float]], rng: object) -> None:
    grid = Grid.of(ROOM * 20, len(rows))
    summands = [(leaf(row), 1.0 + i) for i, row in enumerate(rows)]
    first = exact(grid, summands)
    rng.shuffle(summands)  # type: ignore[attr-defined]
    cuts = sorted(rng.sample(range(len(rows) + 1), 2))  # type: ignore[attr-defined]
    parts = [exact(grid, part) for part in (summands[: cuts[0]], summands[cuts[0] : cuts[1]], summands[cuts[1] :])]
    rng.shuffle(parts)  # type: ignore[attr-defined]
    whole = ExactSum(grid)
    for part in parts:
        whole.merge(pickle.loads(pickle.dumps(part)))  # As they travel.
    assert whole.count == first.count == len(rows)
    assert np.array_equal(steps_of(whole)["w"], steps_of(first)["w"])
    assert torch.equal(whole.over(7.0)["w"], first.over(7.0)["w"])


@given(st.lists(FLOATS, min_size=1, max_size=50))
def test_the_error_of_a_mean_is_half_a_step_at_most(values: list[float]) -> None:
    """And far below float32's: half a step is 2**-52 of the largest entry, float32's rounding 2**-24 of each."""
    grid = Grid.of(ROOM, len(values))
    assert half_a_step(grid) == ROOM * 2.0**-52
    steps = steps_of(exact(grid, [(leaf([value]), 1.0) for value in values]))["w"].item()
    mean = Fraction(steps) * Fraction(2) ** grid.exponent / len(values)
    assert abs(mean - sum(map(Fraction, values)) / len(values)) <= Fraction(half_a_step(grid))


@pytest.mark.parametrize("summands", [1, 2, 3, 2048, 2049, 10**6, 2**40])
def test_the_largest_summands_there_may_be_still_fit(summands: int) -> None:
    for largest in (ROOM, math.nextafter(ROOM, 0), 1e-30, 3e7):
        grid = Grid.of(largest, summands)
        total = ExactSum(grid)
        total.add({"w": torch.tensor([largest, -largest], dtype=torch.float64)})
        high, low = steps_of(total)["w"].tolist()
        assert high == -low == round(Fraction(largest) / Fraction(2) ** grid.exponent)
        assert high * summands <= 2**SUM_BITS


def test_leaves_of_several_types_keep_theirs() -> None:
    """Blocks of a leaf, a leaf without entries, a number, half precision and float64."""
    rng = torch.Generator().manual_seed(1)
    dtypes = {"a": torch.bfloat16, "b": torch.float64, "c": torch.float16, "d": torch.float32, "e": torch.float32}
    shapes: dict[str, tuple[int, ...]] = {"a": (3, 2), "b": (), "c": (2, 0), "d": (BLOCK + 3,), "e": (2, BLOCK)}
    value = {k: torch.randn(shapes[k], generator=rng, dtype=torch.float64).to(dtypes[k]) for k in shapes}
    mean = exact(Grid.of(64.0, 2), [(value, 1.0), (value, 1.0)]).over(2.0)
    assert {k: (v.dtype, v.shape) for k, v in mean.items()} == {k: (v.dtype, v.shape) for k, v in value.items()}
    assert all(torch.equal(mean[k], value[k]) for k in "acde")
    assert float(mean["b"]) == pytest.approx(float(value["b"]), abs=2.0**-44)


# --- what is refused ---


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 8.001, -9.0, 1e38])
def test_a_summand_beyond_the_range_is_refused_whole(bad: float) -> None:
    total = exact(Grid.of(ROOM, 3), [(leaf([1.0, 2.0]), 1.0)])
    before = steps_of(total)["w"]
    # It quotes no number of the upload: more people read rejections than uploads.
    with pytest.raises(OutOfRange, match=r"^an entry times its weight is not within the sum's range of 8$"):
        total.add(leaf([1.0, bad]))
    assert np.array_equal(steps_of(total)["w"], before) and total.count == 1
    long = torch.ones(BLOCK + 1)
    for values in ({"v": long, "w": torch.tensor([1.0, bad])}, {"v": torch.cat([long, torch.tensor([bad])])}):
        with pytest.raises(OutOfRange):  # Whichever leaf it is in.
            ExactSum(total.grid).add(values)
    with pytest.raises(OutOfRange):
        total.add(leaf([3.0, 0.0]), weight=3.0)


def test_a_sum_from_another_process_is_left_as_it_is() -> None:
    """Its array is read-only memory that Ray shares; merged into, or added to, it is another one's."""
    given = exact(Grid.of(ROOM, 4), [(leaf([1.0, 2.0]), 1.0)])
    assert given._bits is not None
    given._bits.flags.writeable = False
    before = given._bits.copy()
    for more in (lambda s: s.merge(given), lambda s: s.add(leaf([1.0, 2.0]))):
        total = ExactSum(given.grid)
        total.merge(given)
        more(total)
        more(total)
        assert torch.equal(total.over(1.0)["w"], torch.tensor([3.0, 6.0])) and total.count == 3
    assert np.array_equal(given._bits, before)


def test_one_more_than_there_is_room_for_is_refused() -> None:
    grid = Grid.of(ROOM, 2)
    total = exact(grid, [(leaf([1.0]), 1.0)])
    with pytest.raises(ValueError, match="no room for 3"):
        total.merge(exact(grid, [(leaf([1.0]), 1.0)] * 2))
    with pytest.raises(ValueError, match="no room for 3"):
        exact(grid, [(leaf([1.0]), 1.0)] * 3)


def test_other_leaves_and_other_grids_are_refused() -> None:
    total = exact(Grid.of(ROOM, 3), [(leaf([1.0]), 1.0)])
    with pytest.raises(ValueError, match="differ in their leaves"):
        total.add({"v": torch.ones(1)})
    with pytest.raises(ValueError, match="unlike grids"):
        total.merge(exact(Grid.of(2 * ROOM, 3), [(leaf([1.0]), 1.0)]))
    with pytest.raises(ValueError, match="positive weight"):
        exact(Grid.of(ROOM, 1), [(leaf([1.0]), 0.0)]).over(0.0)


@pytest.mark.parametrize(("largest", "summands"), [(0.0, 1), (math.inf, 1), (math.nan, 1), (-1.0, 1), (1.0, 0)])
def test_a_grid_that_cannot_be(largest: float, summands: int) -> None:
    with pytest.raises(ValueError, match="a grid needs"):
        Grid.of(largest, summands)


@pytest.mark.parametrize("flat", [True, False])
def test_the_mean_of_whole_numbers_is_none_and_gives_back_their_sum(flat: bool) -> None:
    """As large as int32 has them: by seven, which no power of two is a multiple of."""
    ends, rng = torch.iinfo(torch.int32), generator(2)
    values = [{"n": torch.randint(ends.min, ends.max, (999,), generator=rng, dtype=torch.int32)} for _ in range(7)]
    total = ExactSum(Grid.of(2.0**31, 7))
    for v in values:
        total.add(Flat.of(v) if flat else v)
    mean = total.over(7)["n"]
    assert mean.dtype == torch.float64
    assert ((mean * 7).round().to(torch.int64) == sum(v["n"].to(torch.int64) for v in values)).all()
