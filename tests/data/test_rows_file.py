"""Released rows: a number lies in the bin that it was drawn for, on the grid of its column, from the seed alone."""

import datetime
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from raydiff.data.tables import cells, rows_file
from raydiff.data.tables.encode import MISSING, OTHER, UNUSED, Column, Mapping, _quantiles
from raydiff.data.tables.kinds import canonical
from raydiff.data.tables.read import RawTable, read_table
from raydiff.formats.csv_files import write_csv
from raydiff.seeding import generator

PUBLIC = {
    "whole": ([18, 90, 30, 30, 41, 52], 1.0),
    "negative": ([-5, -4, -1, 0, 7], 1.0),
    "two values": ([0, 1], 1.0),
    "one value": ([7.5], 0.5),
    "cents": ([0.99, 1.0, 1.01, 12.34, 99.95], 0.01),
    "millionths": ([1e-6, 3e-6, 2.5e-3, 1.0], 1e-6),
    "large": ([2.0**52, 2.0**53 - 1, 1e15], 1.0),
    "measured": ([-1.23456789012, 0.1, 1 / 3, 2.5e-9], None),
    "tiny": ([1e-300, 2e-300, 5e-300], None),
    "huge": ([1e300, 2e300, -1e300], None),
    "seconds": ([0, 86_400, 90_000, 1.2e9], 60.0),
}
"""Public numbers of a column, and the step of which all are multiples."""


def column_of(values: list[float], step: float | None, bins: int = 4, **fields: Any) -> Column:
    edges = _quantiles(np.array(values, dtype=float), bins)
    names = (*map(str, range(len(edges) + 1)), MISSING)
    limits = (float(min(values)), float(max(values)))
    return Column("x", names, tuple(edges), **{"kind": "number", "limits": limits, "step": step, **fields})


def drawn(column: Column, codes: list[int], seed: int = 0) -> pd.Series:
    table = rows_file.rows(Mapping((column,)), np.array(codes)[:, None], np.zeros(len(codes)), generator(seed))
    assert list(table.columns) == ["x"]
    return table["x"]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_number_is_drawn_in_its_bin_on_the_grid_of_its_column(name: str, tmp_path: Path) -> None:
    """Of public rows: within their limits, and read from the file it has the code that it was drawn for."""
    values, step = PUBLIC[name]
    column = column_of(values, step)
    codes = list(range(len(column.categories))) * 50
    numbers = drawn(column, codes)
    assert numbers.isna().tolist() == [column.categories[code] == MISSING for code in codes]
    write_csv(tmp_path / "x.csv", numbers.to_frame())
    texts = pd.read_csv(tmp_path / "x.csv", dtype=str, skip_blank_lines=False)["x"]
    assert column.codes(texts).tolist() == codes
    kept = numbers.dropna().astype(float)
    assert min(values) <= kept.min() and kept.max() <= max(values)
    if step:
        assert np.allclose(kept / step, (kept / step).round(), rtol=1e-9)
        assert texts.dropna().str.len().max() <= 17
    assert (numbers.dtype == "Int64") == (step in (1.0, 60.0))
    assert numbers.equals(drawn(column, codes))


@given(
    values=st.lists(st.integers(-(10**7), 10**7), min_size=1, max_size=30),
    step=st.sampled_from([1.0, 0.1, 0.01, 1e-3, None]),
    bins=st.integers(2, 8),
    declared=st.booleans(),
    seed=st.integers(0, 99),
)
def test_each_draw_has_the_code_of_its_bin(
    values: list[int], step: float | None, bins: int, declared: bool, seed: int
) -> None:
    numbers = [round(value * (step or 0.0137), 6) for value in values]
    column = column_of(numbers, step, bins)
    if declared and column.edges:
        column = column_of(numbers, None, bins, limits=None)
    codes = list(range(len(column.edges or ()) + 1)) * 5
    assert column.codes(drawn(column, codes, seed).astype(object).map(str)).tolist() == codes


