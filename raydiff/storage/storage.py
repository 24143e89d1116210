"""Durable storage that all processes of a sweep share: a local folder (`local`) or an object store (`object_store`)."""

from pathlib import Path

from raydiff.storage.local import LocalFolder
from raydiff.storage.object_store import Cipher, ObjectStore, bucket_at

Storage = LocalFolder | ObjectStore
"""Named bytes; `LocalFolder` documents the methods.

A put is atomic and durable; a later get, list or conditional put of any process sees it. Every method raises OSError if
the storage fails; an object store's requests are retried for three minutes first.
"""


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
