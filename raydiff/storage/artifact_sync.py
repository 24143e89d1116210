"""Copies between a working folder and its bucket of the files that people read: metrics, outcomes, artifacts, reports.

`files.json`, put last, has their checksums. Whoever writes to the bucket may have written them, so that states and
commits, which must be authentic, are not among them (`checkpoint`).
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from raydiff import seeding
from raydiff.formats.json_files import TRIAL, identity, parse_json, read_json, sealed
from raydiff.storage import file_names, staging
from raydiff.storage.atomic_files import write_bytes
from raydiff.storage.object_store import LISTING, ObjectStore, is_bucket
from raydiff.storage.storage import Storage, storage_at

AT_ONCE = 8  # trials that are copied at once
FILES = {  # what is copied of a folder in it, in this order; `files.json` may list nothing else
    "sweeps": ("sweep.json", "composed.json", "report/**/*"),
    "trials": ("metrics.jsonl", "rejected.jsonl", "lost.txt", "artifacts/*", "config.json", "outcome.json"),
}
ERROR = "error.txt"  # a trial's traceback, encrypted, since it may show values of records


def put(folder: Path) -> None:
    """Put the files of a sweep or trial that have changed, if its storage is a bucket."""
    if not (storage := storage_at(folder)).remote:
        return
    before, now = _listed(storage, folder) or {}, _checksums(folder)
    for name in (name for name in now if now[name] != before.get(name)):
        storage.put(name, (folder / name).read_bytes())
    if (folder / ERROR).exists():
        storage_at(folder, private=True).put(ERROR, (folder / ERROR).read_bytes())
    if now != before:
        storage.put(LISTING, sealed({"files": now}, identity(storage.describe(LISTING))).encode())
        storage.delete(name for name in before if name not in now)


def get(folder: Path) -> bool:
    """Download a sweep's or trial's files; returns whether its bucket has any, False for a folder. Raises ValueError if
    `files.json` is damaged, names a file outside `FILES`, or one that is missing."""
    storage = storage_at(folder)
    if not storage.remote or (listed := _listed(storage, folder)) is None:
        return False
    here = _checksums(folder)
    for name in (name for name in listed if here.get(name) != listed[name]):
        if (data := storage.get(name)) is None:
            raise ValueError(f"{storage.describe(name)} is gone, though {LISTING} names it")
        write_bytes(folder / name, data)
    for name in here.keys() - listed.keys():
        (folder / name).unlink(missing_ok=True)
    readable = folder.parent.name == "trials" and (folder.parents[1] / "secret").exists()
    if readable and (error := storage_at(folder, private=True).get(ERROR)) is not None:
        write_bytes(folder / ERROR, error)
    return True


def get_sweep(sweep: Path) -> bool:
    """`get` of a sweep and its trials, and its secret from the environment; returns whether the bucket has the sweep.
    Of unfinished trials the names of commits and messages are copied too: they count without the secret."""
    storage = storage_at(sweep)
    if not get(sweep):
        return False
    plan = read_json(sweep / "sweep.json") if (sweep / "sweep.json").exists() else {}
    added = filter(TRIAL.fullmatch, storage.list_names("trials"))  # by a search
    names = sorted({*plan.get("trials", []), *added})
    if odd := [name for name in names if not TRIAL.fullmatch(name)]:
        raise ValueError(f"{storage.describe('trials')} is damaged: no trial can be called {odd[0]!r}")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(_get_trial, [sweep / "trials" / name for name in names]))
    text = os.environ.get(staging.SECRET, "")
    secret = bytes.fromhex(text) if re.fullmatch("(?:[0-9a-fA-F]{2}){16,}", text) else b""
    right = bool(secret) and seeding.keyed_digest(secret, "sweep", sweep.name)[:16] == plan.get("secret")
    if right and not (sweep / "secret").exists():
        staging.write_secret(sweep / "secret", secret)
    return True


def fetch(uri: str) -> Path:
    """A path, or the folder into which a storage, sweep or trial of a bucket is downloaded for reading, apart from a
    driver's. Raises ValueError if there is no such sweep."""
    if not is_bucket(uri):
        return Path(uri)
    text, mark, query = uri.partition("?")
    storage, _, inside = text.rstrip("/").partition("/sweeps/")
    bucket = ObjectStore(storage.removesuffix("/sweeps") + mark + query)
    driver = staging.root(bucket.uri)
    staging.begin(driver / "read", bucket.uri)
    for name in [inside.partition("/")[0]] if inside else bucket.list_names("sweeps"):
        sweep, secret = driver / "read" / "sweeps" / name, driver / "sweeps" / name / "secret"
        if not get_sweep(sweep) and inside:
            raise ValueError(f"there is no sweep {name} in {bucket.name}")
        if secret.exists():
            staging.write_secret(sweep / "secret", secret.read_bytes())
    return driver / "read" / "sweeps" / inside if inside else driver / "read"


def exists(storage: str, name: str) -> bool:
    """Whether a bucket has a sweep of this name; False for a folder."""
    return is_bucket(storage) and ObjectStore(storage).modified(f"sweeps/{name}/{LISTING}") is not None


def _get_trial(folder: Path) -> None:
    if not get(folder) or (folder / "outcome.json").exists():
        return
    storage = storage_at(folder)
    names = [name for name in storage.list_names() if file_names.NAMES["commit"].fullmatch(name)]
    for name in [*names, *(f"releases/{name}" for name in storage.list_names("releases"))]:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()


def _listed(storage: Storage, folder: Path) -> dict[str, str] | None:
    """The checksums in `files.json`; None if there is none."""
    if (data := storage.get(LISTING)) is None:
        return None
    where = storage.describe(LISTING)
    listed: dict[str, str] = parse_json(data, where, needs="files")["files"]
    patterns = [pattern.replace("**/", "") for pattern in FILES[folder.parent.name]]
    for name in listed:
        allowed = any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        if not allowed or {"", ".", ".."} & set(name.split("/")):
            raise ValueError(f"{where} is damaged: it names {name!r}, which is not copied")
    return listed


def _checksums(folder: Path) -> dict[str, str]:
    """Name -> checksum of the files here that are copied."""
    paths = (path for pattern in FILES[folder.parent.name] for path in sorted(folder.glob(pattern)))
    files = [path for path in paths if path.is_file() and not path.name.startswith(".")]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
