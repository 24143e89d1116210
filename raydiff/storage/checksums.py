"""Digests inside files, by which damage is noticed when they are read: a flipped bit, a digit that was edited, a file
put back from elsewhere. Not against people: who can write a file can write its digest. Nothing of torch inside.

    JSON            the last field, sha256, is the digest of all bytes before it (`report.files`)
    safetensors     in the header's "seal": the digest of the whole file with zeros in its own place
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raydiff.formats.json_files import SEAL, unsealed

_BLANK = b"0" * 64
_START = b'{"__metadata__":{"seal":"{\\"sha256\\": \\"'  # The header begins so, after 8 bytes for its length.
_AT = 8 + len(_START)
_CHUNK = 2**20


def read_json(path: Path) -> dict[str, Any]:
    """The fields of a JSON file, checked. Raises ValueError, which names the file, where it is damaged."""
    try:
        fields = unsealed(text := path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as e:
        raise ValueError(f"{path} is damaged: it is not valid JSON ({e})") from None
    except ValueError as e:
        raise ValueError(f"{path} is damaged: {e}") from None
    if not isinstance(fields, dict):
        raise ValueError(f"{path} is damaged: it is not a JSON object")
    if not SEAL.search(text):
        raise ValueError(f"{path} is damaged: it has no digest of itself")
    return fields


def digest(path: Path) -> str:
    """sha256 of a file."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def metadata(note: str) -> dict[str, str]:
    """A safetensors file's metadata with room for the seal. One entry: of several the order, and with it the file's
    bytes, would be left to chance."""
    return {"seal": json.dumps({"sha256": _BLANK.decode(), "note": note})}


def sealed(data: bytes) -> tuple[bytes, bytes, memoryview]:
    """A safetensors file that was made with `metadata`, in pieces to be written one after the other."""
    assert data[8 : _AT + 64] == _START + _BLANK
    return data[:_AT], hashlib.sha256(data).hexdigest().encode(), memoryview(data)[_AT + 64 :]


def seal_of(path: Path) -> str | None:
    """The digest that a safetensors file says of itself, unchecked; None: it has none."""
    with path.open("rb") as f:
        start = f.read(_AT + 64)
    return start[_AT:].decode(errors="replace") if start[8:_AT] == _START else None


def check_tensors(path: Path) -> None:
    """Raises ValueError, which names the file, where a safetensors file is not what its seal says, or has none."""
    if (said := seal_of(path)) is None:
        raise ValueError(f"{path} is damaged: its header has no seal")
    found = hashlib.sha256()
    with path.open("rb") as f:
        found.update(f.read(_AT) + _BLANK)
        f.seek(64, 1)
        while chunk := f.read(_CHUNK):
            found.update(chunk)
    if found.hexdigest() != said:
        raise ValueError(f"{path} is damaged: it is not what was written")


def note_of(metadata: Mapping[str, str]) -> str:
    """The note in the metadata of a safetensors file that `check_tensors` let pass."""
    return str(json.loads(metadata["seal"])["note"])
