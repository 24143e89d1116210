"""The JSON files of a sweep, as anybody may read them: configs, outcomes, lines of metrics.

Their last field, sha256, is the digest of all bytes before it: a flipped bit, a digit that was edited. Not against
people: who can write a file can write its digest. A file that somebody wrote by hand has none, and is believed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

REMEDIES = {
    "sweep.json": "put back a copy of it, or run the sweep under another --name",
    "config.json": "delete it and the outcome.json beside it, and continue with --resume, which writes both again",
    "outcome.json": "delete it, and continue with --resume, which writes it again after the trial's last commit",
}
"""What can be done about a damaged file of a sweep, by its name."""
KEYED = "hmac:"
"""How a config's `data_digest` begins."""
HEX = re.compile("[0-9a-f]{64}")
SEAL = re.compile(r'(,\s*)"sha256": "([^"]*)"\s*}\s*$')


def sealed(fields: Mapping[str, Any], *, indent: int | None = None) -> str:
    """The fields, at least one, as JSON with their digest."""
    body = json.dumps(fields, indent=indent)[:-1].rstrip()
    gap, end = (" ", "}") if indent is None else ("\n" + " " * indent, "\n}")
    return f'{body},{gap}"sha256": "{hashlib.sha256(body.encode()).hexdigest()}"{end}'


def unsealed(text: str) -> Any:
    """What is in JSON, its digest checked and taken out. Raises ValueError where it is damaged."""
    tree = json.loads(text)
    if not isinstance(tree, dict) or not tree:
        return tree
    last = list(tree)[-1]
    if "sha256" not in tree and not (len(last) == len("sha256") and HEX.fullmatch(str(tree[last]))):
        return tree  # One flip can change the field's name or what it holds, not both.
    seal = SEAL.search(text)
    if seal is None or hashlib.sha256(text[: seal.start()].encode()).hexdigest() != seal[2]:
        raise ValueError("it is not what was written")
    del tree["sha256"]
    return tree


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSONL file; those that a crash cut short, or damage made unreadable, are left out."""
    return [line for _, line in _numbered(path) if line is not None]


def cut_short(path: Path) -> list[int]:
    """The numbers of the lines, from 1, that `read_lines` leaves out."""
    return [number for number, line in _numbered(path) if line is None]


def _numbered(path: Path) -> list[tuple[int, dict[str, Any] | None]]:
    try:
        texts = path.read_text(errors="replace").split("\n") if path.exists() else []
    except OSError as e:
        raise ValueError(f"{path} cannot be read: {e.strerror}") from None
    return [(number, _line(text)) for number, text in enumerate(texts, 1) if text]


def _line(text: str) -> dict[str, Any] | None:
    """One round; where a crash cut the line short and the writer resumed on it, the round after the cut."""
    for start in (0, max(text.rfind('{"step"'), 0)):
        try:
            line = unsealed(text[start:])
        except ValueError:
            continue
        if isinstance(line, dict) and "step" in line:
            return line
    return None


def read_json(path: Path, *, needs: str = "", edited: bool = False, checksum: bool = False) -> dict[str, Any]:
    """`parse_json` of a file. Raises ValueError, with its path, also if it cannot be read."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as e:
        raise ValueError(f"{path} cannot be read: {e.strerror}") from None
    remedy = f": {REMEDIES[path.name]}" if path.name in REMEDIES else ""
    return parse_json(data, path, needs=needs, edited=edited, checksum=checksum, remedy=remedy)


def parse_json(
    data: bytes, where: object, *, needs: str = "", edited: bool = False, checksum: bool = False, remedy: str = ""
) -> dict[str, Any]:
    """The object in a JSON file.

    Args:
        data: The file.
        where: Its path or URI, for messages.
        needs: A field that it must have.
        edited: People may have edited it: its checksum is not verified.
        checksum: It must have a checksum.
        remedy: What to do about a damaged file, for messages.

    Raises:
        ValueError: The file is damaged, is not a JSON object, or lacks a field or checksum that it needs.
    """
    try:
        text = data.decode()
        tree = json.loads(text) if edited else unsealed(text)
    except (json.JSONDecodeError, UnicodeDecodeError) as e:
        says = "is damaged: it is not valid JSON" if checksum else "is not valid JSON"
        raise ValueError(f"{where} {says} ({e}){remedy}") from None
    except ValueError as e:
        raise ValueError(f"{where} is damaged: {e}{remedy}") from None
    if checksum and not SEAL.search(text):
        raise ValueError(f"{where} is damaged: it has no checksum{remedy}")
    if not isinstance(tree, dict) or (needs and needs not in tree):
        raise ValueError(f"{where} has no field {needs!r}{remedy}")
    return {k: v for k, v in tree.items() if k != "sha256"} if edited else tree


def read_outcome(folder: Path) -> dict[str, Any] | None:
    """The outcome.json of the trial in this folder; None while there is none. Raises ValueError where it is
    damaged."""
    path = folder / "outcome.json"
    return read_json(path, needs="outcome") if path.exists() else None


def outcomes(sweep: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """(its folder, `read_outcome`) of every trial of a sweep that has ended, by digest."""
    folders = (path.parent for path in sorted(sweep.glob("trials/*/outcome.json")))
    yield from ((folder, outcome) for folder in folders if (outcome := read_outcome(folder)) is not None)


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
