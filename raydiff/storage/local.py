"""`Storage` in a folder that all processes of a sweep see: a local disk, or a mount of every node."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from raydiff.storage.atomic_files import write_bytes


@dataclass(frozen=True)
class LocalFolder:
    """Files below one folder; `Storage` documents the methods."""

    folder: Path
    remote: ClassVar[bool] = False

    def put(self, name: str, data: bytes) -> None:
        """Write a file, on the disk when this returns."""
        write_bytes(self.folder / name, data, durable=True)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write a file unless it exists, atomically: by a hard link."""
        with contextlib.suppress(FileExistsError):
            write_bytes(self.folder / name, data, durable=True, if_absent=True)
            return True
        return False

    def get(self, name: str) -> bytes | None:
        """The file's bytes; None if there is none."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / name).read_bytes()
        return None

    def list_names(self, folder: str = "") -> list[str]:
        """Names of the files and folders in a folder, sorted, without temporary ones."""
        with contextlib.suppress(FileNotFoundError):
            return sorted(name for name in os.listdir(self.folder / folder) if not name.startswith("."))
        return []

    def delete(self, names: Iterable[str]) -> None:
        """Remove files; one that cannot be removed stays."""
        for name in names:
            with contextlib.suppress(OSError):
                (self.folder / name).unlink()

    def modified(self, name: str) -> float | None:
        """The file's modification time, in Unix seconds of the file system's clock; None if there is none."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / name).stat().st_mtime
        return None

    def touch(self, name: str) -> None:
        """Set a file's time to now; works on a full disk too."""
        os.utime(self.folder / name)

    def describe(self, name: str) -> str:
        """The file's path."""
        return str(self.folder / name)
