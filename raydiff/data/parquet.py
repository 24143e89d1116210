"""Parquet files in the Hugging Face image layout: a picture column and label columns.

The picture column is `image` or `img` (encoded bytes, or a struct with a field `bytes`); labels are integers, text or
booleans. The values of integers are their names, unless the schema's `huggingface` metadata names 0, 1, ....
"""

import contextlib
import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor

from raydiff.data import pictures, sizes
from raydiff.data.pictures import Picture
from raydiff.data.source import MOST_VALUES, Source, by_split, visible

BATCH = 64  # rows unpacked together; bounds memory for files with large pictures


@dataclass(frozen=True)
class _File:
    """A parquet file with its label columns, which are read before rows are chosen."""

    path: Path
    image: str  # name of the picture column
    columns: tuple[str, ...]  # names of the label columns
    labels: list[Any]  # pyarrow columns of int64, or of text with a dictionary
    names: list[tuple[str, ...] | None]  # names of the values of each label column, if the file names them


def files_in(folder: Path) -> list[Path]:
    """The parquet files in this folder, by name."""
    return [path for path in visible(folder)[1] if path.suffix.lower() == ".parquet"]


def folders_below(folder: Path) -> list[Path]:
    """The folders with parquet files, `folder` or below it."""
    return [path for path in (folder, *visible(folder, below=True)[0]) if files_in(path)]


def read_parquet_files(folder: Path, labels: Sequence[str]) -> Source:
    """The rows of train*.parquet, then of the first of `OWN_TEST`; without train files, of all files as one split.

    `labels` names the label columns, the class first; empty: `label`, or else `fine_label`.
    """
    every = files_in(folder)
    train, test, notes = by_split(every)
    opened = [_open(path, labels) for path in (*(train or every), *test)]
    files = [file for file in opened if file is not None]
    if not files:
        raise ValueError(f"{every[0]} holds no rows")
    columns = files[0].columns
    coded = [_encode_labels(files, place) for place in range(len(columns))]
    own_test = sum(len(file.labels[0]) for file in files if file.path in test)
    unread = [path.name for path in (*every, *visible(folder)[0]) if path not in {file.path for file in files}]
    return Source(
        labels=torch.stack([values for values, _ in coded], dim=1),
        columns=columns,
        names=tuple(names for _, names in coded),
        own_test=own_test,
        pictures=functools.partial(_pictures, files),
        says=f"{len(files)} parquet file{'s' * (len(files) > 1)} in {folder}",
        notes=(*notes, f"left unread: {', '.join(unread)}") if unread else notes,
        fitted_columns=tuple(c for place, c in enumerate(columns) if not any(file.names[place] for file in files)),
    )


def _open(path: Path, labels: Sequence[str]) -> _File | None:
    """The file's labels; None if it has no rows."""
    with _reading(path):
        schema = pq.read_schema(path)
        rows = pq.read_metadata(path).num_rows
    if not rows:
        return None
    image = _column(path, schema.names, ("image", "img"))
    others = [column for column in schema.names if column != image]
    columns = tuple(_column(path, others, of) for of in [[name] for name in labels] or [["label", "fine_label"]])
    sizes.check_memory(f"the labels of {rows:,} rows in {path}", 8 * rows * len(columns), "take fewer rows")
    with _reading(path):  # Text stays dictionary-encoded, so that repeated values are in memory once.
        table = pq.ParquetFile(path, read_dictionary=list(columns)).read(columns=list(columns))
    names = [_class_names(schema.metadata or {}, name) for name in columns]
    read = [_check_labels(path, *of) for of in zip(columns, table.columns, names, strict=True)]
    return _File(path, image, columns, read, names)


