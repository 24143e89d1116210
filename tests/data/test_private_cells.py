"""One cell of a private row may change its own code, and nothing else: whatever it holds, and however it is stored."""

import csv
import datetime
import decimal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from raydiff.data.datasets import Data, load_dataset
from raydiff.data.modality import TableRows
from raydiff.data.source import Source
from raydiff.data.source_registry import table_rows
from raydiff.data.tables import cells
from raydiff.data.tables.code_books import CODE_BOOKS
from raydiff.data.tables.read import RawTable, TableOptions, read_table
from raydiff.data.unseen_client import Choice, choose_client
from raydiff.seeding import generator

ROWS, PUBLIC, SEED = 24, 10, 3
Column = tuple[list[Any], tuple[pa.DataType, pa.DataType | None] | None]
"""The cells of a column; None where they are texts of a CSV file, else their type, and the one by which a parquet file
stores them (None: pandas writes them as CSV)."""

ODD = ["", " ", "?", "NA", "nan", "-nan", "inf", "-INF", "Infinity", "1e400", "1e-999999999", "9" * 25, "9" * 5000]
ODD += ["1_000", "1,000", "0x10", "\N{ARABIC-INDIC DIGIT ONE}", "+-5", "(other)", "(missing)", "(none)", "pregnant"]
ODD += ['say "a"', "a\nb", "2021-05-01 14:30", "-0", "0" * 5000 + "1", "<NA>", "None", "TRUE", "yes", "0.5", "1.", ".5"]
SPELLINGS = [
    ["True", "False", "TRUE", "true", "false", "FALSE"],
    ["0", "1", "2", "3"],
    ["1.0", "2.00", "2.50", "1e3", "1E+3", "-7"],
    ["01", "1", "007", "0123"],
    ["1 ", " 1", "2\t", "a ", "a"],
    ["9007199254740993", "9007199254740995", "9007199254740992", "9007199254740993.0"],
    ["123456789012345678901", "1e20", "100000000000000000000", "-9223372036854775809"],
    ["2020-01-01", "2020-01-01 00:00:00", "2021-05-01 14:30"],
    ["a", "b", "A", "\N{LATIN SMALL LETTER U WITH DIAERESIS}"],
    ["1,000", "2,000", "1_000"],
    [str(n) for n in range(40)],
    [f"{n / 7:.3f}" for n in range(40)],
]
words = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=6)
texts = st.one_of(st.sampled_from(ODD), words, *map(st.sampled_from, SPELLINGS))

days = st.dates(datetime.date(1700, 1, 1), datetime.date(2200, 1, 1))
midnights = days.map(lambda day: datetime.datetime.combine(day, datetime.time()))
whole_ms = st.integers(0, 86_399_999).map(lambda n: datetime.timedelta(milliseconds=n))
instants = st.one_of(midnights, st.builds(lambda day, time: day + time, midnights, whole_ms))
exact = st.decimals(-(10**9), 10**9, places=2)
UNITS = ("ms", "us", "ns")
TYPED: dict[str, tuple[st.SearchStrategy[Any], list[pa.DataType]]] = {
    "whole numbers": (st.integers(-(2**31), 2**31 - 1), [pa.int32(), pa.int64(), pa.float64(), pa.decimal128(30, 3)]),
    "few whole numbers": (
        st.integers(0, 3),
        [pa.int8(), pa.uint64(), pa.float32(), pa.dictionary(pa.int8(), pa.int64())],
    ),
    "large ones": (st.integers(2**53, 2**53 + 9), [pa.int64(), pa.decimal128(38, 0), pa.decimal256(60, 7)]),
    "numbers": (st.floats(), [pa.float64()]),
    "decimals": (exact, [pa.decimal128(20, 2), pa.decimal128(38, 9), pa.decimal256(60, 20)]),
    "truths": (st.booleans(), [pa.bool_(), pa.dictionary(pa.int8(), pa.bool_())]),
    "texts": (texts, [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]),
    "days": (days, [pa.date32(), pa.date64(), *map(pa.timestamp, UNITS)]),
    "instants": (instants, [*map(pa.timestamp, UNITS)]),
    "instants of a zone": (
        instants,
        [pa.timestamp(u, z) for u, z in (("us", "UTC"), ("ns", "+05:30"), ("ms", "-01:00"))],
    ),
    "times": (
        whole_ms.map(lambda t: (datetime.datetime.min + t).time()),
        [pa.time32("ms"), pa.time64("us"), pa.time64("ns")],
    ),
    "durations": (whole_ms, [*map(pa.duration, UNITS)]),
    "nothing": (st.none(), [pa.null(), pa.int64(), pa.string()]),
}
"""Of a parquet column: its values, and types by which one and the same value may be stored."""

