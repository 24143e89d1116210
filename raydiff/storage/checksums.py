"""Safetensors files with a checksum, which shows a flipped bit or a cut file. JSON files: see `formats.json_files`.

It stands in the header's metadata and covers the whole file, with zeros in its own place, and what the file is of: a
copy of another file is refused. It guards against accidents, not against people: whoever can write a file can write its
checksum.
"""

import hashlib
import json

from raydiff.formats.json_files import dumps
from raydiff.tree import Params, Tensors, align_memory

_BLANK = b"0" * 64
_START = b'{"__metadata__":{"seal":"{\\"sha256\\": \\"'  # The header begins so, after 8 bytes for its length.
_AT = 8 + len(_START)


def dump_tensors(tensors: Tensors, of: str = "", note: str = "") -> bytes:
    """A safetensors file with its checksum, and what it is `of` and `note` in its header."""
    from safetensors.torch import save

    whole = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}
    # One metadata entry: the order of several, and with it the file's bytes, would be left to chance.
    data = save(whole, metadata={"seal": dumps({"sha256": _BLANK.decode(), "of": of, "note": note})})
    assert data[8 : _AT + 64] == _START + _BLANK
    return b"".join([data[:_AT], hashlib.sha256(data).hexdigest().encode(), memoryview(data)[_AT + 64 :]])


def checksum(data: bytes) -> str:
    """The first 16 hex digits of the checksum in a file that `dump_tensors` made."""
    return data[_AT : _AT + 16].decode(errors="replace")


def load_tensors(data: bytes, where: object, of: str | None = None) -> tuple[Params, str]:
    """The tensors and note of a file that `dump_tensors` made.

    They are aligned as freshly allocated ones, so that products have the same bits. Raises ValueError, naming
    `where`, if the file is damaged or not `of` this.
    """
    from safetensors.torch import load

    if data[8:_AT] != _START:
        raise ValueError(f"{where} is damaged: its header has no checksum")
    computed = hashlib.sha256(data[:_AT] + _BLANK)
    computed.update(memoryview(data)[_AT + 64 :])
    if computed.hexdigest().encode() != data[_AT : _AT + 64]:
        raise ValueError(f"{where} is damaged: its checksum does not match")
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    seal: dict[str, str] = json.loads(header["__metadata__"]["seal"])
    if of not in (None, seal.get("of")):
        raise ValueError(f"{where} is damaged: it is a copy of {seal.get('of') or 'another file'}")
    return {k: align_memory(v) for k, v in load(data).items()}, seal["note"]
