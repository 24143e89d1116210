"""Data sets by name: an entry of SOURCES, a folder of parquet files or pictures, hub:NAME, a table, or module:name."""

import dataclasses
import gzip
import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from raydiff import lookup
from raydiff.data import folders, hub, superclasses
from raydiff.data.modality import TableRows
from raydiff.data.pictures import Picture
from raydiff.data.source import Source
from raydiff.data.tables import read
from raydiff.data.tables.code_books import CODE_BOOKS
from raydiff.data.tables.read import TableOptions
from raydiff.lookup import is_outside, nearest

DEFAULTS = TableOptions()


def open_source(
    name: str,
    folder: Path | None,
    labels: Sequence[str],
    *,
    table: str | None = None,
    options: TableOptions = DEFAULTS,
    public: int | None = None,
    seed: int = 0,
) -> Source:
    """Return the data set of this name in this folder or file (None: embedded), with these label columns.

    `table` names superclasses. Categories of tables are fitted on `public` rows, drawn by `seed`; None: on all.
    """
    if read.is_table(name):
        if table is not None:
            raise ValueError(f"data set {name!r} is a table: data.superclasses must be none")
        assert folder is not None
        return table_rows(name, folder, labels, options, public=public, seed=seed)
    for f in dataclasses.fields(TableOptions):
        if getattr(options, f.name) != f.default:
            raise ValueError(f"data set {name!r} is no table: data.{f.name} is for tables only")
    make = SOURCES.resolve(name) if name in SOURCES or is_outside(name) else files
    out = make(folder, labels)
    if not isinstance(out, Source):
        raise ValueError(f"{name} must return a raydiff.data.source.Source, got {type(out).__name__}")
    out = out.select(labels)
    if Path(name).is_dir() and folder != Path(name).resolve():
        out = dataclasses.replace(out, notes=(*out.notes, f"this is the data set {name}; the folder here is ./{name}"))
    if name in SOURCES:  # their classes are public
        out = dataclasses.replace(out, fitted_columns=())
    declared = name in SOURCES or (public == 0 and not out.fitted_columns)
    out = out.with_used_values(declared=declared)
    return out if table is None else superclasses.merge_classes(out, table).with_used_values(declared=declared)


def is_known(name: str, labels: Sequence[str]) -> bool:
    """Whether all categories and classes of the data set are declared."""
    if name in CODE_BOOKS:
        return tuple(labels) in ((), (CODE_BOOKS[name].label,))
    return name in SOURCES


def folder_of(name: str, root: str | None) -> Path | None:
    """Path of the folder, or of a table's file; None: embedded. Raises ValueError if the path does not exist."""
    if name in SOURCES and name not in FOLDERS:
        return None
    if read.is_table(name):
        return read.locate(name, root)
    if name.startswith(hub.PREFIX):
        return hub.folder(name)
    if is_outside(name):
        root = root or os.environ.get("RAYDIFF_DATA")
        return Path(root).expanduser().absolute() if root else None
    if is_path(name, root):
        if not (path := Path(name).expanduser()).is_dir():
            raise ValueError(
                f"data set {name!r} has a /, so it is a path, but there is no folder {path.absolute()} (a data set of "
                "the hub is hub:owner/name)"
            )
        return path.resolve()
    return _below_root(name, root).resolve()


def is_path(name: str, root: str | None = None) -> bool:
    """Whether the name is a path to a table's file or to a folder. A data set of that name comes before a folder."""
    if name.startswith(hub.PREFIX) or name in SOURCES or name in CODE_BOOKS:
        return False
    parent = root or os.environ.get("RAYDIFF_DATA")
    is_named = bool(parent and name.strip(".")) and (Path(str(parent)).expanduser() / name).is_dir()
    return read.is_file(name) or "/" in name or (Path(name).is_dir() and not is_named)


def identity(name: str, root: str | None = None) -> str:
    """Canonical name of a data set: a path, or its name below the root or on the hub."""
    return str(Path(name).expanduser().resolve()) if is_path(name, root) else FOLDERS.get(name, name)


def _below_root(name: str, root: str | None) -> Path:
    root = root or os.environ.get("RAYDIFF_DATA")
    unknown = "" if name in FOLDERS else "unknown "
    if not root:
        raise ValueError(
            f"{unknown}data set {name!r}: all but digits need a folder of data sets, set RAYDIFF_DATA or "
            f"data.root{(_hint(name, ()) if unknown else '')}"
        )
    parent = Path(root).expanduser()
    if (folder := parent / FOLDERS.get(name, name)).is_dir():
        return folder
    below = (file.parent.name for file in sorted(parent.glob("*/*.parquet")))
    where = f"no folder {folder} (data.root, else RAYDIFF_DATA, is {root})"
    is_missing, hint = ("", _hint(name, below)) if unknown else (" is missing", "")
    raise ValueError(f"{unknown}data set {name!r}{is_missing}: {where}{hint}")


