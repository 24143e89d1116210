"""JSON files of a sweep: configs, outcomes, lines of metrics.

Their last field, sha256, is the digest of all bytes before it. It reveals damage, not forgery: who can write a file can
write its digest. A file without one was written by hand, and is accepted. The field before it says what the file is
of, its trial and name, so that the file of another trial in its place is refused. It holds wherever the storage moves.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

REMEDIES = {  # what to do about a damaged file, by its name
    "sweep.json": "put back a copy of it, or run the sweep under another --name",
    "config.json": "delete it and the outcome.json beside it, and continue with --resume, which writes both again",
    "outcome.json": "delete it, and continue with --resume, which writes it again after the trial's last commit",
}
KEYED = "hmac:"  # prefix of a config's `data_digest`
SEAL = re.compile(r'(,\s*)"sha256": "([^"]*)"\s*}\s*$')
TRIAL = re.compile("[0-9a-f]{16}")  # name of a trial's folder
OF = re.compile(rf"(?:^|/)((?:{TRIAL.pattern}|budgets/[^/]+)/(?:artifacts/)?[^/]+)$")


class Misplaced(ValueError):
    """A whole file, or a line, of another trial or kind."""


def identity(where: object) -> str:
    """Return what the file at a path or URI is of: the digest of its trial, or its budget, and its name."""
    match = OF.search(str(where))
    return match[1] if match else str(where).rpartition("/")[2]


def dumps(tree: Any, **options: Any) -> str:
    """Return `tree` as JSON that every parser reads: an infinite number is the text "inf" or "-inf", NaN is null."""
    return json.dumps(_finite(tree), allow_nan=False, **options)


def _finite(tree: Any) -> Any:
    if isinstance(tree, float) and not math.isfinite(tree):
        return None if math.isnan(tree) else str(tree)
    if isinstance(tree, Mapping):
        return {key: _finite(value) for key, value in tree.items()}
    return [_finite(value) for value in tree] if isinstance(tree, (list, tuple)) else tree


def read_number(value: Any) -> float:
    """Return the number that `dumps` has written."""
    return math.nan if value is None else float(value)


def read_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return numbers by name that `dumps` has written."""
    return {name: read_number(value) for name, value in values.items()}


def sealed(fields: Mapping[str, Any], of: str | Path, *, indent: int | None = None) -> str:
    """Return the fields as JSON, with what they are `of`, of a path its `identity`, and their digest."""
    body = dumps({**fields, "of": identity(of) if isinstance(of, Path) else of}, indent=indent)[:-1].rstrip()
    gap, end = (" ", "}") if indent is None else ("\n" + " " * indent, "\n}")
    return f'{body},{gap}"sha256": "{hashlib.sha256(body.encode()).hexdigest()}"{end}'


