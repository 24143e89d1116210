"""Bins with a single record are merged, and no more than need be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from raydiff.data.tables.encode import MISSING
from raydiff.data.tables.read import Table, read
from raydiff.papers.discrete.lone_bins import Ints, lone, merged


def table(tmp_path: Path, values: list[float | None], *, bins: int = 5, **fields: object) -> Table:
    """One column x that is cut, and one that is not."""
    frame = pd.DataFrame({"x": values, "sex": ["f", "m"] * (len(values) // 2)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    return Table(source=str(tmp_path / "t.csv"), bins=bins, **fields)  # type: ignore[arg-type]


def ones(count: int) -> Ints:
    return np.zeros(count, dtype=np.int64)


TAIL: list[float | None] = [0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6]
"""By quantiles: < 1, 1, 2, 3 to < 5, >= 5 with 8, 1, 1, 2 and 2 records."""


def test_each_with_the_smaller_neighbour(tmp_path: Path) -> None:
    config = table(tmp_path, TAIL)
    before = read(config)
    assert before.codes[:, 0].bincount().tolist() == [8, 1, 1, 2, 2]
    assert lone(before, config, ones(14)) == {"x": 2}
    after, names = merged(before, config, ones(14))
    assert names == ("x",) and lone(after, config, ones(14)) == {}
    assert after.mapping.columns[0].categories == ("< 1", "1 to < 3", "3 to < 5", ">= 5")
    assert after.codes[:, 0].bincount().tolist() == [8, 2, 2, 2]
    codes, _ = after.mapping.encode(pd.read_csv(tmp_path / "t.csv", dtype=str))
    assert codes.tolist() == after.codes.tolist()


def test_missing_values_stay_apart(tmp_path: Path) -> None:
    config = table(tmp_path, [*TAIL, None, None], bins=6)
    after, _ = merged(read(config), config, ones(16))
    assert after.mapping.columns[0].categories[-1] == MISSING
    assert after.codes[-2:, 0].tolist() == [len(after.mapping.columns[0].categories) - 1] * 2


def test_records_are_counted_within_their_group(tmp_path: Path) -> None:
    config = table(tmp_path, [float(i) for i in range(20)], bins=5)
    before, groups = read(config), np.array([0] * 4 + [1] + [0] * 3 + [1] + [0] * 11)  # 1 has 4 and 8: bins 1 and 2
    assert merged(before, config, ones(20))[1] == ()
    assert lone(before, config, groups) == {"x": 2}
    after, _ = merged(before, config, groups)
    assert lone(after, config, groups) == {}


def test_nothing_is_merged_in_vain(tmp_path: Path) -> None:
    """A group whose two records are at both ends would take all bins but two, and still be alone in them."""
    config = table(tmp_path, [float(i) for i in range(20)], bins=5)
    before, groups = read(config), np.array([1] + [0] * 18 + [1])
    after, names = merged(before, config, groups)
    assert names == () and after.codes.tolist() == before.codes.tolist()
    assert lone(after, config, groups) == {"x": 2}
    assert lone(before, config, np.arange(20)) == {}  # groups of one record, alone in everything


def test_two_bins_are_left(tmp_path: Path) -> None:
    config = table(tmp_path, [0.0, *[1.0] * 12, 2.0], bins=2)
    before = read(config)
    assert lone(before, config, ones(14)) == {"x": 1}
    after, _ = merged(before, config, ones(14))
    assert len(after.mapping.columns[0].categories) == len(before.mapping.columns[0].categories) == 2
