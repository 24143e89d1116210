"""`Storage` in a folder that all processes of a sweep see: a local disk, or a mount of every node."""

import contextlib
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from raydiff.storage.atomic_files import write_bytes


@dataclass(frozen=True)
class LocalFolder:
    """Files below one folder."""

    folder: Path
    pause_s: ClassVar[float] = 0.0
    """Seconds between two requests of a process that asks again and again: an object store bills each."""

    def put(self, name: str, data: bytes) -> None:
        """Store `data` under a name such as "clients/00007-00003.safetensors", replacing what was there."""
        write_bytes(self.folder / name, data, durable=True)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Store `data` unless the name exists, in one request.

        Of several processes that try at once, one gets True, also where they store equal bytes.
        """
        with contextlib.suppress(FileExistsError):
            write_bytes(self.folder / name, data, durable=True, if_absent=True)
            return True
        return False

    def append(self, name: str, data: bytes) -> None:
        """Add `data` to what is stored under the name. One process appends to a name."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(data)

    def get(self, name: str) -> bytes | None:
        """What is stored under the name; None if nothing is."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / name).read_bytes()
        return None

    def list_names(self, folder: str = "") -> list[str]:
        """Names of the files and folders directly in a folder, sorted."""
        with contextlib.suppress(FileNotFoundError):
            return sorted(name for name in os.listdir(self.folder / folder) if not name.startswith("."))
        return []

    def delete(self, names: Iterable[str]) -> None:
        """Remove names. Failures are ignored: what stays is never read again."""
        for name in names:
            with contextlib.suppress(OSError):
                (self.folder / name).unlink()

    def remove_all(self) -> None:
        """Remove everything below it."""
        shutil.rmtree(self.folder)

    def modified(self, name: str) -> float | None:
        """When the name was last put or touched, in seconds of the storage's clock; None if it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / name).stat().st_mtime
        return None

    def touch(self, name: str) -> None:
        """Set the time of a name to now."""
        os.utime(self.folder / name)  # works on a full disk too

    def describe(self, name: str) -> str:
        """The path or URI of a name, for messages."""
        return str(self.folder / name)