PLAIN = ("whole numbers", "few whole numbers", "numbers", "truths", "texts", "days", "instants", "instants of a zone")
PLAIN += ("times", "durations", "decimals")
"""Those that pandas writes as CSV without a loss: the text of all may follow from one of them."""


@st.composite
def a_change(draw: st.DrawFn) -> tuple[list[list[Column]], int, int]:
    """(two tables of the same cells but one, that cell's column, its row)."""
    stored = draw(st.sampled_from(["csv", "parquet", "csv of pandas"]))
    tables: list[list[Column]] = [[], []]
    place, row = draw(st.integers(0, 2)), draw(st.sampled_from(private()))
    for i in range(3):  # the last is the label
        if stored == "csv":
            values, kinds = texts, st.none()
            pool = draw(st.sampled_from(SPELLINGS))
        else:
            names = sorted(TYPED if stored == "parquet" else PLAIN)
            values, types = TYPED[draw(st.sampled_from([name for name in names if i < 2 or name != "nothing"]))]
            kinds = st.tuples(st.just(types[0]), st.sampled_from(types if stored == "parquet" else [None]))
            most = 40 if i < 2 and draw(st.booleans()) else 4
            pool = draw(st.lists(values, min_size=1 + i // 2, max_size=most, unique_by=repr))
        few = [*pool, None] if i < 2 and draw(st.booleans()) else pool
        held = [draw(st.sampled_from(few)) for _ in range(ROWS)]
        tables[0].append((held, draw(kinds)))
        if i == place:
            held = [*held[:row], draw(st.none() | st.sampled_from(pool) | values), *held[row + 1 :]]
        tables[1].append((held, draw(kinds) if i == place else tables[0][-1][1]))
    return tables, place, row


def written(folder: Path, columns: Sequence[Column]) -> Path:
    """A file of the columns x0, x1 and y."""
    names = ("x0", "x1", "y")
    if columns[0][1] is None:
        path = folder / "t.csv"
        with path.open("w", newline="") as file:
            rows = zip(*(held for held, _ in columns), strict=True)
            csv.writer(file).writerows([names, *(["" if cell is None else cell for cell in row] for row in rows)])
        return path
    arrays = []
    for held, (first, kind) in columns:
        array = pa.array(held, first)
        encodes = isinstance(kind, pa.DictionaryType)
        arrays.append(array.dictionary_encode() if encodes else array if kind is None else array.cast(kind))
    table = pa.table(dict(zip(names, arrays, strict=True)))
    if kind is None:
        table.to_pandas().to_csv(folder / "t.csv", index=False)
        return folder / "t.csv"
    pq.write_table(table, folder / "t.parquet")
    return folder / "t.parquet"


def outcome(path: Path) -> Source | str:
    """The table, of which ten rows are public, or why there is none."""
    try:
        return table_rows(str(path), path, ("y",), TableOptions(bins=4), public=PUBLIC, seed=SEED)
    except ValueError as error:
        return str(error)


def private() -> list[int]:
    """The rows that are not public, which are drawn by their place."""
    order = torch.randperm(ROWS, generator=generator(SEED, "splits", "public rows"))
    return sorted(order[PUBLIC:].tolist())


def assert_same_but_for(row: int, one: Source, other: Source) -> None:
    """All that others have, and all that is said of the table."""
    rest = torch.arange(ROWS) != row
    assert one.codes is not None and other.codes is not None and one.public is not None and other.public is not None
    assert isinstance(one.modality, TableRows)
    assert len(one.codes) == len(other.codes) == ROWS
    assert torch.equal(one.codes[rest], other.codes[rest]) and torch.equal(one.labels[rest], other.labels[rest])
    assert torch.equal(one.public, other.public) and row not in one.public
    assert one.modality == other.modality
    output = [(s.says, s.notes, s.names, s.columns, s.fitted_columns, s.own_test) for s in (one, other)]
    assert output[0] == output[1]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(change=a_change())
def test_a_private_cell_changes_its_own_code_alone(tmp_path: Path, change: tuple[list[list[Column]], int, int]) -> None:
    """Where the table is refused, that too is for what its public rows hold, in the same words."""
    tables, place, row = change
    one, other = (outcome(written(tmp_path, columns)) for columns in tables)
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
        return
    assert_same_but_for(row, one, other)
    assert one.codes is not None and other.codes is not None
    assert isinstance(one.modality, TableRows)
    kept = torch.tensor([column.name != f"x{place}" for column in one.modality.mapping.columns])
    assert torch.equal(one.codes[row][kept], other.codes[row][kept])


@pytest.mark.parametrize("cell", ["", " ", "?", "nan"])
@pytest.mark.parametrize("name", CODE_BOOKS)
def test_a_missing_cell_of_a_preset_takes_its_row_out_and_nothing_else(tmp_path: Path, name: str, cell: str) -> None:
    preset = CODE_BOOKS[name]
    known = {column: [v for group in groups.values() for v in group] for column, groups in preset.groups.items()}
    known |= {column: [str(edge) for edge in edges] for column, edges in preset.cuts.items()}
    lines = [[values[i % len(values)] for values in known.values()] for i in range(ROWS)]
    tables = []
    for place in (None, 0, len(known) - 1):
        changed = [list(line) for line in lines]
        if place is not None:
            changed[5][place] = cell
        pd.DataFrame(changed, columns=list(known)).to_csv(path := tmp_path / "t.csv", index=False)
        tables.append(read_table(RawTable(source=str(path), preset=name), public=PUBLIC, seed=SEED))
    rest = torch.arange(ROWS) != 5
    for table in tables[1:]:
        assert table.rows.tolist() == rest.nonzero()[:, 0].tolist()
        assert table.labels is not None and tables[0].labels is not None
        assert torch.equal(table.codes, tables[0].codes[rest]) and torch.equal(table.labels, tables[0].labels[rest])
        assert (table.mapping, table.notes) == (tables[0].mapping, tables[0].notes)


@pytest.mark.parametrize(
    ("array", "texts"),
    [
        (pa.array([2**53 + 1, None]), ["9007199254740993", None]),
        (pa.array([2**64 - 1, 0], pa.uint64()), ["18446744073709551615", "0"]),
        (pa.array([1.0, 0.1, 1e20, -0.0, float("nan")]), ["1", "0.1", "100000000000000000000", "0", None]),
        (pa.array([1.5, float("inf")], pa.float32()), ["1.5", "inf"]),
        (pa.array([decimal.Decimal("1.50"), decimal.Decimal("9007199254740993.00")]), ["1.5", "9007199254740993"]),
        (pa.array([True, None]), ["True", None]),
        (pa.array([" a ", "N/A", "01", "", "?", None]).dictionary_encode(), [" a ", "N/A", "01", "", "?", None]),
        (pa.array(["NA", "1.0"], pa.large_string()), ["NA", "1.0"]),
        (pa.array([None, None]), [None, None]),
        (pa.array([18_262, None], pa.date32()), ["1577836800", None]),
        (pa.array([0, 1, 86_400_000_000_000], pa.timestamp("ns")), ["0", "0.000000001", "86400"]),
        (pa.array([0, 52_200_000_000], pa.timestamp("us", "+01:00")), ["0", "52200"]),
        (pa.array([0, 500], pa.time32("ms")), ["0", "0.5"]),
        (pa.array([86_400_000, 1500], pa.duration("ms")), ["86400", "1.5"]),
    ],
)
def test_the_text_of_a_typed_cell(tmp_path: Path, array: pa.Array, texts: list[str | None]) -> None:
    pq.write_table(pa.table({"x": array, "row": range(len(array))}), tmp_path / "t.parquet")
    read_back = cells.read_cells(tmp_path / "t.parquet", cells.Csv()).frame["x"]
    assert [None if pd.isna(text) else text for text in read_back] == texts


def test_a_new_client_has_rows_in_the_codes_of_the_run_and_brings_no_other_table(tmp_path: Path) -> None:
    for name, first in (("t", 0), ("u", 100)):
        rows = {
            "age": [first + i // 2 for i in range(60)],
            "sex": ["f", "m"] * 30,
            "pays": ["no", "no", "no", "yes", "yes", "yes"] * 10,
        }
        pd.DataFrame(rows).to_csv(tmp_path / f"{name}.csv", index=False)
    path = tmp_path / "t.csv"
    data = Data(name=str(path), labels=("pays",), train=15, public=20, validation=5, calibration=5, test=10)
    whole = table_rows(data.name, path, data.labels, data, public=20)
    assert whole.codes is not None
    joins = choose_client(Choice(records=10), data, load_dataset(data), usual=10).records
    assert not set(joins.numbers.tolist()) & set(load_dataset(data).splits["train"].numbers.tolist())
    assert torch.equal(joins.images[:, 0, 0].long(), whole.codes[joins.numbers])
    assert torch.equal(joins.labels, whole.labels[joins.numbers])
    with pytest.raises(ValueError, match="a new client of a table has rows of the same file"):
        choose_client(Choice(data=str(tmp_path / "u.csv")), data, load_dataset(data), usual=10)
