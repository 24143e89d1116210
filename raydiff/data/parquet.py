"""Parquet files in the Hugging Face image layout.

A picture column `image` or `img` (encoded bytes, or a struct with a field `bytes`); label columns of integers, text or
booleans. The values of integers are their names, unless the schema's `huggingface` metadata names 0, 1, ....
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raydiff.data import pictures, sizes
from raydiff.data.source import MOST_VALUES, Picture, Source, by_split, visible

BATCH = 64  # rows unpacked together; bounds memory for files with large pictures


@dataclass(frozen=True)
class _File:
    """A parquet file with its labels, which are read before rows are chosen."""

    path: Path
    image: str
    """Name of the picture column."""
    labels: dict[str, Any]
    """pyarrow label columns by name, booleans as text."""
    names: dict[str, tuple[str, ...]]
    """Names of the values of label columns that the file names."""


def files_in(folder: Path) -> list[Path]:
    """The parquet files in this folder, by name."""
    return [path for path in visible(folder) if path.suffix.lower() == ".parquet" and path.is_file()]


def folders_below(folder: Path) -> list[Path]:
    """The folders with parquet files, `folder` or below it."""
    return [path for path in (folder, *visible(folder, "**/*")) if path.is_dir() and files_in(path)]


def source(folder: Path, labels: Sequence[str]) -> Source:
    """The rows of train*.parquet, then of the first of `OWN_TEST`; without train files, of all files as one split.
    `labels` names the label columns, the class first; empty: `label`, or else `fine_label`."""
    every = files_in(folder)
    train, test, notes = by_split(every)
    files = [file for path in (*(train or every), *test) if (file := _open(path, labels)) is not None]
    if not files:
        raise ValueError(f"{every[0]} holds no rows")
    columns = tuple(labels) or tuple(files[0].labels)
    coded = [_coded(files, place) for place in range(len(columns))]
    own_test = sum(len(next(iter(file.labels.values()))) for file in files if file.path in test)
    deeper = (path for path in visible(folder) if path.is_dir())
    unread = [path.name for path in (*every, *deeper) if path not in {file.path for file in files}]
    return Source(
        labels=torch.stack([values for values, _ in coded], dim=1),
        columns=columns,
        names=tuple(names for _, names in coded),
        own_test=own_test,
        pictures=functools.partial(_pictures, files),
        says=f"{len(files)} parquet file{'s' * (len(files) > 1)} in {folder}",
        notes=(*notes, f"left unread: {', '.join(unread)}") if unread else notes,
        fitted_columns=tuple(column for column in columns if not any(column in file.names for file in files)),
    )


def _open(path: Path, labels: Sequence[str]) -> _File | None:
    """The file's labels; None if it has no rows."""
    import pyarrow.parquet as pq

    with _reading(path):
        schema, rows = pq.read_schema(path), pq.read_metadata(path).num_rows
    if not rows:
        return None
    image = _column(path, schema.names, ("image", "img"))
    for name in labels:
        if name not in schema.names or name == image:
            others = ", ".join(column for column in schema.names if column != image)
            raise ValueError(f"{path} has no label column {name!r}; its other columns are {others}")
    columns = list(labels) or [_column(path, schema.names, ("label", "fine_label"))]
    _check_rows(path, rows, 8 * len(columns))
    with _reading(path):  # Text stays dictionary-encoded, so that repeated values are in memory once.
        table = pq.ParquetFile(path, read_dictionary=columns).read(columns=columns)
    read, names = {}, {}
    for name in columns:
        if (named := _class_names(schema.metadata or {}, name)) is not None:
            names[name] = named
        read[name] = _checked(path, name, table.column(name), named=named is not None)
    return _File(path, image, read, names)


def _checked(path: Path, name: str, column: Any, *, named: bool) -> Any:
    """The label column as int64 or text. Raises ValueError for other types, nulls and larger integers."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        _check_rows(path, len(column), 4 * _longest(column))
        column = column.cast(column.type.value_type)
    kind = column.type
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_boolean(kind)
    if not (pa.types.is_integer(kind) or (text and not named)) or column.null_count:
        got = f"{column.null_count} nulls" if column.null_count else column.type
        wanted = "integers" if named else "integers, text or booleans"
        raise ValueError(f"column {name!r} of {path} must hold {wanted}, got {got}")
    if text:
        return column.cast(pa.string())
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        raise ValueError(f"column {name!r} of {path} must hold integers below 2^63") from None


def _check_rows(path: Path, rows: int, nbytes: int) -> None:
    """Raises ValueError if so many rows with labels of so many bytes do not fit into memory."""
    sizes.check_fits(f"the labels of {rows:,} rows in {path}", rows * nbytes, "take fewer rows, or shorter names")


def _longest(column: Any) -> int:
    """Bytes of the longest text of a dictionary column; 0 without texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type.value_type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return 0
    return max((pc.max(pc.binary_length(chunk.dictionary)).as_py() or 0 for chunk in column.chunks), default=0)


