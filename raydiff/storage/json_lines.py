"""Logs of a trial: one JSON object per line and step, with the time in Unix seconds."""

import time
from collections.abc import Mapping
from typing import Any

from raydiff.formats.json_files import dumps, parse_lines
from raydiff.storage.storage import Storage


class JsonLines:
    """A log under a name such as metrics.jsonl, which one process writes."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage = storage
        self._name = name
        data = storage.get(name) or b""
        self._lines = {line["step"]: line for line in parse_lines(data)}
        self._before = b"" if data.endswith(b"\n") or not data else b"\n"  # A crash cut the last line short.

    def log(self, step: int, fields: Mapping[str, object]) -> None:
        """Append a round; a replayed one is ignored."""
        if step in self._lines:
            return
        self._lines[step] = {"step": step, "time": time.time(), **fields}
        self._storage.append(self._name, self._before + dumps(self._lines[step]).encode() + b"\n")
        self._before = b""

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The recorded lines, one per step."""
        return list(self._lines.values())