def _check_labels(path: Path, name: str, column: Any, names: tuple[str, ...] | None) -> Any:
    """The label column as int64, or as text with a dictionary."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_boolean(kind)
    if not (pa.types.is_integer(kind) or (is_text and names is None)) or column.null_count:
        wanted = "integers, text or booleans" if names is None else "integers"
        got = f"{column.null_count} nulls" if column.null_count else kind
        raise ValueError(f"column {name!r} of {path} must hold {wanted}, got {got}")
    if pa.types.is_boolean(kind):
        column = column.cast(kind).cast(pa.string()).dictionary_encode()
    try:
        return column.cast(pa.dictionary(pa.int32(), pa.string()) if is_text else pa.int64())
    except pa.ArrowInvalid:
        raise ValueError(f"column {name!r} of {path} must hold integers below 2^63") from None


def _column(path: Path, columns: Sequence[str], names: Sequence[str]) -> str:
    """The first of `names` that the file has."""
    if present := [name for name in names if name in columns]:
        return present[0]
    raise ValueError(f"{path} has no column {' or '.join(map(repr, names))}; it has {', '.join(columns)}")


def _class_names(metadata: dict[bytes, bytes], label: str) -> tuple[str, ...] | None:
    """Class names from the schema's Hugging Face metadata, if any."""
    try:
        return tuple(str(name) for name in json.loads(metadata[b"huggingface"])["info"]["features"][label]["names"])
    except (KeyError, TypeError, ValueError):
        return None


def _encode_labels(files: Sequence[_File], place: int) -> tuple[Tensor, tuple[str, ...]]:
    """One label column over all files: values (N,) int64 and their names."""
    types = {pa.types.is_integer(file.labels[place].type): file.path for file in files}
    if len(types) > 1:
        raise ValueError(f"the labels of {types[False]} are text or booleans, but those of {types[True]} are integers")
    named = {file.names[place]: file.path for file in files if file.names[place] is not None}
    if len(named) > 1:
        raise ValueError(f"{' and '.join(map(str, named.values()))} name their classes differently")
    column = pa.chunked_array([chunk for file in files for chunk in file.labels[place].chunks])
    if named:
        return torch.tensor(column.to_numpy()), next(filter(None, named))
    encoded = column.dictionary_encode().combine_chunks()
    values = encoded.dictionary.to_pylist()
    if len(values) > MOST_VALUES:
        raise ValueError(
            f"the label column {files[0].columns[place]!r} of {files[0].path} has {len(values):,} values, but at "
            f"most {MOST_VALUES:,} classes can be learnt: name another by data.labels"
        )
    order = sorted(range(len(values)), key=values.__getitem__)
    return torch.from_numpy(np.argsort(order)[encoded.indices.to_numpy()]), tuple(str(values[i]) for i in order)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Convert pyarrow's errors on damaged files to ValueErrors that name the file."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        with path.open("rb") as file:
            pictures.check_is_file(file.read(len(pictures.POINTER)), str(path))
        reason = str(error).split("\n")[0].rstrip(".")
        raise ValueError(f"{path} cannot be read as parquet (truncated or damaged?): {reason}") from error


def _pictures(files: Sequence[_File], rows: Tensor) -> Iterator[Picture]:
    """The pictures of `rows`, ascending row numbers over all files, unpacked a few at a time."""
    end = 0
    for file in files:
        first = end  # row 0 of this file
        with _reading(file.path):
            parquet = pq.ParquetFile(file.path)
            for group in range(parquet.num_row_groups):
                start = end
                end = end + parquet.metadata.row_group(group).num_rows
                mine = rows[(rows >= start) & (rows < end)] - start
                if not len(mine):
                    continue
                for row, data in _read_row_group(file, parquet, group, mine):
                    where = f"row {start - first + row} of {file.path}"
                    yield where, pictures.decode(data, where)


def _read_row_group(file: _File, parquet: Any, group: int, rows: Tensor) -> Iterator[tuple[int, bytes | None]]:
    """(row, encoded picture) of these rows of a row group."""
    columns = parquet.metadata.row_group(group).to_dict()["columns"]
    size = sum(c["total_uncompressed_size"] for c in columns if c["path_in_schema"].split(".")[0] == file.image)
    sizes.check_memory(f"the pictures of one row group in {file.path}", size, "write smaller row groups")
    end = 0
    for batch in parquet.iter_batches(BATCH, row_groups=[group], columns=[file.image]):
        start = end
        end = end + len(batch)
        column = batch.column(0)
        if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
            column = pc.struct_field(column, "bytes")
        if column.type not in (pa.binary(), pa.large_binary()):
            raise ValueError(f"column {file.image!r} of {file.path} must hold encoded pictures, got {column.type}")
        mine = rows[(rows >= start) & (rows < end)]
        yield from zip(mine.tolist(), column.take((mine - start).numpy()).to_pylist(), strict=True)