def _column(path: Path, columns: Sequence[str], names: Sequence[str]) -> str:
    """The first of `names` that the file has."""
    for name in names:
        if name in columns:
            return name
    wanted = " or ".join(repr(name) for name in names)
    raise ValueError(f"{path} has no column {wanted}; its columns are {', '.join(columns)}")


def _class_names(metadata: dict[bytes, bytes], label: str) -> tuple[str, ...] | None:
    """Class names from the schema's Hugging Face metadata, if any."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        return tuple(str(name) for name in features[label]["names"])
    except (KeyError, TypeError, ValueError):
        return None


def _coded(files: Sequence[_File], place: int) -> tuple[Tensor, tuple[str, ...]]:
    """One label column over all files: values (N,) int64 and their names."""
    import pyarrow as pa

    columns = {file.path: list(file.labels.values())[place] for file in files}
    text = {path: pa.types.is_string(column.type) for path, column in columns.items()}
    if len(set(text.values())) > 1:
        one, other = (next(path for path, is_text in text.items() if is_text == kind) for kind in (True, False))
        raise ValueError(f"the labels of {one} are text or booleans, but those of {other} are integers")
    values = np.concatenate([column.to_numpy() for column in columns.values()])
    if (names := _names(files, place)) is not None:
        return torch.from_numpy(values), names
    distinct, codes = np.unique(values.astype(str) if any(text.values()) else values, return_inverse=True)
    if len(distinct) > MOST_VALUES:
        what = f"the label column {list(files[0].labels)[place]!r} of {files[0].path} has {len(distinct):,} values"
        raise ValueError(f"{what}, but at most {MOST_VALUES:,} classes can be learnt: name another by data.labels")
    return torch.from_numpy(codes.astype(np.int64)), tuple(map(str, distinct.tolist()))


def _names(files: Sequence[_File], place: int) -> tuple[str, ...] | None:
    """The names in the files, which must agree; None if there are none."""
    columns = [(file, list(file.labels)[place]) for file in files]
    named = {file.names[column]: file.path for file, column in columns if column in file.names}
    if len(named) > 1:
        raise ValueError(f"{' and '.join(map(str, named.values()))} name their classes differently")
    return next(iter(named), None)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Convert pyarrow's errors on damaged files to ValueErrors that name the file."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        with path.open("rb") as file:
            pictures.check_is_file(file.read(len(pictures.POINTER)), str(path))
        reason = str(error).split("\n")[0].rstrip(".")
        raise ValueError(f"{path} cannot be read as parquet (truncated or damaged?): {reason}") from error


def _pictures(files: Sequence[_File], rows: Tensor) -> Iterator[Picture]:
    """The pictures of `rows`, ascending row numbers over all files."""
    import pyarrow.parquet as pq

    end = 0
    for file in files:
        first = end  # row 0 of this file
        with _reading(file.path):
            parquet = pq.ParquetFile(file.path)
        for group in range(parquet.num_row_groups):
            start, end = end, end + parquet.metadata.row_group(group).num_rows
            mine = rows[(rows >= start) & (rows < end)]
            if len(mine):
                for row, data in _of_group(file, parquet, group, mine - start):
                    where = f"row {start - first + row} of {file.path}"
                    yield where, pictures.decode(data, where)


def _of_group(file: _File, parquet: Any, group: int, rows: Tensor) -> Iterator[tuple[int, bytes | None]]:
    """(row, encoded picture) of these rows of a row group, ascending, unpacked a few at a time."""
    metadata = parquet.metadata.row_group(group)
    columns = [metadata.column(i) for i in range(metadata.num_columns)]
    size = sum(c.total_uncompressed_size for c in columns if c.path_in_schema.partition(".")[0] == file.image)
    sizes.check_fits(f"the pictures of one row group in {file.path}", size, "write smaller row groups")
    batches = parquet.iter_batches(batch_size=BATCH, row_groups=[group], columns=[file.image])
    end = 0
    while end <= int(rows[-1]):
        with _reading(file.path):
            batch = next(batches)
        start, end = end, end + len(batch)
        mine = rows[(rows >= start) & (rows < end)]
        if len(mine):
            encoded = _encoded(file, batch.column(0).take((mine - start).numpy()))
            yield from zip(mine.tolist(), encoded, strict=True)


def _encoded(file: _File, column: Any) -> list[bytes | None]:
    """The encoded pictures of a picture column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
        column = pc.struct_field(column, "bytes")
    if column.type not in (pa.binary(), pa.large_binary()):
        raise ValueError(f"column {file.image!r} of {file.path} must hold encoded pictures, got {column.type}")
    encoded: list[bytes | None] = column.to_pylist()
    return encoded
