"""Copies of a bucket's files that people and tools read by path, for a driver or one command. Each goes one way.

A trial's files are put into the bucket by the process that runs it, and downloaded; a sweep's report is made here, and
published. Whoever writes to the bucket may have written them, so that states and commits, which must be authentic, are
not among them: `checkpoint` reads these itself. Where the storage is a folder, nothing is copied.
"""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from raydiff import seeding
from raydiff.formats.json_files import TRIAL, read_json
from raydiff.storage import atomic_files, local, staging
from raydiff.storage.object_store import SWEEP, ObjectStore, is_bucket
from raydiff.storage.storage import storage_at

AT_ONCE = 8  # trials that are downloaded at once
FILES = {"sweeps": (SWEEP,), "trials": ("outcome.json", "config.json", "metrics.jsonl", "rejected.jsonl")}
ARTIFACT = re.compile(r"\w[\w.-]*")
ERROR = "error.txt"  # a trial's traceback, encrypted, since it may show values of records


def download(folder: Path) -> bool:
    """Copy what people read of a sweep or trial from its bucket; return whether the bucket has any of it."""
    storage = storage_at(folder)
    if isinstance(storage, local.LocalFolder):
        return False
    artifacts = filter(ARTIFACT.fullmatch, storage.list_names("artifacts"))
    names = [*FILES[folder.parent.name], *(f"artifacts/{name}" for name in artifacts)]
    found = {name: storage.get(name) for name in names}  # The outcome first: all that it ends is there by then.
    if folder.parent.name == "trials" and (folder.parents[1] / "secret").exists():
        found[ERROR] = storage_at(folder, private=True).get(ERROR)
    for name, data in reversed(found.items()):
        if data is None:
            (folder / name).unlink(missing_ok=True)
        else:
            atomic_files.write_bytes(folder / name, data)
    return any(data is not None for data in found.values())


def download_sweep(sweep: Path) -> bool:
    """`download` a sweep and its trials, and take its secret from the environment; return whether the bucket has it."""
    if not download(sweep):
        return False
    names = filter(TRIAL.fullmatch, storage_at(sweep).list_names("trials"))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(download, [sweep / "trials" / name for name in names]))
    text = os.environ.get(staging.SECRET, "")
    secret = bytes.fromhex(text) if re.fullmatch("(?:[0-9a-fA-F]{2}){16,}", text) else b""
    recognised = read_json(sweep / SWEEP).get("secret")
    right = bool(secret) and seeding.keyed_digest(secret, "sweep", sweep.name)[:16] == recognised
    if right and not (sweep / "secret").exists():
        staging.write_secret(sweep / "secret", secret)
    return True


def fetch_for_reading(uri: str) -> Path:
    """Return a path, or the folder into which a bucket's storage, sweep or trial is downloaded for reading.

    It is apart from a driver's. Raises ValueError if there is no such sweep.
    """
    if not is_bucket(uri):
        return Path(uri)
    text, mark, query = uri.partition("?")
    storage, _, inside = text.rstrip("/").partition("/sweeps/")
    bucket = ObjectStore(storage.removesuffix("/sweeps") + mark + query)
    driver = staging.storage_root(bucket.uri)
    staging.begin_working_copy(driver / "read", bucket.uri)
    names = [inside.partition("/")[0]] if inside else bucket.list_names("sweeps")
    for name in names:
        sweep = driver / "read" / "sweeps" / name
        secret = driver / "sweeps" / name / "secret"
        if secret.exists():
            staging.write_secret(sweep / "secret", secret.read_bytes())
        if not download_sweep(sweep) and inside:
            raise ValueError(f"there is no sweep {name} in {bucket.name}")
    return driver / "read" / "sweeps" / inside if inside else driver / "read"


def publish_report(sweep: Path) -> None:
    """Put a sweep's report and composed epsilon beside its trials."""
    storage = storage_at(sweep)
    if isinstance(storage, local.LocalFolder):
        return
    for path in [sweep / "composed.json", *(sweep / "report").rglob("*")]:
        if path.is_file():
            storage.put(str(path.relative_to(sweep)), path.read_bytes())


def bucket_has_sweep(storage: str, name: str) -> bool:
    """Whether a bucket has a sweep of this name; False for a folder."""
    return is_bucket(storage) and ObjectStore(storage).modified(f"sweeps/{name}/{SWEEP}") is not None
