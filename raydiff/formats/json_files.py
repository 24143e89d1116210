"""JSON files of a sweep: configs, outcomes, lines of metrics.

What epsilon is computed from is sealed: commits, notes of what was sent, a budget's records. The last field, sha256, is
the digest of all bytes before it. It reveals damage, not forgery: who can write a file can write its digest. The field
before it says what the file is of, so that the file of another trial in its place is refused.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

REMEDIES = {  # what to do about a damaged file, by its name
    "sweep.json": "put back a copy of it, or run the sweep under another --name",
    "config.json": "delete it and the outcome.json beside it, and continue with --resume, which writes both again",
    "outcome.json": "delete it, and continue with --resume, which writes it again after the trial's last commit",
}
KEYED = "hmac:"  # prefix of a config's `data_digest`
SEAL = re.compile(r', "sha256": "([^"]*)"}\s*$')
TRIAL = re.compile("[0-9a-f]{16}")  # name of a trial's folder


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


def sealed(fields: Mapping[str, Any], of: str) -> str:
    """Return the fields as JSON, with what they are `of` and their digest."""
    body = dumps({**fields, "of": of})[:-1]
    return f'{body}, "sha256": "{hashlib.sha256(body.encode()).hexdigest()}"}}'


def parse_sealed(data: bytes, where: object, *, of: str, needs: str = "") -> dict[str, Any]:
    """Return the fields that were `sealed`. Raises ValueError, naming `where`, if they are damaged or not `of` this."""
    text = data.decode(errors="replace")
    seal = SEAL.search(text)
    if seal is None or hashlib.sha256(text[: seal.start()].encode()).hexdigest() != seal[1]:
        raise ValueError(f"{where} is damaged: it is not what was written")
    fields = parse_json(data, where, needs=needs)
    del fields["sha256"]
    if (other := fields.pop("of")) != of:
        raise ValueError(f"{where} is damaged: it is a copy of {other}")
    return fields


def place_of(path: Path) -> str:
    """Return what a sealed file at this path is of: its folder's name and its own."""
    return "/".join(path.parts[-2:])


def read_sealed(path: Path, *, needs: str = "") -> dict[str, Any]:
    """Return `parse_sealed` of a file."""
    return parse_sealed(_read(path), path, of=place_of(path), needs=needs)


def read_json(path: Path, *, needs: str = "") -> dict[str, Any]:
    """Return `parse_json` of a file. Raises ValueError also if it cannot be read."""
    return parse_json(_read(path), path, needs=needs)


def parse_json(data: bytes, where: object, *, needs: str = "") -> dict[str, Any]:
    """Return the object in the JSON file at a path or URI.

    Raises ValueError where it is no valid JSON, or has no field that it `needs`.
    """
    name = str(where).rpartition("/")[2]
    remedy = f": {REMEDIES[name]}" if name in REMEDIES else ""
    try:
        tree = json.loads(data.decode())
    except ValueError as e:
        raise ValueError(f"{where} is not valid JSON ({e}){remedy}") from None
    if not isinstance(tree, dict) or (needs and needs not in tree):
        raise ValueError(f"{where} has no field {needs!r}{remedy}")
    return tree


def parse_lines(data: bytes) -> list[dict[str, Any]]:
    """Return the readable lines of a log: a crash cuts one short."""
    return [line for _, line in _number_lines(data) if line is not None]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return `parse_lines` of a file, none where it does not exist."""
    return parse_lines(_read(path)) if path.exists() else []


def read_lines_from(path: Path, start: int) -> tuple[list[dict[str, Any]], int]:
    """Return the readable whole lines from byte `start` on, and where they end: the next call's start.

    A shorter file is read from its beginning.
    """
    data = _read(path) if path.exists() else b""
    start = start if start <= len(data) else 0
    data = data[start : data.rfind(b"\n") + 1]
    return parse_lines(data), start + len(data)


def unreadable_lines(path: Path) -> list[int]:
    """Return the numbers, from 1, of the lines that `read_lines` leaves out."""
    data = _read(path) if path.exists() else b""
    return [number for number, line in _number_lines(data) if line is None]


def parse_outcome(data: bytes, where: object) -> dict[str, Any]:
    """Return `parse_json` of an outcome.json, its epsilons as numbers."""
    outcome = parse_json(data, where, needs="outcome")
    for view in ("server", "outsiders"):
        if view in outcome:
            outcome[view]["epsilon"] = read_number(outcome[view]["epsilon"])
    return outcome


def read_outcome(folder: Path) -> dict[str, Any] | None:
    """Return the outcome.json of a trial's folder, None before there is one. Raises ValueError where it is damaged."""
    path = folder / "outcome.json"
    return parse_outcome(_read(path), path) if path.exists() else None


def outcomes(sweep: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield (folder, `read_outcome`) of every trial that has ended, by digest."""
    for folder in trial_folders(sweep, "outcome.json"):
        if (outcome := read_outcome(folder)) is not None:
            yield folder, outcome


def read_plan(sweep: Path, *, needs: str = "") -> dict[str, Any]:
    """Return a sweep's sweep.json. Raises ValueError where it is damaged, or does not plan the trials that began."""
    path = sweep / "sweep.json"
    begun = {folder.name for folder in trial_folders(sweep)}
    plan = read_json(path, needs=needs)
    if not plan.get("suggested") and (others := begun.difference(plan.get("trials", begun))):
        raise ValueError(f"{path} is of another sweep, without trial {min(others)}: {REMEDIES[path.name]}")
    return plan


def trial_folders(sweep: Path, holding: str = "config.json") -> list[Path]:
    """Return the folders of a sweep's trials that have this file, by digest. Copies under other names are left out."""
    folders = sorted(path.parent for path in sweep.glob(f"trials/*/{holding}"))
    return [folder for folder in folders if TRIAL.fullmatch(folder.name)]


def flatten_tree(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return {"method": "PFDM", "method.epsilon": 10.0} from the nested JSON of a config."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            out[prefix + key] = value["kind"]
            out.update(flatten_tree(value, f"{prefix}{key}."))
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


def _number_lines(data: bytes) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """(number, from 1, what the line holds) of each line that is not empty."""
    for number, text in enumerate(data.decode(errors="replace").split("\n"), 1):
        if text:
            try:
                line = json.loads(text)
            except ValueError:
                line = None
            yield number, line if isinstance(line, dict) and "step" in line else None
