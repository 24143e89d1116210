"""A bucket of an object store in the place of a folder that all nodes share. No Ray inside.

Each process works in a folder of its own, below a root with the file `bucket.json`, which names the bucket; `remote`
and `experiment.readable` carry files between the two. A name is never looked for in a list where it can be known: lists
may lag. Whoever puts a name `first` takes it, as a link does in a folder.

Through obstore: of the clients of object stores that are libraries alone it can put a name only if there is none.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from raydiff import seeding

SCHEMES = ("s3", "gs", "file")
MARK = "bucket.json"
CHUNK = 64 * 2**20  # bytes that are encrypted in one piece
AROUND = 28  # bytes that encryption adds to a piece: a nonce and a tag
RETRIES, RETRY_S = 10, 180.0  # of one request that is answered with an error of the store, or not at all
ANSWER_S = 60.0  # that an answer may take
MULTIPART = 8 * 2**20  # What is larger is put in parts, each of which is tried again by itself.


class Unreachable(OSError):
    """The store does not answer, or not as it should; says which name was asked for, and why."""

    def __init__(self, name: str, why: object) -> None:
        self._given = name, str(why)
        super().__init__(errno.EIO, f"{name} cannot be reached: {' '.join(str(why).split())[:400]}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._given  # By default it would be what OSError was given.

    def __str__(self) -> str:
        return str(self.strerror)


@dataclass(frozen=True)
class Bucket:
    """What lies below a URI such as s3://lab/diffusion?region=eu-west-1. Small, and safe to send to another process."""

    uri: str

    def __post_init__(self) -> None:
        parts = urlsplit(self.uri)
        if parts.scheme not in SCHEMES or not (parts.netloc or parts.scheme == "file"):
            raise ValueError(f"a bucket is s3://NAME/PREFIX or gs://NAME/PREFIX, got {self.uri!r}")
        if "@" in parts.netloc:
            raise ValueError("a bucket's URI must hold no password: give credentials in the environment")
        if unknown := sorted(set(parse_qs(parts.query, keep_blank_values=True)) - {"endpoint", "region"}):
            raise ValueError(f"a bucket's URI takes endpoint and region, got {unknown[0]!r}")

    @property
    def name(self) -> str:
        """The URI without its parameters."""
        return self.uri.partition("?")[0].rstrip("/")

    def put(self, name: str, data: bytes | Iterable[bytes]) -> None:
        """Whole or not at all, in place of what is there."""
        with self._asked(name) as store:
            store.put(name, data, chunk_size=MULTIPART)

    def first(self, name: str, data: bytes) -> bool:
        """Put it unless there is one; whether it is there now. An answer that was lost is no other's: what is there is
        read, and so `data` must be like no other's."""
        until = time.monotonic() + RETRY_S
        while True:
            try:
                with self._asked(name) as store:
                    try:
                        store.put(name, data, mode="create")
                    except _obstore().exceptions.AlreadyExistsError:
                        return self.get(name) == data
                return True
            except Unreachable:  # Where no answer comes, obstore does not ask again: it may have been put.
                if (there := self.get(name)) is not None:
                    return there == data
                if time.monotonic() > until:
                    raise

    def get(self, name: str) -> bytes | None:
        """All of it; None where there is none."""
        with contextlib.suppress(FileNotFoundError), self._asked(name) as store:
            return bytes(store.get(name).bytes())
        return None

    def part(self, name: str, start: int, end: int) -> bytes | None:
        """Some of its bytes; None where there is none, or it is shorter."""
        with contextlib.suppress(FileNotFoundError), self._asked(name) as store:
            found = bytes(store.get_range(name, start=start, end=end)) if end > start else b""
            return found if len(found) == end - start else None
        return None

    def written(self, name: str) -> float | None:
        """When it was put, by the store's clock; None where there is none."""
        with contextlib.suppress(FileNotFoundError), self._asked(name) as store:
            return float(store.head(name)["last_modified"].timestamp())
        return None

    def below(self, name: str) -> list[str]:
        """What the names below this one go on with, as far as the store lists them."""
        with self._asked(name) as store:
            found = store.list_with_delimiter(name)
        return sorted(path.rpartition("/")[2] for path in (p.rstrip("/") for p in found["common_prefixes"]))

    def remove(self, names: Sequence[str]) -> None:
        """Remove these. What stays, since the store does not answer, is in nobody's way."""
        for name in names:
            with contextlib.suppress(OSError), self._asked(name) as store:
                store.delete(name)

    @contextlib.contextmanager
    def _asked(self, name: str) -> Iterator[Any]:
        try:
            yield _opened(self.uri)
        except (FileNotFoundError, _obstore().exceptions.NotFoundError):
            raise FileNotFoundError(name) from None
        except _obstore().exceptions.BaseError as e:
            raise Unreachable(f"{self.name}/{name}", e) from None


