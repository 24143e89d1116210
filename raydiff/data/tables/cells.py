"""Cells of a CSV or parquet file as text.

Each is read by itself: no cell, unit, scale or time zone changes the text of another. Dates are seconds since
1970-01-01 UTC, times and durations seconds. Parquet cells keep their values; in a CSV file blanks around a cell are
dropped, and marks are missing values.
"""

from __future__ import annotations

import codecs
import gzip
import io
import re
import zlib
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from raydiff.data import sizes
from raydiff.data.tables.encode import MISSING
from raydiff.data.tables.kinds import MEANING, Kind, canonical, number_text
from raydiff.formats.csv_files import unmarked
from raydiff.settings import settings

if TYPE_CHECKING:
    import pandas as pd

DELIMITERS = {"tab": "\t", "\\t": "\t", "';'": ";", "'|'": "|", "','": ","}
ENCODING = "set --data.csv.encoding, such as latin-1, cp1252 or utf-16"
TICKS = {"s": Decimal(1), "ms": Decimal("1e-3"), "us": Decimal("1e-6"), "ns": Decimal("1e-9")}  # seconds
PARQUET: dict[Kind, re.Pattern[str]] = {
    "number": re.compile("u?int|halffloat|float|double|decimal"),
    "date": re.compile("date|timestamp"),
    "duration": re.compile("duration|time"),
    "text": re.compile("bool|(large_)?string|null"),
}  # beginnings of pyarrow's names of types


@settings(frozen=True, kw_only=True)
class Csv:
    """How CSV and TSV files are written."""

    delimiter: str | None = None
    """One character between cells, or tab; None: a comma, in .tsv files a tab."""
    encoding: str = "utf-8"
    """Encoding of the text, such as utf-8, latin-1, cp1252 or utf-16."""
    decimal: Literal[".", ","] = "."
    """Decimal mark of numbers: a point, or a comma; points before three digits then separate thousands."""
    missing: tuple[str, ...] = ("?", "NA", "N/A", "#N/A", "NaN", "nan", "NaT", "null", "NULL", "<NA>")
    """Cells that are missing values, beside empty ones."""

    def __post_init__(self) -> None:
        if self.delimiter is not None and len(DELIMITERS.get(self.delimiter, self.delimiter)) != 1:
            raise ValueError(f"delimiter must be one character or tab, got {self.delimiter!r}")
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            raise ValueError(f"encoding must be one of Python's, such as latin-1, got {self.encoding!r}") from None


@dataclass(frozen=True, eq=False)
class Cells:
    """The texts of a whole file."""

    frame: pd.DataFrame  # texts, or missing
    kinds: dict[str, Kind | str] = field(default_factory=dict)
    """Kind of each parquet column, or the type that no column of a table can have; of a CSV file none."""


def read_cells(path: Path, csv_format: Csv) -> Cells:
    """The whole file. Raises ValueError, with the cause, the line and the option, if it cannot be read."""
    parquet = path.suffix.lower() == ".parquet"
    if parquet and csv_format != Csv():
        raise ValueError(f"data.csv has no meaning for {path}, a parquet file")
    cells = _parquet(path) if parquet else _csv(path, csv_format)
    names = cells.frame.columns
    rows = len(cells.frame)
    if not names.is_unique:
        twice = ", ".join(map(repr, names[names.duplicated()].unique()))
        raise ValueError(f"{path} has two columns {twice}: rename one in the file")
    if rows < 2:
        raise ValueError(f"{path} has {rows} row{'' if rows == 1 else 's'}, a table needs two at least")
    return cells


def _unreadable(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} cannot be read as a table{why}")


def _csv(path: Path, csv_format: Csv) -> Cells:
    """Cells that a short row lacks are missing values."""
    import pandas as pd  # slow to import

    delimiter = csv_format.delimiter or ("tab" if path.name.lower().removesuffix(".gz").endswith(".tsv") else ",")
    delimiter = DELIMITERS.get(delimiter, delimiter)
    text = _text(path, csv_format.encoding)
    first = text.partition("\n")[0]
    if other := [name for name, d in DELIMITERS.items() if delimiter not in first and d in first]:
        raise _unreadable(path, f": line 1 has no {delimiter!r}: set --data.csv.delimiter {other[0]}")
    options: Any = {"sep": delimiter, "header": None, "index_col": False, "skipinitialspace": True}
    try:
        whole = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False, **options)
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as e:
        raise _unreadable(path, f": {' '.join(str(e).split())}; a {delimiter!r} in a cell must be quoted") from e
    frame = whole.iloc[1:].reset_index(drop=True).apply(lambda column: column.map(unmarked).str.strip())
    names = [unmarked(name).strip() or f"Unnamed: {i}" for i, name in enumerate(whole.iloc[0])]
    return Cells(frame.mask(frame.isin({"", MISSING, *csv_format.missing})).set_axis(names, axis=1))


def _text(path: Path, encoding: str) -> str:
    sizes.check_memory(f"the table {path}", path.stat().st_size, "take fewer rows")
    packed = path.suffix.lower() == ".gz"
    try:
        with (gzip.open if packed else open)(path, "rb") as file:
            data = file.read(sizes.memory() // 8 if packed else -1)
            if file.read(1):
                raise ValueError(f"the table {path} takes an eighth of this machine's memory: take fewer rows")
    except (OSError, EOFError, zlib.error) as e:
        raise _unreadable(path, f": {e}") from e
    try:
        text = data.decode(encoding)
    except UnicodeError as e:
        raise _unreadable(path, f": {e}: {ENCODING}") from e
    if "\0" in text:
        raise _unreadable(path, f": it is not text in {encoding}: {ENCODING}")
    return text.removeprefix("\ufeff")


def _parquet(path: Path) -> Cells:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        about = pq.read_metadata(path)
        unpacked = sum(int(about.row_group(i).total_byte_size) for i in range(about.num_row_groups))
        claimed = max(unpacked, 8 * int(about.num_rows) * int(about.num_columns))  # A small file may have many rows.
        sizes.check_memory(f"the table {path}", claimed, "take fewer rows")
        table = pq.ParquetFile(path).read()
    except (OSError, pa.ArrowException) as e:
        raise _unreadable(path, f" ({type(e).__name__})") from e
    types = [t.value_type if pa.types.is_dictionary(t) else t for t in table.schema.types]
    kinds: list[Kind | str] = [next((kind for kind, of in PARQUET.items() if of.match(str(t))), str(t)) for t in types]
    texts = [_texts(*of) for of in zip(table.columns, types, kinds, strict=True)]
    frame = pd.DataFrame(dict(enumerate(texts)), dtype=str).set_axis(table.column_names, axis=1)
    return Cells(frame, dict(zip(table.column_names, kinds, strict=True)))


def _texts(column: Any, type_: Any, kind: Kind | str) -> list[str | None]:
    import pyarrow as pa

    if kind not in MEANING:
        return [None] * len(column)
    column = column.cast(type_)  # of a dictionary its values
    if kind in ("date", "duration"):
        unit = Decimal(86_400) if pa.types.is_date32(type_) else TICKS[getattr(type_, "unit", "ms")]
        counts = column.cast(pa.int32() if type_.bit_width == 32 else pa.int64()).to_pylist()
        values: list[Any] = [None if n is None else n * unit for n in counts]
    else:
        values = column.to_pylist()
    spelled = {float: number_text, Decimal: lambda x: canonical(format(x, "f"), "number")}
    return [None if v is None or v != v or v == MISSING else spelled.get(type(v), str)(v) for v in values]
