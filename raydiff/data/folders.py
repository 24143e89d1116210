"""Folders of pictures: class/picture.png, or train/class/picture.png and test/class/picture.png.

Pictures are files with a suffix of `pictures.FORMATS`. Hidden files are skipped.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from raydiff.data import pictures
from raydiff.data.source import Picture, Source


def source(folder: Path) -> Source:
    """All pictures, with the name of their folder as the label `class`.

    They are ordered by file name, then by class, so that a picture's class moves no other picture. Raises ValueError if
    there are no pictures, or not in folders of classes.
    """
    splits = [_of_classes(part) for part in _split_folders(folder)]
    files = [path for split in splits for path in split]
    if not files:
        raise ValueError(_no_classes(folder))
    names = sorted({path.parent.name for path in files}, key=_in_order)
    values = {name: value for value, name in enumerate(names)}
    return Source(
        labels=torch.tensor([[values[path.parent.name]] for path in files]),
        columns=("class",),
        names=(tuple(names),),
        fitted_columns=("class",),
        own_test=sum(map(len, splits[1:])),
        pictures=functools.partial(_pictures, files),
        says=f"{len(files)} pictures in {len(names)} class folders of {folder}",
        notes=_unread(folder, files),
    )


def _split_folders(folder: Path) -> list[Path]:
    """[train, test] or [train] if these hold folders, else the folder itself."""
    splits = [folder / name for name in ("train", "test")]
    if not _folders(splits[0]):
        return [folder]
    return splits if _folders(splits[1]) else splits[:1]


def _of_classes(folder: Path) -> list[Path]:
    """The pictures of all class folders, ordered by file name."""
    files: list[Path] = []
    for path in _folders(folder):
        if deeper := _folders(path):
            wanted = "class/picture, or train/class/picture and test/class/picture"
            raise ValueError(f"{path} holds the folder {deeper[0].name}, but pictures must lie as {wanted}")
        files += _picture_files(path)
    return sorted(files, key=lambda path: path.name)


def _folders(folder: Path) -> list[Path]:
    inner = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in inner if path.is_dir() and not _hidden(path)), key=lambda p: _in_order(p.name))


def _picture_files(folder: Path) -> list[Path]:
    endings = Image.registered_extensions()
    files = (path for path in folder.iterdir() if path.is_file() and not _hidden(path))
    return sorted(path for path in files if endings.get(path.suffix.lower()) in pictures.FORMATS)


def _hidden(path: Path) -> bool:
    return path.name.startswith(".")


def _in_order(name: str) -> tuple[int, str]:
    """0, 1, 2, 10 as numbers, before names of letters."""
    return (int(name), name) if name.isdecimal() else (1 << 62, name)


def _no_classes(folder: Path) -> str:
    if loose := _picture_files(folder):
        return f"{folder} holds {len(loose)} pictures but no folders of pictures: put each class in a folder"
    return f"there are no parquet files and no folders of pictures in {folder}"


def _unread(folder: Path, files: Sequence[Path]) -> tuple[str, ...]:
    """Notes on unread files, except hidden ones, and on folders without pictures."""
    taken = set(files)
    rest = (path for path in sorted(folder.rglob("*")) if path.is_file() and path not in taken)
    others = [path for path in rest if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    empty = [path for part in _split_folders(folder) for path in _folders(part) if not _picture_files(path)]
    notes = []
    if others:
        notes.append(f"files left unread: {len(others)}, such as {others[0].relative_to(folder)}")
    if empty:
        notes.append(f"folders without pictures: {', '.join(path.name for path in empty)}")
    return tuple(notes)


def _pictures(files: Sequence[Path], rows: Tensor) -> Iterator[Picture]:
    for row in rows.tolist():
        where = str(files[row])
        pictures.check_stored(files[row].stat().st_size, where)
        yield where, pictures.decode(files[row].read_bytes(), where)
