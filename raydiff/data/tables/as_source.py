"""Tables as a source of records: a row's codes replace a picture, (1, 1, n), as floats 0, 1, ..., k - 1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from raydiff.data.source import Picture, Source
from raydiff.data.tables.code_books import CODE_BOOKS
from raydiff.data.tables.read import RawTable, locate, read, read_again


def source(
    name: str, file: Path, labels: Sequence[str], *, bins: int | None, public: int | None = None, seed: int = 0
) -> Source:
    """The rows of a table, test rows of a preset last, encoded by the mapping of the others; see `read.read`.

    Raises:
        ValueError: As `read.read`, and if there is no label.
    """
    if len(labels) > 1:
        raise ValueError(f"a table has one label column, data.labels names {len(labels)}: {' '.join(labels)}")
    preset = name if name in CODE_BOOKS else None
    config = RawTable(source=str(file), preset=preset, label=labels[0] if labels else None, bins=bins)
    parts = [read(config, public=public, seed=seed)]
    if preset is not None and len(CODE_BOOKS[preset].files) > 1:
        root = str(file.parents[1])
        parts.append(read_again(config, locate(preset, root, part=1), parts[0].mapping))
    label = parts[0].mapping.label
    if label is None:
        raise ValueError(f"{file.name} needs a label: give data.labels one of {', '.join(parts[0].columns)}")
    rows, n = sum(len(part.codes) for part in parts), len(parts[0].columns)
    return Source(
        labels=torch.cat([part.labels for part in parts if part.labels is not None])[:, None],
        columns=(label.name,),
        names=(label.categories,),
        own_test=sum(len(part.codes) for part in parts[1:]),
        pictures=_none,
        says=f"{rows} rows of {n} columns from {' and '.join(part.says for part in parts)}",
        notes=tuple(note for part in parts for note in part.notes),
        codes=torch.cat([part.codes for part in parts]),
        mapping=parts[0].mapping,
        found=parts[0].found,
        public=parts[0].public,
    )


def _none(rows: Tensor) -> Iterator[Picture]:
    raise ValueError("a table has rows, no pictures")
