"""Files that appear whole or not at all, and folders that all processes of a sweep share: `Shared` is the seam between
storage in a folder and storage in a bucket (`remote`). No Ray inside."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from raydiff.privacy.release import Event
from raydiff.storage import checksums as seals
from raydiff.tree import Params, Tensors, aligned

SYNCING = 8  # files that are brought to the disk at once: together they take a tenth of their time one by one


class LeaseLost(ValueError):
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
            return {k: aligned(f.get_tensor(k)) for k in f.keys()}, seals.note_of(f.metadata())  # noqa: SIM118
    except SafetensorError as e:
        raise ValueError(f"{path} is damaged: {e}") from None


def write_text(path: Path, text: str, *, durable: bool = False, first: bool = False) -> None:
    """Write a small text file, whole or not at all. `first`: raises FileExistsError where one is there."""
    with appearing(path, durable=durable, first=first) as temporary:
        temporary.write_text(text)


def write_bytes(path: Path, data: bytes, *, first: bool = False) -> None:
    """The same of bytes."""
    with appearing(path, first=first) as temporary:
        temporary.write_bytes(data)


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
            _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _kept(path: Path) -> str | None:
    """A state's digest, once it is on the disk. On storage of a network it was when its writer had closed it."""
    _sync(path)
    return seals.seal_of(path)


@dataclass(frozen=True)
class Shared:
    """What all processes see of the folder of a sweep or a trial (`remote.shared`). Here it is the folder itself: what
    is in it is there for all, and nothing has to be carried anywhere."""

    folder: Path
    apart: ClassVar[bool] = False
    """Whether each process works in a folder of its own."""
    asked_s: ClassVar[float] = 0.0
    """Between two questions of a process that it asks again and again."""
    together_s: ClassVar[float] = 0.0
    """Of a process's work whose messages are told of together."""

    # --- a file by its name below the folder

    def put(self, name: str, data: bytes) -> None:
        """Write it, whole or not at all."""
        write_bytes(self.folder / name, data)

    def first(self, name: str, data: bytes) -> bool:
        """Write it unless there is one; whether it is there now. `data` must be like no other's."""
        try:
            write_bytes(self.folder / name, data, first=True)
        except FileExistsError:
            return False
        return True

    def get(self, name: str) -> bytes | None:
        """All of it; None where there is none."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / name).read_bytes()
        return None

    def reading(self, name: str) -> Callable[[], bytes | None]:
        """What gives all of it in another process; it may raise FileNotFoundError."""
        return (self.folder / name).read_bytes

    def written(self, name: str) -> float | None:
        """When it was written, by the storage's clock; None where there is none."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / name).stat().st_mtime
        return None

    def touch(self, name: str, data: bytes) -> None:
        """Have it written now; `data` is what it says."""
        os.utime(self.folder / name)

    def remove(self, names: Sequence[str]) -> None:
        """Remove these. What stays, since the storage fails, is in nobody's way."""
        for name in names:
            with contextlib.suppress(OSError):
                (self.folder / name).unlink()

    def called(self, name: str) -> str:
        """Where it is, in words."""
        return str(self.folder / name)

    def unseen(self, node: str) -> str:
        """What is said where a node does not see what was put here."""
        says = f"the storage folder {self.folder} is not shared: node {node} does not see what the driver writes there"
        return f"{says}; give --runtime.storage a folder that all nodes mount, or a bucket"

    # --- between a trial's folder, in which a process works, and what all see of it

    def restore(self, *, server: bool = True) -> None:
        """Make the folder what all see: its commits, what was sent in the round after them, and the server's state if
        asked. Raises ValueError where something is damaged or lost."""

    def complete(self, last: int) -> None:
        """`restore` unless all is here that tells of a trial whose last round is this one, but for clients' states."""

    def fetch(self, path: Path) -> None:
        """Bring a state or an upload here, if it is not and there is one. Raises ValueError where it is damaged, or is
        gone."""

    def carry(self, name: str, data: bytes) -> None:
        """Show all what was written to a file here."""

    def send(self, number: int, messages: Sequence[tuple[int, Event, int]]) -> None:
        """Write ahead (client, event, bytes) of what is sent now, with the states and noised uploads that are in the
        folder. All see it when this returns; raises LeaseLost where another process has sent something else that one
        of these clients noised, or the round counts."""

    def said(self, number: int, states: dict[int, Path]) -> dict[str, str | None]:
        """The digests of the states that a round made, by client, once they will last; `states` are those here."""
        with ThreadPoolExecutor(SYNCING) as pool:
            found = dict(zip(map(str, states), pool.map(_kept, states.values()), strict=True))
        if states:
            _sync(self.folder / "clients")
        return found

    def commit(self, number: int, text: str, server: Path | None) -> None:
        """Make a round count, with what the folder is to have as its commit; then drop what no resume can need. Raises
        LeaseLost where it counts already."""

    # --- results that several trials share

    def load_cached(self, path: Path) -> None:
        """Bring one here, if it is not and there is one."""

    def keep_cached(self, path: Path) -> None:
        """Show all one that was made here."""

    def forget_cached(self, path: Path) -> None:
        """Drop it."""
        path.unlink(missing_ok=True)

    def has_cached(self, path: Path) -> bool:
        """Whether there is one."""
        return path.exists()
