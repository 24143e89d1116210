"""A machine that loses its power at a given call of what writes files, and what is then left on its disk."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class PowerLost(BaseException):
    """Nothing may catch it."""


class Machine:
    """While it runs, writes, links, renames and syncs are counted; at call `at` something happens in their place or
    just behind them: the power is lost, or another process comes by.

    When the power is lost, names that were not synced since are there or not, and so is each byte of a file that was
    not: as with a disk that writes in any order.
    """

    def __init__(self, patch: pytest.MonkeyPatch, rng: random.Random, at: int, visit: Callable[[], None] | None = None):
        self.rng, self.at, self.visit, self.calls = rng, at, visit, 0
        self.names: dict[Path, bytes | None] = {}
        self.contents: set[int] = set()
        self.busy = False
        for owner, name in ((Path, "write_bytes"), (Path, "replace"), (os, "link"), (os, "fsync")):
            patch.setattr(owner, name, self._watched(name, getattr(owner, name)))

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        note = getattr(self, f"_{name}")

        def call(*args: Any, **more: Any) -> Any:
            if self.busy:
                return real(*args, **more)
            self.calls += 1
            now, before = self.calls == self.at, self.rng.random() < 0.5
            if now and before:
                self._happens(name, args, real)
            if name in ("link", "replace"):
                note(*args)
            result = real(*args, **more)
            if name not in ("link", "replace"):
                note(*args)
            if now and not before:
                self._happens(name, (), real)
            return result

        return call

    def _happens(self, name: str, args: Any, real: Callable[..., Any]) -> None:
        if self.visit is not None:
            self.busy = True
            self.visit()
            self.busy = False
            return
        if name == "write_bytes" and args:
            path, data = args
            real(path, data[: self.rng.randrange(len(data) + 1)])
            self._write_bytes(path, data)
        self.busy = True
        self._lose()
        raise PowerLost

    def _write_bytes(self, path: Path, data: bytes) -> None:
        self.contents.add(path.stat().st_ino)

    def _link(self, source: Path, target: Path) -> None:
        if not Path(target).exists():
            self.names.setdefault(Path(target), None)

    def _replace(self, source: Path, target: Path) -> None:
        self.names.setdefault(target, target.read_bytes() if target.exists() else None)

    def _fsync(self, opened: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{opened}"))
        self.contents.discard(path.stat().st_ino)
        self.names = {name: old for name, old in self.names.items() if name.parent != path}

    def _lose(self) -> None:
        for path in {*self.names}:
            if path.exists() and path.stat().st_ino in self.contents and self.rng.random() < 0.5:
                os.truncate(path, self.rng.randrange(path.stat().st_size + 1))
        for path, old in self.names.items():
            if self.rng.random() < 0.5 and path.exists():
                path.unlink()
                if old is not None:
                    path.write_bytes(old)
