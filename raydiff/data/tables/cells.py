"""Cells of a CSV or parquet file as text. Each cell is read by itself: no cell changes the text of another.

Nor does a unit, scale or time zone of the column: midnight and zeros that end a fraction are left out, a parquet
duration is a number of seconds, and a time with a zone is in UTC (Z).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydiff.data import sizes
from raydiff.data.tables.encode import MISSING, number_text, plain
from raydiff.formats.csv_files import read_csv

if TYPE_CHECKING:
    import pandas as pd

ZEROS = re.compile(r"(?<=:\d\d)(?:\.0+|(\.\d*[1-9])0+)(?=[-+Z]|$)", re.ASCII)
MARKS = {"", "?", "NA", "N/A", "NaN", "nan", "null", "NULL", MISSING}
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def frame(path: Path) -> pd.DataFrame:
    """The whole file: stripped texts, or missing. Raises ValueError if it cannot be read."""
    import pandas as pd  # slow to import

    sizes.check_fits(f"the table {path}", _claimed(path), "take fewer rows")
    try:
        as_text: Any = {"dtype": str, "keep_default_na": False, "skipinitialspace": True, "low_memory": False}
        table = _parquet(path) if path.suffix.lower() == ".parquet" else read_csv(path, **as_text)
    except Exception as e:  # Each kind of damage has its own exception.
        raise ValueError(f"{path} cannot be read as a table ({type(e).__name__})") from e
    if not table.index.equals(pd.RangeIndex(len(table))):
        raise ValueError(f"{path} cannot be read as a table (its rows have more fields than its header)")
    if not table.columns.is_unique:
        raise ValueError(f"{path} has two columns {table.columns[table.columns.duplicated()][0]!r}")
    if len(table) < 2:
        raise ValueError(f"{path} has {len(table)} row{'' if len(table) == 1 else 's'}, a table needs two at least")
    out = table.apply(lambda c: c.str.strip().str.replace(ZEROS, r"\1", regex=True).str.removesuffix(" 00:00:00"))
    return pd.DataFrame(out.mask(out.isin(MARKS)))


def _parquet(path: Path) -> pd.DataFrame:
    import pandas as pd
    import pyarrow.parquet as pq

    table = pq.ParquetFile(path).read()
    index = (table.schema.pandas_metadata or {}).get("index_columns", ())
    table = table.drop_columns([name for name in index if name in table.column_names])
    return pd.DataFrame(dict(enumerate(map(_texts, table.columns)))).set_axis(table.column_names, axis=1)


def _texts(column: Any) -> list[str | None]:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind, zone = column.type, ""
    if pa.types.is_duration(kind):
        counts = column.cast(pa.int64()).to_pylist()
        return [None if n is None else number_text(n / PER_SECOND[kind.unit]) for n in counts]
    if not pa.types.is_temporal(kind):
        return [None if value is None else _text(value) for value in column.to_pylist()]
    if pa.types.is_timestamp(kind) and kind.tz:
        column, zone = column.cast(pa.timestamp(kind.unit)), "Z"
    return [time and time + zone for time in column.cast(pa.string()).to_pylist()]  # Python's end at the year 9999.


def _text(value: Any) -> str:
    if isinstance(value, dict):  # It has None for a field that another row alone has.
        value = {key: _text(v) for key, v in sorted(value.items()) if v is not None}
    elif isinstance(value, list | tuple):
        value = [_text(v) for v in value]
    text = number_text(value) if isinstance(value, float) else str(value)
    return text if isinstance(value, float | str) else plain(text)


def _claimed(path: Path) -> int:
    """Claimed bytes: a small parquet file may have very many rows."""
    if path.suffix.lower() != ".parquet":
        return path.stat().st_size
    import pyarrow.parquet as pq

    try:
        about = pq.read_metadata(path)
    except Exception as e:  # As above.
        raise ValueError(f"{path} cannot be read as a table ({type(e).__name__})") from e
    unpacked = sum(int(about.row_group(i).total_byte_size) for i in range(about.num_row_groups))
    return max(unpacked, 8 * int(about.num_rows) * int(about.num_columns))
