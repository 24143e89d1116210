"""The JSON files of a sweep, as anybody may read them: configs, outcomes, lines of metrics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REMEDIES = {
    "sweep.json": "put back a copy of it, or run the sweep under another --name",
    "config.json": "delete it and the outcome.json beside it, and continue with --resume, which writes both again",
    "outcome.json": "delete it, and continue with --resume, which writes it again after the trial's last commit",
}
"""What can be done about a damaged file of a sweep, by its name."""
KEYED = "hmac:"
"""How a config's `data_digest` begins. In trials made before 2026-11-23 it is a plain hash of the records."""


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSONL file; those that a crash cut short, or damage made unreadable, are left out."""
    return [line for _, line in _numbered(path) if line is not None]


def cut_short(path: Path) -> list[int]:
    """The numbers of the lines, from 1, that `read_lines` leaves out."""
    return [number for number, line in _numbered(path) if line is None]


def _numbered(path: Path) -> list[tuple[int, dict[str, Any] | None]]:
    texts = path.read_text(errors="replace").split("\n") if path.exists() else []
    return [(number, _line(text)) for number, text in enumerate(texts, 1) if text]


def _line(text: str) -> dict[str, Any] | None:
    """One round; where a crash cut the line short and the writer resumed on it, the round after the cut."""
    for start in (0, max(text.rfind('{"step"'), 0)):
        try:
            line = json.loads(text[start:])
        except ValueError:
            continue
        if isinstance(line, dict) and "step" in line:
            return line
    return None


def read_json(path: Path, *, needs: str = "") -> dict[str, Any]:
    """The object in a file of a sweep. Raises ValueError, with the path and what can be done, where it is damaged or
    lacks the field that it `needs`."""
    remedy = f": {REMEDIES[path.name]}" if path.name in REMEDIES else ""
    try:
        tree = json.loads(path.read_text())
    except ValueError as e:  # JSONDecodeError and UnicodeDecodeError are both
        raise ValueError(f"{path} is not valid JSON ({e}){remedy}") from None
    if not isinstance(tree, dict) or (needs and needs not in tree):
        raise ValueError(f"{path} has no field {needs!r}{remedy}")
    return tree


def published(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A config's JSON as it may leave the storage folder: without a hash of the records that is not keyed, from which
    they are found by trying."""
    return {k: v for k, v in tree.items() if k != "data_digest" or str(v).startswith(KEYED)}


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"method": "PFDM", "method.epsilon": 10.0} from the nested JSON of a config."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            out[prefix + key] = value["kind"]
            out.update(flatten(value, f"{prefix}{key}."))
        elif key != "kind":
            out[prefix + key] = value
    return out