def unsealed(text: str, of: str) -> Any:
    """Return JSON's content without digest and identity. Raises ValueError where it is damaged, Misplaced where it is
    not `of` this."""
    tree = json.loads(text)
    if not isinstance(tree, dict) or not {"of", "sha256"} & tree.keys():  # One flip can change one of these names.
        return tree
    seal = SEAL.search(text)
    if seal is None or hashlib.sha256(text[: seal.start()].encode()).hexdigest() != seal[2]:
        raise ValueError("it is not what was written")
    del tree["sha256"]
    if (other := tree.pop("of", "another file")) != of:
        raise Misplaced(f"it is a copy of {other}")
    return tree


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the readable lines of a JSONL file: a crash cuts one short. Raises ValueError for one of another file."""
    return [line for _, line in _numbered(path) if line is not None]


def read_lines_from(path: Path, start: int) -> tuple[list[dict[str, Any]], int]:
    """Return the readable whole lines from byte `start` on, and where they end: the next call's start. A shorter file
    is read from its beginning. Raises ValueError as `read_lines`."""
    if not path.exists():
        return [], 0
    with path.open("rb") as file:
        start = start if start <= file.seek(0, os.SEEK_END) else 0
        file.seek(start)
        data = file.read()
    data = data[: data.rfind(b"\n") + 1]
    return [line for _, line in _numbered(path, data) if line is not None], start + len(data)


def cut_short(path: Path) -> list[int]:
    """Return the numbers, from 1, of the lines that `read_lines` leaves out."""
    return [number for number, line in _numbered(path) if line is None]


class Jsonl:
    """One JSON object per line: step, time (Unix seconds) and what is logged."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self._lines = path, {line["step"]: line for line in read_lines(path)}
        if path.exists() and not path.read_bytes().endswith(b"\n"):  # A crash cut the last line short.
            self._append("")

    def log(self, step: int, fields: Mapping[str, object]) -> None:
        """Append a round; a replayed one is ignored."""
        if step not in self._lines:
            self._lines[step] = {"step": step, "time": time.time(), **fields}
            self._append(sealed(self._lines[step], self.path))

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The recorded lines, one per step."""
        return list(self._lines.values())

    def _append(self, line: str) -> None:
        with self.path.open("a") as f:
            f.write(line + "\n")


def read_json(path: Path, *, needs: str = "", edited: bool = False, checksum: bool = False) -> dict[str, Any]:
    """Return `parse_json` of a file. Raises ValueError also if it cannot be read."""
    return parse_json(_read(path), path, needs=needs, edited=edited, checksum=checksum)


def parse_json(
    data: bytes, where: object, *, needs: str = "", edited: bool = False, checksum: bool = False, of: str = ""
) -> dict[str, Any]:
    """Return the object in the JSON file at a path or URI. Raises ValueError where it is damaged, no object, without
    the field that it `needs` or the `checksum` that it must have, or not `of` this (default: the `identity` of
    `where`). Where people may have `edited` it, its checksum is not verified."""
    name = str(where).rpartition("/")[2]
    remedy = f": {REMEDIES[name]}" if name in REMEDIES else ""
    try:
        text = data.decode()
        tree = json.loads(text) if edited else unsealed(text, of or identity(where))
    except (json.JSONDecodeError, UnicodeDecodeError) as e:
        says = "is damaged: it is not valid JSON" if checksum else "is not valid JSON"
        raise ValueError(f"{where} {says} ({e}){remedy}") from None
    except ValueError as e:
        raise ValueError(f"{where} is damaged: {e}{remedy}") from None
    if checksum and not SEAL.search(text):
        raise ValueError(f"{where} is damaged: it has no checksum{remedy}")
    if not isinstance(tree, dict) or (needs and needs not in tree):
        raise ValueError(f"{where} has no field {needs!r}{remedy}")
    return {k: v for k, v in tree.items() if k not in ("of", "sha256")} if edited else tree


def read_outcome(folder: Path) -> dict[str, Any] | None:
    """Return the outcome.json of a trial's folder, None before there is one. Raises ValueError where it is damaged."""
    path = folder / "outcome.json"
    if not path.exists():
        return None
    outcome = read_json(path, needs="outcome")
    for view in ("server", "outsiders"):
        if view in outcome:
            outcome[view]["epsilon"] = read_number(outcome[view]["epsilon"])
    return outcome


def outcomes(sweep: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield (folder, `read_outcome`) of every trial that has ended, by digest."""
    for folder in trial_folders(sweep, "outcome.json"):
        if (outcome := read_outcome(folder)) is not None:
            yield folder, outcome


def read_plan(sweep: Path, *, needs: str = "") -> dict[str, Any]:
    """Return a sweep's sweep.json. Raises ValueError where it is damaged, or does not plan the trials that began."""
    path, begun = sweep / "sweep.json", {folder.name for folder in trial_folders(sweep)}
    plan = read_json(path, needs=needs)
    free = plan.get("suggested") or not SEAL.search(path.read_text())  # added to, or by hand
    if not free and (others := begun.difference(plan["trials"])):
        raise ValueError(f"{path} is of another sweep, without trial {min(others)}: {REMEDIES[path.name]}")
    return plan


def trial_folders(sweep: Path, holding: str = "config.json") -> list[Path]:
    """Return the folders of a sweep's trials that have this file, by digest. Copies under other names are left out."""
    folders = sorted(path.parent for path in sweep.glob(f"trials/*/{holding}"))
    return [folder for folder in folders if TRIAL.fullmatch(folder.name)]


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return {"method": "PFDM", "method.epsilon": 10.0} from the nested JSON of a config."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            out[prefix + key] = value["kind"]
            out.update(flatten(value, f"{prefix}{key}."))
        elif key != "kind":
            out[prefix + key] = value
    return out


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as e:
        raise ValueError(f"{path} cannot be read: {e.strerror}") from None


def _numbered(path: Path, data: bytes | None = None) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """(number, from 1, what the line holds) of each line, or of those in `data`, a part of the file."""
    data = (_read(path) if path.exists() else b"") if data is None else data
    for number, text in enumerate(data.decode(errors="replace").split("\n"), 1):
        if text:
            try:
                line = unsealed(text, identity(path))
            except Misplaced as e:
                raise ValueError(f"line {number} of {path} is damaged: {e}: put back a copy of the file") from None
            except ValueError:
                line = None
            yield number, line if isinstance(line, dict) and "step" in line else None
