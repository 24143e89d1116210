"""Durable storage that all processes of a sweep share: a local folder (`local`) or an object store (`object_store`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from raydiff.storage.local import LocalFolder
from raydiff.storage.object_store import Cipher, ObjectStore, bucket_at


class Storage(Protocol):
    """Named bytes. A put is atomic and durable; a later get, list or conditional put of any process sees it.

    Every method raises OSError if the storage fails; an object store's requests are retried for three minutes first.
    """

    @property
    def pause_s(self) -> float:
        """Seconds between two requests of a process that asks again and again: an object store bills each."""

    def put(self, name: str, data: bytes) -> None:
        """Store `data` under a name such as "clients/00007-00003.safetensors", replacing what was there."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Store `data` unless the name exists, in one request.

        Of several processes that try at once, one gets True, also where they store equal bytes.
        """

    def append(self, name: str, data: bytes) -> None:
        """Add `data` to what is stored under the name. One process appends to a name."""

    def get(self, name: str) -> bytes | None:
        """What is stored under the name; None if nothing is."""

    def list_names(self, folder: str = "") -> list[str]:
        """Names of the files and folders directly in a folder, sorted."""

    def delete(self, names: Iterable[str]) -> None:
        """Remove names. Failures are ignored: what stays is never read again."""

    def remove_all(self) -> None:
        """Remove everything below it."""

    def modified(self, name: str) -> float | None:
        """When the name was last put or touched, in seconds of the storage's clock; None if it does not exist."""

    def touch(self, name: str) -> None:
        """Set the time of a name to now."""

    def describe(self, name: str) -> str:
        """The path or URI of a name, for messages."""


def storage_at(folder: Path, *, private: bool = False) -> Storage:
    """The storage of <storage>, <storage>/sweeps/<name> or a folder below.

    If <storage>/bucket.json names a bucket, the folder is this process's working copy of it, where `private`
    objects are encrypted. Raises ValueError if bucket.json is damaged.
    """
    at = folder.absolute()
    for levels, root in enumerate([at, *at.parents][:5]):  # <storage>/sweeps/<name>/trials/<digest> has four levels.
        if (uri := bucket_at(root)) is None:
            continue
        parts = at.parts[len(at.parts) - levels :]
        return ObjectStore(uri, "/".join(parts), Cipher(root.joinpath(*parts[:2])) if private else None)
    return LocalFolder(folder)
