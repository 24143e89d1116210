"""`Storage` in a bucket of an object store, and its encryption.

The store must support conditional puts and list consistently, as Amazon S3, Google Cloud Storage and S3 servers with
`If-None-Match` do. obstore is the Python client that can put a name only if it is absent.
"""

import contextlib
import functools
import itertools
import json
import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from raydiff import seeding
from raydiff.storage.conditional_put import create_once

SCHEMES = ("s3", "gs", "file")
MARK = "bucket.json"
SWEEP = "sweep.json"  # a sweep without it is not found (`copies`)
CHUNK_BYTES = 64 * 2**20  # encrypted in one piece: AES-GCM takes less than 2 GiB at once
OVERHEAD_BYTES = 28  # that encryption adds to a piece: a nonce and a tag
# of one request that fails or is not answered
RETRIES = 10
RETRY_S = 180.0
ANSWER_S = 60.0  # limit of one request
WRITE = "raydiff-write"  # metadata of an object that was put if absent: the one write that made it
PART_BYTES = 8 * 2**20  # larger objects are put in parts, and each part is retried by itself


@dataclass(frozen=True)
class Cipher:
    """AES-256-GCM under a key derived from the noise secret in a sweep's working folder.

    Without the secret the bytes cannot be read, changed or moved to another key of the bucket unnoticed.
    """

    sweep: Path

    def encrypt(self, data: bytes, key: str) -> bytes:
        """Encrypt the object of this key, in pieces."""
        cipher = self._cipher()
        view = memoryview(data)
        pieces = []
        count = max(1, -(-len(data) // CHUNK_BYTES))
        for i in range(count):
            nonce = os.urandom(12)
            piece = view[i * CHUNK_BYTES : (i + 1) * CHUNK_BYTES]
            pieces += [nonce, cipher.encrypt(nonce, piece, f"{key}\0{i}\0{count}".encode())]
        return b"".join(pieces)

    def decrypt(self, data: bytes, key: str, where: str) -> bytes:
        """Undo `encrypt`. Raises ValueError, naming `where`, if it is damaged or of another secret or key."""
        from cryptography.exceptions import InvalidTag

        cipher = self._cipher()
        size = CHUNK_BYTES + OVERHEAD_BYTES
        pieces = [data[start : start + size] for start in range(0, max(1, len(data)), size)]
        about = [f"{key}\0{i}\0{len(pieces)}".encode() for i in range(len(pieces))]
        try:
            return b"".join(cipher.decrypt(p[:12], p[12:], a) for p, a in zip(pieces, about, strict=True))
        except (InvalidTag, ValueError):
            raise ValueError(f"{where} is damaged, or encrypted under another noise secret") from None

    def _cipher(self) -> Any:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if not (self.sweep / "secret").exists():
            raise ValueError(
                f"client data is encrypted: RAYDIFF_NOISE_SECRET must be the noise secret of {self.sweep.name}"
            )
        secret = (self.sweep / "secret").read_bytes()
        return AESGCM(bytes.fromhex(seeding.keyed_digest(secret, "bucket", self.sweep.name)))


@dataclass(frozen=True)
class ObjectStore:
    """Objects below a URI such as s3://lab/x?region=eu-west-1. Raises ValueError for others and for passwords."""

    uri: str
    prefix: str = ""  # folder in the bucket, below the URI's own
    cipher: Cipher | None = None  # encrypts the contents; names, sizes and times stay readable
    pause_s: ClassVar[float] = 5.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.uri)
        if parts.scheme not in SCHEMES or not (parts.netloc or parts.scheme == "file"):
            raise ValueError(f"a bucket is s3://NAME/PREFIX or gs://NAME/PREFIX, got {self.uri!r}")
        if "@" in parts.netloc:
            raise ValueError("a bucket's URI must hold no password: set credentials in the environment")
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
        data = self.cipher.encrypt(data, self.key(name)) if self.cipher else data
        with self._request(name) as store:
            store.put(self.key(name), data, use_multipart=len(data) > PART_BYTES, chunk_size=PART_BYTES)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        data = self.cipher.encrypt(data, self.key(name)) if self.cipher else data
        write = uuid.uuid4().hex
        # A local object store, which tests use, has no attributes, and loses no answer.
        attributes = None if self.uri.startswith("file:") else {WRITE: write}

        def create() -> bool:
            with self._request(name) as store:
                try:
                    store.put(self.key(name), data, mode="create", attributes=attributes)
                except _obstore().exceptions.AlreadyExistsError:
                    return False
            return True

        def is_mine() -> bool | None:
            with contextlib.suppress(FileNotFoundError), self._request(name) as store:
                return bool(store.get(self.key(name)).attributes.get(WRITE) == write)
            return None

        return create_once(create, is_mine, self.describe(name))

    def append(self, name: str, data: bytes) -> None:
        self.put(name, (self.get(name) or b"") + data)

    def get(self, name: str) -> bytes | None:
        try:
            with self._request(name) as store:
                data = bytes(store.get(self.key(name)).bytes())
        except FileNotFoundError:
            return None
        return data if self.cipher is None else self.cipher.decrypt(data, self.key(name), self.describe(name))

    def list_names(self, folder: str = "") -> list[str]:
        with self._request(folder) as store:
            listed = store.list_with_delimiter(self.key(folder) or None)
        keys = [*listed["common_prefixes"], *(entry["path"] for entry in listed["objects"])]
        return sorted(key.rstrip("/").rpartition("/")[2] for key in keys)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            with contextlib.suppress(OSError), self._request(name) as store:
                store.delete(self.key(name))

    def remove_all(self) -> None:
        with self._request("") as store:
            for key in self.keys():
                store.delete(key)

    def keys(self) -> list[str]:
        """The keys of everything below the prefix; by `SWEEP` a sweep is found: it is the last."""
        with self._request("") as store:
            entries = itertools.chain.from_iterable(store.list(self.key("")))
            keys = [entry["path"] for entry in entries]
        return sorted(keys, key=lambda key: key.endswith(f"/{SWEEP}"))

    def modified(self, name: str) -> float | None:
        with contextlib.suppress(FileNotFoundError), self._request(name) as store:
            return float(store.head(self.key(name))["last_modified"].timestamp())
        return None

    def touch(self, name: str) -> None:
        if (data := self.get(name)) is not None:
            self.put(name, data)

    def describe(self, name: str) -> str:
        return f"{self.name}/{self.key(name)}".rstrip("/")

    @contextlib.contextmanager
    def _request(self, name: str) -> Iterator[Any]:
        try:
            yield _client(self.uri)
        except (FileNotFoundError, _obstore().exceptions.NotFoundError):
            raise FileNotFoundError(name) from None
        except _obstore().exceptions.BaseError as e:
            raise ConnectionError(
                f"{self.describe(name)} cannot be reached: {' '.join(str(e).split())[:400]}"
            ) from None


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
