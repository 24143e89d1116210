"""`Storage` in a bucket of an object store, and the encryption of what tells of clients there.

The store must support conditional puts and list consistently: Amazon S3, Google Cloud Storage and S3 servers that know
`If-None-Match` do. Through obstore: of the Python clients it is the one that can put a name only if it is absent.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from raydiff import seeding

SCHEMES = ("s3", "gs", "file")
MARK = "bucket.json"
CHUNK_BYTES = 64 * 2**20  # encrypted in one piece: AES-GCM takes less than 2 GiB at once
OVERHEAD_BYTES = 28  # that encryption adds to a piece: a nonce and a tag
RETRIES, RETRY_S = 10, 180.0  # of one request that fails or is not answered
ANSWER_S = 60.0  # limit of one request
PART_BYTES = 8 * 2**20  # larger objects are put in parts, and each part is retried by itself


class Unreachable(OSError):
    """The store does not answer, or fails. Has the name that was asked for, and why."""

    def __init__(self, name: str, why: object) -> None:
        self._arguments = name, str(why)
        super().__init__(errno.EIO, f"{name} cannot be reached: {' '.join(str(why).split())[:400]}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._arguments  # OSError would pass its own two.

    def __str__(self) -> str:
        return str(self.strerror)


@dataclass(frozen=True)
class ObjectStore:
    """What lies below a URI such as s3://lab/diffusion?region=eu-west-1; `Storage` documents the methods.

    Raises ValueError for a URI that is not a bucket's, or that holds a password.
    """

    uri: str
    prefix: str = ""
    """Folder in the bucket, below the URI's own."""
    remote: ClassVar[bool] = True

    def __post_init__(self) -> None:
        parts = urlsplit(self.uri)
        if parts.scheme not in SCHEMES or not (parts.netloc or parts.scheme == "file"):
            raise ValueError(f"a bucket is s3://NAME/PREFIX or gs://NAME/PREFIX, got {self.uri!r}")
        if "@" in parts.netloc:
            raise ValueError("a bucket's URI must not contain a password: set credentials in the environment")
        if unknown := sorted(set(parse_qs(parts.query, keep_blank_values=True)) - {"endpoint", "region"}):
            raise ValueError(f"a bucket's URI takes endpoint and region, got {unknown[0]!r}")

    @property
    def name(self) -> str:
        """The URI without its parameters."""
        return self.uri.partition("?")[0].rstrip("/")

    def key(self, name: str) -> str:
        """A name's whole key below the URI."""
        return f"{self.prefix}/{name}".strip("/")

    def put(self, name: str, data: bytes) -> None:
        """Put an object."""
        with self._request(name) as store:
            store.put(self.key(name), data, use_multipart=len(data) > PART_BYTES, chunk_size=PART_BYTES)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Put an object unless it exists, by a conditional request. After a lost answer the object is read back."""
        until = time.monotonic() + RETRY_S
        while True:
            try:
                with self._request(name) as store:
                    try:
                        store.put(self.key(name), data, mode="create")
                    except _obstore().exceptions.AlreadyExistsError:
                        return self.get(name) == data
                return True
            except Unreachable:  # obstore does not repeat a conditional put without an answer: it may have succeeded.
                if (existing := self.get(name)) is not None:
                    return existing == data
                if time.monotonic() > until:
                    raise

    def get(self, name: str) -> bytes | None:
        """The object's bytes; None if there is none."""
        with contextlib.suppress(FileNotFoundError), self._request(name) as store:
            return bytes(store.get(self.key(name)).bytes())
        return None

    def list_names(self, folder: str = "") -> list[str]:
        """Names of the objects and folders in a folder."""
        with self._request(folder) as store:
            listed = store.list_with_delimiter(self.key(folder) or None)
        keys = [*listed["common_prefixes"], *(entry["path"] for entry in listed["objects"])]
        return sorted(key.rstrip("/").rpartition("/")[2] for key in keys)

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; what cannot be removed stays."""
        for name in names:
            with contextlib.suppress(OSError), self._request(name) as store:
                store.delete(self.key(name))

    def modified(self, name: str) -> float | None:
        """When the object was put, by the store's clock; None if there is none."""
        with contextlib.suppress(FileNotFoundError), self._request(name) as store:
            return float(store.head(self.key(name))["last_modified"].timestamp())
        return None

    def touch(self, name: str) -> None:
        """Put the object again."""
        if (data := self.get(name)) is not None:
            self.put(name, data)

    def describe(self, name: str) -> str:
        """The object's URI."""
        return f"{self.name}/{self.key(name)}".rstrip("/")

    @contextlib.contextmanager
    def _request(self, name: str) -> Iterator[Any]:
        try:
            yield _client(self.uri)
        except (FileNotFoundError, _obstore().exceptions.NotFoundError):
            raise FileNotFoundError(name) from None
        except _obstore().exceptions.BaseError as e:
            raise Unreachable(self.describe(name), e) from None


