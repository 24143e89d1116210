"""JSON lines of a trial's rounds; `json_files.read_lines` reads them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from raydiff.formats.json_files import read_lines, sealed


class Jsonl:
    """One JSON object per line: step, time (Unix seconds) and the metrics."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self._lines = path, {line["step"]: line for line in read_lines(path)}
        if path.exists() and not path.read_bytes().endswith(b"\n"):  # A crash cut the last line short.
            self._append("")

    def log(self, step: int, metrics: Mapping[str, object]) -> None:
        """Append a round; a replayed one is ignored."""
        if step not in self._lines:
            self._lines[step] = {"step": step, "time": time.time(), **metrics}
            self._append(sealed(self._lines[step]))

    def total(self, name: str) -> float:
        """Return the sum of a metric over the recorded rounds."""
        return sum(float(line.get(name, 0.0)) for line in self._lines.values())

    def _append(self, line: str) -> None:
        with self.path.open("a") as f:
            f.write(line + "\n")
