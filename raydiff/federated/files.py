"""Files that appear whole or not at all, on storage that all nodes share. No Ray inside."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from raydiff.federated import seals
from raydiff.tree import Params, Tensors, aligned


class Overtaken(ValueError):
    """Another process goes on with this trial. Who gets this stops, sends nothing, and writes nothing more."""


def write_tensors(path: Path, tensors: Tensors, *, note: str = "", durable: bool = False, first: bool = False) -> None:
    """Write a safetensors file; `note` goes into its header. `first`: one that is there stays."""
    from safetensors.torch import save

    whole = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}
    pieces = seals.sealed(save(whole, metadata=seals.metadata(note)))
    with (
        contextlib.suppress(*[FileExistsError] * first),
        appearing(path, durable=durable, first=first) as temporary,
        temporary.open("wb") as f,
    ):
        f.writelines(pieces)


def read_tensors(path: Path) -> tuple[Params, str]:
    """(tensors, note) of a file that `write_tensors` wrote. Raises ValueError, which names the file, where it is
    damaged."""
    from safetensors import SafetensorError, safe_open

    seals.check_tensors(path)
    try:
        with safe_open(str(path), framework="pt") as f:
            return {k: aligned(f.get_tensor(k)) for k in f.keys()}, seals.note_of(path, f.metadata())  # noqa: SIM118
    except SafetensorError as e:
        raise ValueError(f"{path} is damaged: {e}") from None


def write_text(path: Path, text: str, *, durable: bool = False, first: bool = False) -> None:
    """Write a small text file, whole or not at all. `first`: raises FileExistsError where one is there."""
    with appearing(path, durable=durable, first=first) as temporary:
        temporary.write_text(text)


@contextlib.contextmanager
def appearing(path: Path, *, durable: bool = False, first: bool = False) -> Iterator[Path]:
    """A temporary name beside `path` (".<name>.<8 hex digits>") that becomes `path` if the block succeeds. With `first`
    raises FileExistsError where there is such a file: of several that try at once, one succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        yield temporary
        if durable:
            with temporary.open("rb") as f:
                os.fsync(f.fileno())
        if first:
            os.link(temporary, path)
        else:
            temporary.replace(path)
        if durable:  # The folder is synced too, for it holds the file's name.
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
