"""Files that appear whole or not at all: written under a temporary name beside the target, then renamed or linked."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from raydiff.storage.conditional_put import create_once


class LeaseLost(ValueError):
    """Another process has taken over this trial. A process that gets this stops: it sends and writes nothing more."""


def write_text(path: Path, text: str, *, durable: bool = False, if_absent: bool = False) -> None:
    """Write a small text file; the options are those of `appearing`."""
    write_bytes(path, text.encode(), durable=durable, if_absent=if_absent)


def write_bytes(path: Path, data: bytes, *, durable: bool = False, if_absent: bool = False) -> None:
    """Write a file; the options are those of `appearing`."""
    with write_atomically(path, durable=durable, if_absent=if_absent) as temporary:
        temporary.write_bytes(data)


@contextlib.contextmanager
def write_atomically(path: Path, *, durable: bool = False, if_absent: bool = False) -> Iterator[Path]:
    """A temporary name beside `path` that becomes `path` if the block succeeds.

    `durable` syncs file and name to the disk; `if_absent` raises FileExistsError if `path` exists: of several
    processes that try at once, one succeeds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        yield temporary
        if durable:
            _sync(temporary)
        if if_absent:
            if not create_once(lambda: _link(temporary, path), lambda: _is_same_file(temporary, path), str(path)):
                raise FileExistsError(path)
        else:
            temporary.replace(path)
        if durable:  # The folder is synced too, for it holds the file's name.
            _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _link(temporary: Path, path: Path) -> bool:
    try:
        os.link(temporary, path)  # atomic on NFS too
        return True
    except FileExistsError:
        return False


def _is_same_file(temporary: Path, path: Path) -> bool | None:
    """Whether `path` is a link to the temporary file, as after an answer that NFS lost; None if there is no file."""
    try:
        return path.samefile(temporary)
    except FileNotFoundError:
        return None


def _sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