class Lock:
    """Encrypts what nobody may read who reads the bucket alone: AES-256-GCM under a key of the sweep's noise secret. A
    name is encrypted with what it names, so that none can be put in the place of another."""

    def __init__(self, secret: bytes, sweep: str) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher = AESGCM(bytes.fromhex(seeding.keyed_digest(secret, "bucket", sweep)))

    def closed(self, data: bytes, name: str) -> Iterator[bytes]:
        """In pieces, to be put one after the other."""
        view, count = memoryview(data), max(1, -(-len(data) // CHUNK))
        for i in range(count):
            nonce = os.urandom(12)
            yield nonce + self._cipher.encrypt(nonce, view[i * CHUNK : (i + 1) * CHUNK], _about(name, i, count))

    def opened(self, data: bytes, name: str) -> bytes:
        """What was `closed` under this name. Raises ValueError where it is damaged, or locked by another secret."""
        from cryptography.exceptions import InvalidTag

        size = CHUNK + AROUND
        count = max(1, -(-len(data) // size))
        pieces = [data[i * size : (i + 1) * size] for i in range(count)]
        try:
            return b"".join(self._cipher.decrypt(p[:12], p[12:], _about(name, i, count)) for i, p in enumerate(pieces))
        except (InvalidTag, ValueError):
            raise ValueError(f"{name} is damaged, or encrypted under another noise secret") from None


def closed_size(size: int) -> int:
    """The bytes that so many take once they are encrypted."""
    return size + AROUND * max(1, -(-size // CHUNK))


def is_bucket(storage: str) -> bool:
    """Whether a storage is no folder."""
    return "://" in storage or storage.startswith("file:/")


def bucket_at(root: Path) -> Bucket | None:
    """The bucket that this folder works for; None: it is storage itself."""
    try:
        return Bucket(json.loads((root / MARK).read_text())["uri"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (KeyError, TypeError, ValueError) as e:
        raise ValueError(f"{root / MARK} does not name a bucket ({e}): delete it, and it is made again") from None


def _about(name: str, piece: int, count: int) -> bytes:
    return f"{name}\0{piece}\0{count}".encode()


@functools.cache
def _opened(uri: str) -> Any:
    parts = urlsplit(uri)
    given: dict[str, Any] = {k: v[0] for k, v in parse_qs(parts.query).items()}
    from_url = _obstore().store.from_url
    if parts.scheme == "file":
        return from_url(f"file://{parts.path}", mkdir=True)
    given["retry_config"] = {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_S)}
    endpoint = given.get("endpoint", os.environ.get("AWS_ENDPOINT_URL", ""))
    options = {"allow_http": endpoint.startswith("http://"), "timeout": timedelta(seconds=ANSWER_S)}
    return from_url(uri.partition("?")[0], client_options=options, **given)


def _obstore() -> Any:
    try:
        import obstore.exceptions
        import obstore.store
    except ImportError:
        raise ValueError("storage in a bucket needs obstore: pip install 'raydiff[bucket]'") from None
    return obstore
