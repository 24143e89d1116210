"""JSON lines of a trial's rounds; `json_files.read_lines` reads them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from raydiff.formats.json_files import read_lines, sealed


class Jsonl:
    """One JSON object per line: step, time (Unix seconds) and the metrics."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lines = {line["step"]: line for line in read_lines(path)}
        if path.exists() and not path.read_bytes().endswith(b"\n"):  # cut short by a crash: the next line is its own
            with path.open("a") as f:
                f.write("\n")

    def log(self, step: int, metrics: Mapping[str, object]) -> None:
        """Append a round; a replayed one is ignored."""
        if step in self._lines:
            return
        line = {"step": step, "time": time.time(), **metrics}
        self._lines[step] = line
        with self.path.open("a") as f:
            f.write(sealed(line) + "\n")

    def total(self, name: str) -> float:
        """Sum of a metric over the recorded rounds."""
        return sum(float(line.get(name, 0.0)) for line in self._lines.values())
