"""Working folders for a sweep whose storage is a bucket.

<root>/bucket.json            names the bucket; <root> is a machine's, for all its processes
<root>/sweeps/<name>/secret   the sweep's noise secret, which is never put into the bucket
"""

import hashlib
import os
import re
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from raydiff.formats.json_files import dumps
from raydiff.storage.atomic_files import write_atomically, write_text
from raydiff.storage.object_store import MARK, ObjectStore, bucket_at, is_bucket

PLACE = "RAYDIFF_CACHE"  # environment variable with the folder of working folders; each node may have its own
DEFAULT = "~/raydiff/buckets"
IGNORES = (".gitignore", ".rayignore")
EVERYTHING = "*\n"
FOLDERS = ("sweeps", "budgets", "previews", "mlflow-artifacts")
OURS = re.compile(rf"{'|'.join(FOLDERS)}|read|bucket\.json|mlflow\.db.*|\.DS_Store")
SECRET = "RAYDIFF_NOISE_SECRET"  # environment variable with the noise secret, in hexadecimal digits


def storage_root(storage: str) -> Path:
    """The storage folder, or this machine's working folder for a bucket. Raises ValueError for a URI of no bucket."""
    if not is_bucket(storage):
        return Path(storage).expanduser().absolute()
    bucket = ObjectStore(storage)
    slug = re.sub(r"[^\w.-]+", "-", bucket.name).strip("-")[-60:]
    folders = Path(os.environ.get(PLACE, DEFAULT)).expanduser().absolute()
    return folders / f"{slug}-{hashlib.sha256(bucket.name.encode()).hexdigest()[:8]}"


def prepare_storage(storage: str) -> None:
    """Create a bucket's working folder here.

    Raises ValueError if the bucket cannot be written, or two puts of one name if it is absent both succeed.
    """
    if not is_bucket(storage):
        return
    bucket = ObjectStore(storage)
    probe = f".writable-{uuid.uuid4().hex[:8]}"
    begin_working_copy(storage_root(storage), storage)
    try:
        created = [bucket.put_if_absent(probe, b"") for _ in range(2)]
        bucket.delete([probe])
    except OSError as e:
        raise ValueError(f"the bucket {bucket.name} cannot be written: {e}") from None
    if created != [True, False]:
        raise ValueError(f"the bucket {bucket.name} ignores If-None-Match: two drivers could run one sweep in it")


def create_storage(storage: Path) -> None:
    """Create a storage folder of which neither git nor `ray job submit` takes a file.

    They ignore all of it, or, where it holds other files, raydiff's folders in it.
    """
    storage.mkdir(parents=True, exist_ok=True)
    ignore = storage / IGNORES[0]
    whole = ignore.read_text() == EVERYTHING if ignore.exists() else all(map(OURS.fullmatch, os.listdir(storage)))
    folders = [storage] if whole else [storage / name for name in FOLDERS]
    for folder in folders:
        folder.mkdir(exist_ok=True)
        for name in IGNORES:
            if not (folder / name).exists():
                write_text(folder / name, EVERYTHING)


def begin_working_copy(folder: Path, uri: str) -> None:
    """Make this the root of a working copy of a bucket."""
    create_storage(folder)
    folder.chmod(0o700)
    write_text(folder / MARK, dumps({"uri": uri}))


@dataclass(frozen=True)
class StorageCredentials:
    """What a process on another node needs to work for a sweep in a bucket: its URI and the noise secret."""

    uri: str
    secret: bytes = field(repr=False)


def read_credentials(sweep: Path) -> StorageCredentials | None:
    """Return the credentials of the sweep in this folder; None if its storage is a folder."""
    uri = bucket_at(sweep.parents[1])
    return None if uri is None else StorageCredentials(uri, (sweep / "secret").read_bytes())


def open_working_copy(credentials: StorageCredentials, name: str) -> Path:
    """Return this machine's working folder of sweep `name`, in which a process that was given its secret works."""
    root = storage_root(credentials.uri)
    sweep = root / "sweeps" / name
    secret = sweep / "secret"
    if not secret.exists() or secret.read_bytes() != credentials.secret:  # An earlier sweep may have had this name.
        begin_working_copy(root, credentials.uri)
        write_secret(secret, credentials.secret)
    return sweep


def write_secret(path: Path, secret: bytes, *, if_absent: bool = False) -> None:
    """Write a sweep's secret, for this user only. `if_absent`: raises FileExistsError if there is one."""
    with write_atomically(path, durable=True, if_absent=if_absent) as temporary:
        temporary.touch(0o600)
        temporary.write_bytes(secret)
