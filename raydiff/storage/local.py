"""`Storage` in a folder that all processes of a sweep see: a local disk, or a mount of every node."""

from __future__ import annotations

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
    """Files below one folder; `Storage` documents the methods."""

    folder: Path
    pause_s: ClassVar[float] = 0.0

    def put(self, name: str, data: bytes) -> None:
        write_bytes(self.folder / name, data, durable=True)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        with contextlib.suppress(FileExistsError):
            write_bytes(self.folder / name, data, durable=True, if_absent=True)
            return True
        return False

    def append(self, name: str, data: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(data)

    def get(self, name: str) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / name).read_bytes()
        return None

    def list_names(self, folder: str = "") -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return sorted(name for name in os.listdir(self.folder / folder) if not name.startswith("."))
        return []

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            with contextlib.suppress(OSError):
                (self.folder / name).unlink()

    def remove_all(self) -> None:
        shutil.rmtree(self.folder)

    def modified(self, name: str) -> float | None:
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / name).stat().st_mtime
        return None

    def touch(self, name: str) -> None:
        os.utime(self.folder / name)  # works on a full disk too

    def describe(self, name: str) -> str:
        return str(self.folder / name)
