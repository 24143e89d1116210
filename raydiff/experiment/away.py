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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from raydiff.federated.bucket import MARK, Bucket, bucket_at, is_bucket
from raydiff.federated.files import appearing, write_text

if TYPE_CHECKING:
    from raydiff.experiment.trial import Trial

PLACE = "RAYDIFF_CACHE"
"""The environment variable that says where folders for buckets are; each node may have its own."""
DEFAULT = "~/raydiff/buckets"


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
class Given:
    """What a process of another node is told, to work for a sweep in a bucket."""

    uri: str
    secret: bytes = field(repr=False)

    @classmethod
    def of(cls, sweep: Path) -> Given | None:
        """Of the sweep in this folder; None where its storage is a folder."""
        bucket = bucket_at(sweep.parents[1])
        return None if bucket is None else cls(bucket.uri, (sweep / "secret").read_bytes())


def arrived(trial: Trial) -> Trial:
    """The trial as this process works on it; where that is in a folder of its own, the other trials that it had there
    are gone."""
    if (given := trial.given) is None:
        return trial
    sweep = _own(given.uri) / "sweeps" / trial.sweep.name
    if not (sweep / "secret").exists():
        keep(sweep / "secret", given.secret)
    for other in (sweep / "trials").glob("*"):
        if other.name != trial.folder.name:
            shutil.rmtree(other, ignore_errors=True)
    owner = None if trial.owner is None else replace(trial.owner, sweep=sweep)
    return replace(trial, sweep=sweep, owner=owner, given=None)


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