rng = np.random.default_rng(0)
DAYS = [datetime.date(1969, 6, 1) + datetime.timedelta(int(n)) for n in rng.integers(0, 9000, 200)]
TIMES = [datetime.datetime(2020, 1, 1) + datetime.timedelta(seconds=int(n)) for n in rng.integers(0, 10**7, 200)]
WHOLE = rng.integers(0, 120, 200).tolist()
CENTS = [decimal.Decimal(int(n)) / 100 for n in rng.integers(-9000, 9000, 200)]
TYPES: dict[str, tuple[Any, str]] = {
    **{str(t): (pa.array(WHOLE, t), "Int64") for t in (pa.int8(), pa.uint8(), pa.int32(), pa.uint64(), pa.int64())},
    "whole floats": (pa.array(WHOLE, pa.float64()), "Int64"),
    "dictionary": (pa.array(WHOLE).dictionary_encode(), "Int64"),
    "negative": (pa.array([n - 60 for n in WHOLE]), "Int64"),
    "with missing": (pa.array([None if n % 5 == 0 else n for n in WHOLE]), "Int64"),
    "few": (pa.array([n % 3 for n in WHOLE]), "Int64"),
    "few halves": (pa.array([n % 3 / 2 for n in WHOLE]), "Float64"),
    "float": (pa.array(rng.normal(0, 3, 200)), "Float64"),
    "float32": (pa.array(rng.normal(0, 3, 200).astype(np.float32)), "Float64"),
    "cents": (pa.array([float(x) for x in CENTS]), "Float64"),
    "decimal": (pa.array(CENTS, pa.decimal128(12, 2)), "Float64"),
    **{f"day {t}": (pa.array(DAYS, t), "object") for t in (pa.date32(), pa.date64())},
    **{f"time {u}": (pa.array(TIMES, pa.timestamp(u)), "object") for u in ("s", "ms", "us", "ns")},
    "zone": (pa.array(TIMES, pa.timestamp("us", "Europe/Berlin")), "object"),
    "few days": (pa.array([datetime.date(2020, 1, 1 + n % 3) for n in WHOLE]), "object"),
    "duration": (pa.array([datetime.timedelta(hours=n) for n in WHOLE], pa.duration("ms")), "Int64"),
    "clock": (pa.array([datetime.time(n % 24, n % 60) for n in WHOLE], pa.time32("s")), "Int64"),
    "truth": (pa.array([n % 2 == 0 for n in WHOLE]), "object"),
    "codes": (pa.array([f"{n % 4:02}" for n in WHOLE]), "object"),
    "formulas": (pa.array([("=1", "+a", "-1", "'=1")[n % 4] for n in WHOLE]), "object"),
    "marks": (pa.array([("NA", "?", "nan", "x")[n % 4] for n in WHOLE]), "object"),
}
"""A column of a parquet file, and the type of its generated cells: numbers come out as numbers, dates as texts."""


@pytest.mark.parametrize("name", TYPES)
def test_a_column_of_each_type_comes_out_as_it_went_in(tmp_path: Path, name: str) -> None:
    """Each row, written and read from CSV, has the codes that it was made from; but what no public row has is left
    empty among numbers and dates."""
    array, dtype = TYPES[name]
    pq.write_table(pa.table({"x": array, "z": ["a", "b"] * 100, "y": ["n", "y"] * 100}), tmp_path / "t.parquet")
    table = read_table(RawTable(source=str(tmp_path / "t.parquet"), label="y"), public=60)
    column, codes = table.mapping.columns[0], table.codes.numpy()
    rows = rows_file.rows(table.mapping, codes, table.labels.numpy(), generator(0))  # type: ignore[union-attr]
    assert str(rows["x"].dtype).replace("str", "object") == dtype
    write_csv(tmp_path / "t.csv", rows)
    texts = cells.read_cells(tmp_path / "t.csv", cells.Csv(missing=())).frame["x"]
    kind = "number" if column.kind == "duration" else column.kind  # in seconds
    again, codes = column.codes(texts.map(lambda text: canonical(text, kind), na_action="ignore")), codes[:, 0]
    lost = np.array([c in (OTHER, MISSING) for c in column.categories])[codes] & (column.kind != "text")
    assert (again[~lost] == codes[~lost]).all() and lost.sum() < 100
    assert rows["x"].isna().to_numpy()[lost].all()


@pytest.mark.parametrize(
    ("edges", "low", "high"),
    [((25, 35, 45), 15, 55), ((1, 1500, 2500), 0, 3500), ((-3, 5), -11, 13), ((10,), 0, 20), ((0.5, 1.0), 0, 1.5)],
)
def test_declared_bins_end_a_neighbours_width_beyond_their_edges(edges: Any, low: float, high: float) -> None:
    """And do not cross 0: no row is looked at. Between whole edges there are whole numbers."""
    column = Column("x", tuple("abcd"[: len(edges) + 1]), tuple(map(float, edges)), kind="number")
    numbers = drawn(column, list(range(len(edges) + 1)) * 2000)
    assert numbers.min() == pytest.approx(low, abs=0.02) and numbers.max() == pytest.approx(high, abs=0.02)
    assert (numbers.dtype == "Int64") == (edges != (0.5, 1.0))
    card = rows_file.describe_values(Mapping((column,)), "drawn")
    assert card["ranges"] == {"x": [str(low), str(high)]} and "drawn uniformly" in card["values"]
    assert not rows_file.describe_values(Mapping((column,)), "bins")["ranges"]


def test_draws_are_uniform_and_of_this_seed() -> None:
    numbers = drawn(column_of(list(range(100)), 1.0, bins=2), [0] * 5000)
    counts = numbers.value_counts()
    assert sorted(counts.index) == list(range(50)) and ((counts - 100) ** 2 / 100).sum() < 95  # p = 1e-4 at 49
    assert not numbers.equals(drawn(column_of(list(range(100)), 1.0, bins=2), [0] * 5000, seed=1))


def test_a_column_of_few_numbers_has_numbers_alone() -> None:
    """What no public row has is left empty, as a missing value is; text columns keep it, and names of bins are kept
    on request."""
    few = Column("x", ("1", "2.5", OTHER, MISSING), kind="number")
    assert drawn(few, [0, 1, 2, 3, 4]).astype(object).tolist() == [1.0, 2.5, *[pd.NA] * 3]
    texts = Column("x", ("01", "2", OTHER, MISSING))
    assert drawn(texts, [0, 1, 2, 3, 4]).fillna("").tolist() == ["01", "2", OTHER, "", UNUSED]
    bins = rows_file.rows(Mapping((column_of([1, 2, 3], 1.0),)), np.array([[0], [2]]), np.zeros(2), None)
    assert bins["x"].tolist() == ["0", "2"]
