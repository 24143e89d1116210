"""Results that the trials of a sweep share, such as clients' first states: made once, by a digest of their inputs.

<sweep>/cache/<key>.safetensors
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from raydiff.seeding import keyed_digest
from raydiff.storage.checksums import dump_tensors, load_tensors
from raydiff.storage.storage import Storage
from raydiff.tree import Params


def result_key(kind: str, secret: bytes, parts: tuple[object, ...]) -> str:
    """The key of a result that depends on `parts`, keyed by the sweep's secret: parts include digests of records."""
    return f"{kind}-{keyed_digest(secret, kind, repr(parts))[:32]}"


@dataclass(frozen=True)
class SharedResults:
    """Trees of tensors by key."""

    storage: Storage

    def cached(self, key: str, make: Callable[[], Params]) -> Params:
        """`make()`, or what an earlier call with the same key returned, in this trial or another of its sweep."""
        if (stored := self.get(key)) is not None:
            return stored
        result = make()
        if (stored := self.get(key)) is not None:  # Another trial was faster: its result counts.
            return stored
        self.storage.put(_file(key), dump_tensors(result, of=_file(key)))
        return result

    def get(self, key: str) -> Params | None:
        """The stored result; None if there is none. Raises ValueError if it is damaged or another key's."""
        data = self.storage.get(_file(key))
        return None if data is None else load_tensors(data, self.storage.describe(_file(key)), of=_file(key))[0]

    def forget(self, keys: Iterable[str]) -> None:
        """Remove results that nobody will ask for again."""
        self.storage.delete(map(_file, keys))

    def has(self, key: str) -> bool:
        """Whether a result is stored under this key."""
        return self.storage.modified(_file(key)) is not None


def _file(key: str) -> str:
    return f"{key}.safetensors"
