"""A storage that is a bucket, and the folders in which processes work for it.

    <root>/bucket.json            names the bucket; <root> is the driver's, and stays, or one process's on another node
    <root>/sweeps/<name>/secret   the sweep's noise secret, which is never put into the bucket

What a trial needs to go on is carried between the two by `federated.remote`, what people read by `readable`.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import platform
import re
import shutil
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from raydiff.storage.atomic_files import appearing, write_text
from raydiff.storage.bucket import MARK, Bucket, bucket_at, is_bucket

PLACE = "RAYDIFF_CACHE"
"""The environment variable that says where folders for buckets are; each node may have its own."""
DEFAULT = "~/raydiff/buckets"
SECRET = "RAYDIFF_NOISE_SECRET"
"""The environment variable that may hold the noise secret, in hexadecimal digits."""


def root(storage: str) -> Path:
    """The folder that a storage is, or in which this machine works for it. Nothing is made. Raises ValueError for a
    bucket's URI that is none."""
    if not is_bucket(storage):
        return Path(storage).expanduser().absolute()
    bucket = Bucket(storage)
    slug = re.sub(r"[^\w.-]+", "-", bucket.name).strip("-")[-60:]
    folders = Path(os.environ.get(PLACE, DEFAULT)).expanduser().absolute()
    return folders / f"{slug}-{hashlib.sha256(bucket.name.encode()).hexdigest()[:8]}"


def prepare(storage: str) -> None:
    """Make a bucket's folder here. Raises ValueError where the bucket cannot be written."""
    if not is_bucket(storage):
        return
    bucket = Bucket(storage)
    begin(root(storage), bucket)
    probe = f".writable-{uuid.uuid4().hex[:8]}"
    try:
        bucket.put(probe, b"")
        bucket.remove([probe])
    except OSError as e:
        raise ValueError(f"the bucket {bucket.name} cannot be written: {e}") from None


def begin(at: Path, bucket: Bucket) -> None:
    """Make this the root of folders for a bucket."""
    at.mkdir(parents=True, exist_ok=True)
    at.chmod(0o700)
    write_text(at / MARK, json.dumps({"uri": bucket.uri}))


# ------------------------------------------------------------------------------------------- on other nodes


@dataclass(frozen=True)
class StorageCredentials:
    """What a process of another node is told, to work for a sweep in a bucket."""

    uri: str
    secret: bytes = field(repr=False)

    @classmethod
    def of(cls, sweep: Path) -> StorageCredentials | None:
        """Of the sweep in this folder; None where its storage is a folder."""
        bucket = bucket_at(sweep.parents[1])
        return None if bucket is None else cls(bucket.uri, (sweep / "secret").read_bytes())


def localized(given: StorageCredentials, name: str, trial: str) -> Path:
    """The folder of the sweep of this name in which this process works on the trial; the other trials that it had there
    are gone."""
    sweep = _own(given.uri) / "sweeps" / name
    if not (sweep / "secret").exists():
        keep(sweep / "secret", given.secret)
    for other in (sweep / "trials").glob("*"):
        if other.name != trial:
            shutil.rmtree(other, ignore_errors=True)
    return sweep


_HELD: list[IO[str]] = []  # as long as this process lives: the lock is what tells that it does


@functools.cache
def _own(uri: str) -> Path:
    """A folder of this process alone. Those of processes of this machine that have ended are removed: of others, where
    home folders are shared, a lock may tell nothing."""
    processes = root(uri) / "processes" / platform.node()
    processes.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path in processes.glob("*.lock"):
        with path.open() as f:
            try:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            shutil.rmtree(path.with_suffix(""), ignore_errors=True)
            path.unlink(missing_ok=True)
    mine = processes / uuid.uuid4().hex[:12]
    lock = mine.with_suffix(".new").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    mine.with_suffix(".new").rename(mine.with_suffix(".lock"))  # From now on others look at it, and it is locked.
    _HELD.append(lock)
    begin(mine, Bucket(uri))
    return mine


def keep(path: Path, secret: bytes, *, first: bool = False) -> None:
    """Write a sweep's secret, for this user alone. `first`: raises FileExistsError where there is one."""
    with appearing(path, durable=True, first=first) as temporary:
        temporary.touch(0o600)
        temporary.write_bytes(secret)
