"""What columns are taken for, and files that are written in other ways."""

import datetime
import decimal
import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from cases import slow_but

from raydiff.data.datasets import Data, load_dataset
from raydiff.data.modality import TableRows
from raydiff.data.tables.cells import Csv
from raydiff.data.tables.encode import MISSING, OTHER, Column
from raydiff.data.tables.read import RawTable, TableOptions, read_table

ROWS = 240
FEW: dict[str, Any] = {"public": 60, "validation": 20, "calibration": 20, "test": 60}
D, T = datetime.date, datetime.timedelta


def table_of(path: Path, **columns: Sequence[Any]) -> Path:
    """A CSV or parquet file of these columns, repeated to 240 rows, and of a label y."""
    whole = {key: [values[i % len(values)] for i in range(ROWS)] for key, values in columns.items()}
    frame = pd.DataFrame({**whole, "y": ["no", "yes", "no"] * (ROWS // 3)}, dtype=object)
    frame.to_csv(path, index=False)
    return path


def column(path: Path, name: str = "x", *, public: int | None = 60, **options: Any) -> Column:
    """The column of the table with the label y, if it is not left out."""
    mapping = read_table(RawTable(source=str(path), label="y", **options), public=public).mapping
    return next(c for c in mapping.columns if c.name == name)


@pytest.mark.parametrize("public", [None, 60])
@pytest.mark.parametrize(
    ("cells", "kind", "names"),
    [
        (["01", "1", "10", "010"], "text", ["01", "1", "010", "10"]),
        (["01002", "02134", "00501", "10001", "94110"], "text", ["00501", "01002", "02134", "10001", "94110"]),
        (["1E5", "100000", "7"], "text", ["7", "100000", "1E5"]),
        (["1.1", "1.10", "1.2"], "text", ["1.1", "1.10", "1.2"]),
        (["+5", "5", "6"], "text", ["+5", "5", "6"]),
        (["1234567890123456789012345678901", "1234567890123456789012345678902"], "text", None),
        (["9007199254740993", "9007199254740992", "3"], "text", None),
        (["4000000000000001", "4000000000000002"], "text", None),
        (["1,234", "2,345"], "text", ["1,234", "2,345"]),
        (["1_000", "0x10", "5"], "text", None),
        (["TRUE", "FALSE"], "text", ["FALSE", "TRUE"]),
        (["2020-02-30", "2020-02-29"], "text", None),
        (["31.12.2020", "01/02/2021"], "text", None),
        (["1", "1.0", "2"], "number", ["1", "2"]),
        (["1.0", "2.0", ""], "number", ["1", "2"]),
        (["0.0", "-0.0", "1.5"], "number", ["0", "1.5"]),
        (["1e-300", "2.5", "100000"], "number", ["1e-300", "2.5", "100000"]),
        (["0.1", "0.30000000000000004"], "number", ["0.1", "0.30000000000000004"]),
        (["2020-01-01", "2021-05-01 14:30"], "date", ["2020-01-01", "2021-05-01 14:30:00"]),
        (["2020-01-01T00:00:00Z", "2020-01-01 02:00:00+02:00"], "date", ["2020-01-01"]),
        (["2020-01-01 00:00:00.250", "9999-12-31"], "date", ["2020-01-01 00:00:00.25", "9999-12-31"]),
        (["14:30:00", "1 days 00:00:00.5", "2 days"], "duration", ["52200", "86400.5", "172800"]),
    ],
)
def test_kinds_of_texts(
    tmp_path: Path, cells: list[str], kind: str, names: list[str] | None, public: int | None
) -> None:
    x = column(table_of(tmp_path / "t.csv", x=cells, z=["1", "2"]), public=public)
    values = [name for name in x.categories if name not in (OTHER, MISSING)]
    assert (x.kind, len(values)) == (kind, len(names or cells))
    assert names is None or values == names


ARRAYS: dict[str, tuple[pa.Array, str]] = {
    **{
        str(kind): (pa.array([1, 2, None, 3], kind), "number")
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
    },
    **{str(kind): (pa.array([1.5, None, float("nan")], kind), "number") for kind in (pa.float32(), pa.float64())},
    "halffloat": (pa.array(np.array([1.5, 2], np.float16)), "number"),
    **{
        str(kind): (pa.array([decimal.Decimal("0.10"), decimal.Decimal("2.5")], kind), "number")
        for kind in (pa.decimal128(38, 20), pa.decimal256(60, 2))
    },
    **{str(kind): (pa.array([D(2020, 1, 1), None], kind), "date") for kind in (pa.date32(), pa.date64())},
    **{
        str(kind): (pa.array([0, 86_400, 10**9 if unit == "s" else None], kind), "date")
        for unit in ("s", "ms", "us", "ns")
        for kind in (pa.timestamp(unit), pa.timestamp(unit, "Europe/Berlin"))
    },
    **{
        str(pa.duration(unit)): (pa.array([0, None], pa.duration(unit)), "duration") for unit in ("s", "ms", "us", "ns")
    },
    **{str(kind): (pa.array([5000, 7000], kind), "duration") for kind in (pa.time32("s"), pa.time64("ns"))},
    "bool": (pa.array([True, False, None]), "text"),
    "string": (pa.array(["NA", "?", "", "nan", "null", " a", "01", "1"]), "text"),
    "large_string": (pa.array(["NA", "2020-01-01"], pa.large_string()), "text"),
    "string_view": (pa.array(["1", "2"], pa.string_view()), "text"),
    "null": (pa.nulls(3), "text"),
    "dictionary of texts": (pa.array(["NA", "x", None]).dictionary_encode(), "text"),
    "dictionary of numbers": (pa.array([10, 20]).dictionary_encode(), "number"),
}
FRAMES: dict[str, tuple[pd.Series, str]] = {
    "Int64": (pd.Series([1, None], dtype="Int64"), "number"),
    "boolean": (pd.Series([True, None], dtype="boolean"), "text"),
    "string": (pd.Series(["NA", None], dtype="string"), "text"),
    "category": (pd.Series(["NA", "b"], dtype="category"), "text"),
    "category of numbers": (pd.Series([3, 1], dtype="category"), "number"),
    "datetime": (pd.Series(pd.to_datetime(["2020-01-01", None])), "date"),
    "datetime of a zone": (pd.Series(pd.to_datetime(["2020-01-01", None]).tz_localize("Asia/Tokyo")), "date"),
    "timedelta": (pd.Series(pd.to_timedelta([1, None], unit="h")), "duration"),
    "objects": (pd.Series(["NA", None], dtype=object), "text"),
}


@pytest.mark.parametrize("public", slow_but([60], [None, 60]))
@pytest.mark.parametrize("name", [*ARRAYS, *FRAMES])
def test_typed_columns_keep_their_kind_and_every_value(tmp_path: Path, name: str, public: int | None) -> None:
    """In Arrow's and pandas' types: all rows are kept, and as many categories as there are values."""
    values, kind = (ARRAYS | FRAMES)[name]
    array = pa.array(values, from_pandas=True) if isinstance(values, pd.Series) else values
    y = pa.array(["no", "NA"] * (ROWS // 2))
    pq.write_table(pa.table({"x": pa.concat_arrays([array] * ROWS)[:ROWS], "z": y, "y": y}), tmp_path / "t.parquet")
    table = read_table(RawTable(source=str(tmp_path / "t.parquet"), label="y", bins=10), public=public)
    x, z = table.mapping.columns
    texts = {None if v is None or v != v else str(v) for v in array.to_pylist()}
    assert len(table.codes) == ROWS and z.categories[:2] == ("NA", "no")
    assert (x.kind, len({*x.categories} - {OTHER, MISSING})) == (kind, len(texts - {None}))
    assert (MISSING in x.categories) == (None in texts)


@pytest.mark.parametrize(
    "array",
    [
        pa.array([b"a", b"b"]),
        pa.array([b"a", b"b"], pa.large_binary()),
        pa.array([b"ab", b"cd"], pa.binary(2)),
        pa.array([b"a", b"b"]).dictionary_encode(),
        pa.array(pd.period_range("2020-01", periods=2, freq="M")),
        pa.array([[1], [2]]),
        pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)),
        pa.array([{"a": 1}, {"a": 2}]),
        pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
    ],
    ids=lambda array: str(array.type),
)
def test_types_that_are_no_value_are_refused_by_name_and_can_be_left_out(tmp_path: Path, array: pa.Array) -> None:
    pq.write_table(pa.table({"x": array, "a": [1, 2], "y": ["p", "q"]}), path := tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"^column 'x' of t.parquet is of type .*: leave it out \(--data.exclude x\)$"):
        read_table(RawTable(source=str(path), label="y"))
    assert read_table(RawTable(source=str(path), label="y", exclude=("x",))).columns == ("a",)


ODD: dict[str, tuple[str, bytes, Csv | None, str]] = {
    "semicolons": ("t.csv", b"a;b\n1,5;2\n2,5;3\n", Csv(delimiter=";", decimal=","), "line 1 .*csv.delimiter ';'"),
    "tabs": ("t.csv", b"a\tb\n1\t2\n3\t4\n", Csv(delimiter="tab"), "line 1 .*csv.delimiter tab"),
    "pipes": ("t.csv", b"a|b\n1|2\n3|4\n", Csv(delimiter="|"), "line 1 .*csv.delimiter '\\|'"),
    "commas in tsv": ("t.tsv", b"a,b\n1,2\n3,4\n", Csv(delimiter=","), "line 1 .*csv.delimiter ','"),
    "latin-1": (
        "t.csv",
        "a,b\n1,2\n3,\xe9\n".encode("latin-1"),
        Csv(encoding="latin-1"),
        "utf-8.*csv.encoding",
    ),
    "utf-16": ("t.csv", "a,b\n1,2\n3,4\n".encode("utf-16"), Csv(encoding="utf-16"), "utf-8.*csv.encoding"),
    "utf-16-le": ("t.csv", "a,b\n1,2\n3,4\n".encode("utf-16-le"), Csv(encoding="utf-16-le"), "csv.encoding"),
    "packed latin-1": (
        "t.csv.gz",
        gzip.compress(b"a,b\n1,\xe9\n2,3\n", mtime=0),
        Csv(encoding="cp1252"),
        "csv.encoding",
    ),
    "NUL": ("t.csv", b"a,b\n1,2\n3,\x004\n", None, "csv.encoding"),
    "long row": (
        "t.csv",
        b"a,b\n1,2\n1,2,3\n",
        None,
        "line 3, saw 3; a ',' in a cell must be quoted$",
    ),
    "index of R": ("t.csv", b"a,b\nx,1,2\ny,3,4\n", None, "Expected 2 fields in line 2, saw 3"),
    "open quote": ("t.csv", b'a,b\n1,2\n1,"2\n3,4\n', None, "EOF inside string starting at row 2"),
    "same names": ("t.csv", b"a,b,a,b\n1,2,3,4\n1,2,3,4\n", None, "has two columns 'a', 'b': rename one"),
    "same name": ("t.csv", b"a,a\n1,2\n3,4\n", None, "has two columns 'a': rename one"),
    "header": ("t.csv", b"a,b\n", None, "has 0 rows"),
    "empty": ("t.csv", b"", None, "No columns to parse from file"),
    "broken gzip": ("t.csv.gz", b"a,b\n1,2\n", None, "cannot be read as a table: Not a gzipped file"),
    "cut gzip": ("t.csv.gz", gzip.compress(b"a,b\n" + b"1,2\n" * 99, mtime=0)[:-12], None, "cannot be read as a table"),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_file_is_refused_with_the_cause_and_the_option_that_helps(tmp_path: Path, name: str) -> None:
    file, content, remedy, says = ODD[name]
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match=says) as error:
        read_table(RawTable(source=str(tmp_path / file)))
    assert str(tmp_path / file) in str(error.value) and "\n" not in str(error.value)
    if remedy is not None:
        assert read_table(RawTable(source=str(tmp_path / file), csv=remedy)).columns == ("a", "b")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("t.csv", b"\xef\xbb\xbfa,b\n1,x\n2,y\n"),
        ("t.csv", b"a,b\r\n1,x\r\n\r\n2,y\r\n"),
        ("t.CSV", b"a,b\r1,x\r2,y"),
        ("t.csv", b'\na , b\n1, "x"\n2,y\n'),
        ("t.tsv", b"a\tb\n1\tx\n2\ty\n"),
        ("t.tsv.gz", gzip.compress(b"a\tb\n1\tx\n2\ty\n", mtime=0)),
        ("t.csv.gz", gzip.compress(b"a,b\n1,x\n2,y\n", mtime=0)),
    ],
)
def test_files_that_need_no_option(tmp_path: Path, file: str, content: bytes) -> None:
    (tmp_path / file).write_bytes(content)
    table = read_table(RawTable(source=str(tmp_path / file)))
    assert [c.categories for c in table.mapping.columns] == [("1", "2"), ("x", "y")]
    assert table.columns == ("a", "b")


def test_decimal_commas_and_marks(tmp_path: Path) -> None:
    path = table_of(tmp_path / "t.csv", x=["1.234,5", "2,5", "-", "NA"], z=["a", "b"])
    x = column(path, csv=Csv(decimal=",", missing=("-", "NA")))
    assert (x.kind, x.categories) == ("number", ("2.5", "1234.5", OTHER, MISSING))
    assert column(path, csv=Csv(missing=("-",))).categories == ("1.234,5", "2,5", "NA", OTHER, MISSING)
    with pytest.raises(ValueError, match=r"'x' must hold finite numbers, got '-': set --data.types x=text, or"):
        column(path, csv=Csv(decimal=","), types=("x=number",))


@pytest.mark.parametrize("public", [None, 60])
@pytest.mark.parametrize("cell", ["7", "a", "", "2020-01-01", "?"])
def test_a_column_of_one_value_is_accepted(tmp_path: Path, cell: str, public: int | None) -> None:
    x = column(table_of(tmp_path / "t.csv", x=[cell], z=["a", "b"]), public=public)
    assert len({*x.categories} - {OTHER, MISSING}) == (cell not in ("", "?"))
    if public is None:
        with pytest.raises(ValueError, match=r"all columns \(x\) have one value only"):
            column(tmp_path / "t.csv", public=public, exclude=("z",))


def test_what_columns_were_taken_for_is_one_short_line(tmp_path: Path) -> None:
    columns = {f"number {i}": [1, 2, 3] for i in range(60)}
    path = table_of(tmp_path / "t.csv", **columns, day=["2020-01-01", "2020-01-02"])
    (note,) = (n for n in read_table(RawTable(source=str(path), label="y"), public=60).notes if "taken for" in n)
    assert "number 5 and 54 more; date: day" in note and "text: y" in note and len(note) < 160


def test_declared_types_and_their_refusals(tmp_path: Path) -> None:
    path = table_of(tmp_path / "t.csv", x=["1", "2", "3"], z=["2020-01-01", "2020-01-02"])
    assert column(path, types=("x=text",)).kind == "text"
    assert column(path, "z", types=("z=text",)).kind == "text"
    for types, says in (
        (("x=txt",), "data.types must be COLUMN=TYPE .* got 'x=txt'; did you mean text"),
        (("x",), "data.types must be COLUMN=TYPE"),
        (("xx=text",), "t.csv has no column 'xx'"),
        (("z=number",), "column 'z' must hold finite numbers, got '2020-01-0"),
        (("x=date",), "column 'x' must hold dates such as"),
    ):
        with pytest.raises(ValueError, match=says):
            column(path, types=types)
    for options in ({"types": ("age=text",)}, {"classes": ("a", "b")}):
        with pytest.raises(ValueError, match="must be empty: those of adult are declared"):
            RawTable(source="adult", **options)
    with pytest.raises(ValueError, match=r"'digits' is no table: data\.exclude is for tables only"):
        load_dataset(Data(exclude=("x",)))


def test_declared_classes_need_no_public_row_and_are_all_there_are(tmp_path: Path) -> None:
    path, labels = tmp_path / "t.csv", ["no"] * ROWS
    data = Data(name=str(path), labels=("y",), **FEW)
    table_of(path, x=["a", "b"], z=["u", "v", "w"])
    public = load_dataset(data).splits["public"].numbers.tolist()
    rare = [row for row in range(ROWS) if row not in public]
    frame = pd.read_csv(path).assign(y=labels)
    frame.loc[rare[::2], "y"] = "yes"
    frame.loc[rare[1], "y"] = None
    frame.loc[rare[3], "y"] = "unknown"
    frame.to_csv(path := tmp_path / "rare.csv", index=False)
    table = RawTable(source=str(path), label="y")
    with pytest.raises(ValueError, match=r"got 1 in its public rows: .*\(--data.classes A B \.\.\.\)"):
        read_table(table, public=60)
    dataset = load_dataset(Data(name=str(path), labels=("y",), classes=("no", "yes"), **FEW))
    assert dataset.label_names == (("no", "yes"),) and dataset.modality.name == "rows"
    assert sum(len(records) for records in dataset.splits.values()) == ROWS - 2
    assert any("rows with a y that is none of no, yes are left out" in note for note in dataset.notes)


def test_the_step_and_the_limits_of_numbers_are_those_of_public_rows(tmp_path: Path) -> None:
    day = [str(D(2020, 1, 1) + T(7 * i % 100)) for i in range(100)]
    path = table_of(tmp_path / "t.csv", x=[f"{i / 4:.2f}" for i in range(30)], n=range(17), day=day)
    table = read_table(RawTable(source=str(path), label="y", bins=4), public=100)
    assert table.public is not None
    frame = pd.read_csv(path).iloc[table.public.numpy()]
    x, n, when = table.mapping.columns
    assert (x.limits, x.step) == ((frame["x"].min(), frame["x"].max()), 0.01)
    assert (n.limits, n.step) == ((frame["n"].min(), frame["n"].max()), 1)
    assert (when.kind, when.step) == ("date", 86_400) and when.categories[0].startswith("< 2020-")
    assert when.limits == tuple(pd.Timestamp(d).timestamp() for d in (frame["day"].min(), frame["day"].max()))


def test_a_trial_reads_as_an_audit_does(tmp_path: Path) -> None:
    path = table_of(tmp_path / "t.csv", x=["01", "1"], z=["1;5", "2;5"], w=["a", "b"])
    options: dict[str, Any] = {"exclude": ("w",), "types": ("z=text",), "bins": 3, "csv": Csv(missing=("1",))}
    one = load_dataset(Data(name=str(path), labels=("y",), fitted_on="all", **FEW, **options))
    other = read_table(RawTable(source=str(path), label="y", **options))
    assert one.modality == TableRows(other.mapping) and TableOptions(**options).declared == {"z": "text"}
    order = torch.argsort(numbers := torch.cat([r.numbers for r in one.splits.values()]))
    codes = torch.cat([r.images[:, 0, 0] for r in one.splits.values()])
    assert torch.equal(codes[order].long(), other.codes[numbers[order]])