def _hint(name: str, more: Iterable[str]) -> str:
    names = dict.fromkeys([*SOURCES, *more, *CODE_BOOKS])
    return nearest(name, names) or f"; known: {', '.join(names)}"


def files(folder: Path | None, labels: Sequence[str]) -> Source:
    """A folder of parquet files, else of pictures, else with one folder of parquet files in it."""
    from raydiff.data import parquet  # slow to import

    assert folder is not None
    if parquet.files_in(folder):
        return parquet.read_parquet_files(folder, labels)
    below = [] if folders.holds_pictures(folder) else parquet.folders_below(folder)
    if len(below) > 1:
        raise ValueError(f"{folder} has parquet files in several folders: name {' or '.join(map(str, below))}")
    return parquet.read_parquet_files(below[0], labels) if below else folders.read_class_folders(folder)


def table_rows(
    name: str, file: Path, labels: Sequence[str], options: TableOptions, *, public: int | None = None, seed: int = 0
) -> Source:
    """Return the rows of a table, their codes in place of pictures.

    Test rows of a preset are last, encoded by the mapping of the others. Raises ValueError as `read_table` and if there
    is no label.
    """
    if len(labels) > 1:
        raise ValueError(f"a table has one label column, data.labels names {len(labels)}: {' '.join(labels)}")
    preset = name if name in CODE_BOOKS else None
    fields = {f.name: getattr(options, f.name) for f in dataclasses.fields(TableOptions)}
    config = read.RawTable(source=str(file), preset=preset, label=labels[0] if labels else None, **fields)
    parts = [first := read.read_table(config, public=public, seed=seed)]
    if preset is not None and len(CODE_BOOKS[preset].files) > 1:
        parts.append(read.read_again(config, read.locate(preset, str(file.parents[1]), part=1), first.mapping))
    if (label := first.mapping.label) is None:
        raise ValueError(f"{file.name} needs a label: give data.labels one of {', '.join(first.columns)}")
    rows = sum(len(part.codes) for part in parts)
    return Source(
        labels=torch.cat([part.labels for part in parts if part.labels is not None])[:, None],
        columns=(label.name,),
        names=(label.categories,),
        own_test=rows - len(first.codes),
        pictures=lambda rows: iter(()),
        says=f"{rows} rows of {len(first.columns)} columns from {' and '.join(part.says for part in parts)}",
        notes=tuple(note for part in parts for note in part.notes),
        codes=torch.cat([part.codes for part in parts]),
        modality=TableRows(first.mapping),
        fitted_columns=first.fitted_columns,
        public=first.public,
    )


def read_digits(folder: Path | None, labels: Sequence[str]) -> Source:
    """scikit-learn's digits: 1797 pictures of 8 x 8 pixels in 0..16."""
    # Without `load_digits`, whose import takes seconds in each process.
    package = importlib.util.find_spec("sklearn")
    assert package is not None and package.origin is not None
    with gzip.open(Path(package.origin).with_name("datasets") / "data" / "digits.csv.gz", "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.uint8)
    pixels = table[:, :64].reshape(-1, 8, 8)
    classes = torch.from_numpy(table[:, 64:].astype(np.int64))

    def pictures(rows: Tensor) -> Iterator[Picture]:
        for row in rows.tolist():
            yield f"row {row} of digits", Image.fromarray(pixels[row])

    return Source(classes, ("digit",), (tuple("0123456789"),), 0, pictures, "scikit-learn's digits", top=16)


SOURCES: lookup.Door[Callable[[Path | None, Sequence[str]], Source]] = lookup.Door(
    "data set",
    {
        "digits": read_digits,
        "mnist": files,
        "cifar10": files,
        "cifar100": files,
        "faces": files,
        "colour-mnist": "raydiff.papers.pfdm.colour_mnist:read_colour_mnist",
    },
    check=lookup.takes("folder", "labels"),
)
"""Name -> a function of the data set's folder (None: embedded) and the label columns. Their classes are declared."""
FOLDERS = {name: name for name in ("mnist", "cifar10", "cifar100")} | {"faces": "orl_faces_64", "colour-mnist": "mnist"}
"""Name -> folder below the root of those that are not embedded."""
