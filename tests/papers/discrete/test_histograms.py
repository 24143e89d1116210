"""Hamming histograms by both ways against counting pairs."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from reference.pdp_tables import skewed

from raydiff.papers.discrete import histograms as pdp_histograms
from raydiff.papers.discrete.histograms import blocked, dense, distinct, histograms
from raydiff.papers.discrete.kernel import Ints


def by_pairs(table: Ints, row: Ints) -> tuple[np.ndarray, np.ndarray]:
    """near (n + 1,) and sharing (n, n) of one row that is in the table, itself not counted."""
    n = table.shape[1]
    near, sharing = np.zeros(n + 1, dtype=int), np.zeros((n, n), dtype=int)
    for other in table:
        distance = sum(other != row)
        near[distance] += 1
        for i in range(n):
            if other[i] == row[i]:
                sharing[i, distance] += 1
    near[0] -= 1
    sharing[:, 0] -= 1
    return near, sharing


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(2, 50), st.integers(0, 999), st.booleans())
def test_counts_pairs(columns: int, categories: int, rows: int, seed: int, is_dense: bool) -> None:
    table = np.random.default_rng(seed).integers(0, categories, (rows, columns))
    table[:, 0] //= 2  # columns differ in their number of values
    data = distinct(table)
    np.testing.assert_array_equal(data.rows[data.index], table)
    assert data.weights.sum() == rows
    counts = (dense if is_dense else blocked)(data, np.arange(len(data.rows)))
    whole = histograms(data)
    for row, counted, near, sharing in zip(data.rows, counts, whole.near, whole.sharing, strict=True):
        expected_near, expected = by_pairs(table, row)
        np.testing.assert_array_equal(near, expected_near)
        np.testing.assert_array_equal(sharing, expected)
        counted[:, 0] -= 1
        np.testing.assert_array_equal(counted, expected)


def test_both_ways_agree_on_some_rows_of_a_large_table(monkeypatch: pytest.MonkeyPatch) -> None:
    data = distinct(skewed(20_000, 6, 4, p=0.4))
    some = np.array([3, 900, 17])
    monkeypatch.setattr(pdp_histograms, "BLOCK", len(data.rows))  # a row at a time
    np.testing.assert_array_equal(dense(data, some), blocked(data, some))


def test_counts_above_what_float32_holds() -> None:
    table = np.array([[0, 0], [0, 1], [1, 1]])
    data = pdp_histograms.Distinct(rows=table, weights=np.array([2**24 + 1, 2**32 + 1, 1]), index=np.arange(3))
    for way in (dense, blocked):
        np.testing.assert_array_equal(way(data, np.array([0]))[0], [[2**24 + 1, 2**32 + 1], [2**24 + 1, 0]])


def test_tables_with_more_cells_than_whole_numbers() -> None:
    table = skewed(40, 70, 3, p=0.5)
    data = distinct(np.concatenate([table, table[:5]]))
    np.testing.assert_array_equal(data.rows[data.index[:40]], table)
    assert data.weights.sum() == 45
    expected, _ = by_pairs(np.concatenate([table, table[:5]]), data.rows[7])
    np.testing.assert_array_equal(histograms(data, np.array([7])).near[0], expected)