@dataclass(frozen=True)
class Encrypted:
    """`Storage` whose contents only holders of the sweep's noise secret can read, change or exchange unnoticed.

    AES-256-GCM under a key derived from the secret. An object is bound to its key in the bucket, so that it is refused
    in the place of another. Names, sizes and times stay readable.
    """

    inner: ObjectStore
    sweep: Path
    """The working folder of the sweep, which has its secret."""
    remote: ClassVar[bool] = True

    def put(self, name: str, data: bytes) -> None:
        """Put an object, encrypted."""
        self.inner.put(name, self._encrypt(data, self.inner.key(name)))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Put an object unless it exists, encrypted."""
        return self.inner.put_if_absent(name, self._encrypt(data, self.inner.key(name)))

    def get(self, name: str) -> bytes | None:
        """The object's decrypted bytes. Raises ValueError if it is damaged, or encrypted under another secret."""
        if (data := self.inner.get(name)) is None:
            return None
        from cryptography.exceptions import InvalidTag

        cipher, key, size = self._cipher, self.inner.key(name), CHUNK_BYTES + OVERHEAD_BYTES
        pieces = [data[start : start + size] for start in range(0, max(1, len(data)), size)]
        try:
            return b"".join(cipher.decrypt(p[:12], p[12:], _about(key, i, len(pieces))) for i, p in enumerate(pieces))
        except (InvalidTag, ValueError):
            why = "is damaged, or encrypted under another noise secret"
            raise ValueError(f"{self.describe(name)} {why}") from None

    def list_names(self, folder: str = "") -> list[str]:
        """Names of the objects and folders in a folder."""
        return self.inner.list_names(folder)

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects."""
        self.inner.delete(names)

    def modified(self, name: str) -> float | None:
        """When the object was put."""
        return self.inner.modified(name)

    def touch(self, name: str) -> None:
        """Put the object again."""
        self.inner.touch(name)

    def describe(self, name: str) -> str:
        """The object's URI."""
        return self.inner.describe(name)

    def _encrypt(self, data: bytes, key: str) -> bytes:
        view, pieces = memoryview(data), []
        count = max(1, -(-len(data) // CHUNK_BYTES))
        for i in range(count):
            nonce = os.urandom(12)
            piece = view[i * CHUNK_BYTES : (i + 1) * CHUNK_BYTES]
            pieces += [nonce, self._cipher.encrypt(nonce, piece, _about(key, i, count))]
        return b"".join(pieces)

    @functools.cached_property
    def _cipher(self) -> Any:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if not (self.sweep / "secret").exists():
            raise ValueError(
                f"client data in {self.inner.name} is encrypted: RAYDIFF_NOISE_SECRET must be the noise secret of "
                f"{self.sweep.name}"
            )
        secret = (self.sweep / "secret").read_bytes()
        return AESGCM(bytes.fromhex(seeding.keyed_digest(secret, "bucket", self.sweep.name)))


def is_bucket(storage: str) -> bool:
    """Whether a storage setting names a bucket, not a folder."""
    return "://" in storage or storage.startswith("file:/")


def bucket_at(root: Path) -> str | None:
    """The URI of the bucket that this folder is a working copy of; None: the folder is the storage itself."""
    try:
        return ObjectStore(json.loads((root / MARK).read_text())["uri"]).uri
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (KeyError, TypeError, ValueError) as e:
        raise ValueError(f"{root / MARK} does not name a bucket ({e}): delete it, and it is made again") from None


def _about(key: str, piece: int, count: int) -> bytes:
    return f"{key}\0{piece}\0{count}".encode()


@functools.cache
def _client(uri: str) -> Any:
    parts = urlsplit(uri)
    settings: dict[str, Any] = {k: v[0] for k, v in parse_qs(parts.query).items()}
    from_url = _obstore().store.from_url
    if parts.scheme == "file":
        return from_url(f"file://{parts.path}", mkdir=True)
    settings["retry_config"] = {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_S)}
    endpoint = settings.get("endpoint", os.environ.get("AWS_ENDPOINT_URL", ""))
    options = {"allow_http": endpoint.startswith("http://"), "timeout": timedelta(seconds=ANSWER_S)}
    return from_url(uri.partition("?")[0], client_options=options, **settings)


def _obstore() -> Any:
    try:
        import obstore.exceptions
        import obstore.store
    except ImportError:
        raise ValueError("storage in a bucket needs obstore: pip install 'raydiff[bucket]'") from None
    return obstore
