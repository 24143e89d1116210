"""Folders of pictures: class/picture.png, or this below train and test, also in an outer folder."""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from raydiff.data import pictures
from raydiff.data.pictures import Picture
from raydiff.data.source import Source, by_split, visible


def read_class_folders(folder: Path) -> Source:
    """Return all pictures, with the name of their folder as the label `class`.

    They are ordered by file name, so that a picture's class moves no other picture. Raises ValueError if there are no
    pictures, or not in folders of classes.
    """
    folder = _inner(folder)
    train, test, notes = _parts(folder)
    splits = [_of_classes(train), _of_classes(test)]
    files = [path for split in splits for path in split]
    if not files:
        loose = len(_picture_files(folder))
        what = f"{loose} pictures but no folders of pictures: put each class in a folder"
        raise ValueError(f"{folder} holds {what if loose else 'no parquet files and no folders of pictures'}")
    others = sorted({*visible(folder, below=True)[1]} - {*files})
    unread = [f"files left unread: {len(others)}, such as {others[0].relative_to(folder)}"] if others else []
    names = sorted({path.parent.name for path in files}, key=_in_order)
    values = {name: value for value, name in enumerate(names)}
    return Source(
        labels=torch.tensor([[values[path.parent.name]] for path in files]),
        columns=("class",),
        names=(tuple(names),),
        fitted_columns=("class",),
        own_test=len(splits[1]),
        pictures=functools.partial(_pictures, files),
        says=f"{len(files)} pictures in {len(names)} class folders of {folder}",
        notes=(*notes, *unread),
    )


def holds_pictures(folder: Path) -> bool:
    """Whether there are pictures in folders of classes."""
    return any(_picture_files(path) for part in _parts(_inner(folder))[0] for path in _folders(part))


def _inner(folder: Path) -> Path:
    """The folder with the folders of classes or splits: an archive or a repository may have one around it."""
    while len(inner := _folders(folder)) == 1 and _folders(inner[0]) and not by_split(inner)[0]:
        folder = inner[0]
    return folder


def _parts(folder: Path) -> tuple[list[Path], list[Path], tuple[str, ...]]:
    """`by_split` of the folders that hold folders; without train* the folder itself."""
    train, test, notes = by_split([path for path in _folders(folder) if _folders(path)])
    return train or [folder], test, notes


def _of_classes(parts: Sequence[Path]) -> list[Path]:
    """The pictures of all class folders, ordered by file name."""
    classes = [path for part in parts for path in _folders(part)]
    for deeper in (folder for path in classes for folder in _folders(path)):
        raise ValueError(
            f"{deeper.parent} holds the folder {deeper.name}, but pictures must lie as class/picture, or "
            "train/class/picture and test/class/picture"
        )
    return sorted((file for path in classes for file in _picture_files(path)), key=lambda file: file.name)


def _folders(folder: Path) -> list[Path]:
    return sorted(visible(folder)[0], key=lambda path: _in_order(path.name))


def _picture_files(folder: Path) -> list[Path]:
    endings = Image.registered_extensions()
    return [path for path in visible(folder)[1] if endings.get(path.suffix.lower()) in pictures.FORMATS]


def _in_order(name: str) -> tuple[int, str]:
    """0, 1, 2, 10 as numbers, before names of letters."""
    return (int(name), name) if name.isdecimal() else (1 << 62, name)


def _pictures(files: Sequence[Path], rows: Tensor) -> Iterator[Picture]:
    for row in rows.tolist():
        where = str(files[row])
        pictures.check_stored(files[row].stat().st_size, where)
        yield where, pictures.decode(files[row].read_bytes(), where)
