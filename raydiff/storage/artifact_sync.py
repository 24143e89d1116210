"""Copies between a working folder and its bucket of the files that people read: metrics, outcomes, artifacts, reports.

`files.json`, put last, has the checksum of each. Clients' states and commits are not among them: they are authenticated
(`checkpoint`), while whoever writes to the bucket may have written these.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from raydiff import seeding
from raydiff.formats.json_files import parse_json, sealed
from raydiff.storage import staging
from raydiff.storage.atomic_files import write_bytes
from raydiff.storage.object_store import ObjectStore, is_bucket
from raydiff.storage.storage import WRITERS, Storage, storage_at

NAMES = "files.json"
FILES = {
    "sweep": ("sweep.json", "split.json", "composed.json", "report/**/*"),
    "trial": ("metrics.jsonl", "rejected.jsonl", "lost.txt", "artifacts/*", "config.json", "outcome.json"),
}
"""What is copied, the last pattern last. `get` takes no other name that a `files.json` lists."""
ERROR = "error.txt"
"""A trial's traceback, encrypted, since it may show values of records."""
DIGEST = re.compile("[0-9a-f]{16}")


def put(folder: Path) -> None:
    """Put the files of a sweep or trial that have changed, if its storage is a bucket."""
    if not (storage := storage_at(folder)).remote:
        return
    before = _listed(storage, folder) or {}
    contents = {name: path.read_bytes() for name, path in _files(folder).items()}
    now = {name: _sha256(data) for name, data in contents.items()}
    for name in (name for name in now if now[name] != before.get(name)):
        storage.put(name, contents[name])
    if (folder / ERROR).exists():
        storage_at(folder, private=True).put(ERROR, (folder / ERROR).read_bytes())
    if now != before:
        storage.put(NAMES, sealed({"files": now}).encode())
        storage.delete(name for name in before if name not in now)


def get(folder: Path) -> bool:
    """Make the files of a sweep or trial those in its bucket; whether the bucket has any. A folder stays as it is.

    Raises ValueError if `files.json` is damaged, names a file outside `FILES`, or one that is missing.
    """
    storage = storage_at(folder)
    if not storage.remote or (listed := _listed(storage, folder)) is None:
        return False
    here = {name: _sha256(path.read_bytes()) for name, path in _files(folder).items()}
    wanted = [name for name, checksum in listed.items() if here.get(name) != checksum]
    with ThreadPoolExecutor(WRITERS) as pool:
        for name, data in zip(wanted, pool.map(storage.get, wanted), strict=True):
            if data is None:
                raise ValueError(f"{storage.describe(name)} is gone, though {NAMES} names it")
            write_bytes(folder / name, data)
    for name in here.keys() - listed.keys():
        (folder / name).unlink(missing_ok=True)
    readable = folder.parent.name == "trials" and (folder.parents[1] / "secret").exists()
    if readable and (error := storage_at(folder, private=True).get(ERROR)) is not None:
        write_bytes(folder / ERROR, error)
    return True


def get_sweep(sweep: Path) -> bool:
    """`get` of a sweep and its trials, with the names of the commits of unfinished ones; and the sweep's secret, if the
    environment has it. Returns whether the bucket has such a sweep. Raises ValueError as `get`."""
    storage = storage_at(sweep)
    if not storage.remote or not get(sweep):
        return False
    plan = json.loads(_text(sweep / "sweep.json") or "{}")
    names = sorted({*plan.get("trials", []), *storage.list_names("trials")})  # A search may have added some.
    if odd := [name for name in names if not DIGEST.fullmatch(name)]:
        raise ValueError(f"{storage.describe('trials')} is damaged: no trial can be called {odd[0]!r}")
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(_get_trial, [sweep / "trials" / name for name in names]))
    text = os.environ.get(staging.SECRET, "")
    secret = bytes.fromhex(text) if re.fullmatch("(?:[0-9a-fA-F]{2}){16,}", text) else b""
    right = bool(secret) and seeding.keyed_digest(secret, "sweep", sweep.name)[:16] == plan.get("secret")
    if right and not (sweep / "secret").exists():
        staging.write_secret(sweep / "secret", secret)
    return True


def fetched(uri: str) -> Path:
    """The folder here with the files of a storage, sweep or trial in a bucket, for readers: apart from the one in which
    a driver may be at work. A path of no bucket is returned as it is. Raises ValueError if there is no such sweep."""
    if not is_bucket(uri):
        return Path(uri)
    text, mark, query = uri.partition("?")
    storage, _, inside = text.rstrip("/").partition("/sweeps/")
    bucket = ObjectStore(storage.removesuffix("/sweeps") + mark + query)
    root = staging.root(bucket.uri) / "read"
    staging.begin(root, bucket.uri)
    wanted = inside.partition("/")[0]
    for name in [wanted] if inside else bucket.list_names("sweeps"):
        sweep, secret = root / "sweeps" / name, staging.root(bucket.uri) / "sweeps" / name / "secret"
        if not get_sweep(sweep) and inside:
            raise ValueError(f"there is no sweep {name} in {bucket.name}")
        if secret.exists():
            staging.write_secret(sweep / "secret", secret.read_bytes())
    return root / "sweeps" / inside if inside else root


def to_go_on(folder: Path) -> None:
    """`get` of a trial that is about to go on: an outcome other than finished is removed."""
    if get(folder) and '"finished"' not in _text(folder / "outcome.json"):
        (folder / "outcome.json").unlink(missing_ok=True)


def exists(storage: str, name: str) -> bool:
    """Whether a bucket has a sweep of this name; False for a folder."""
    return is_bucket(storage) and ObjectStore(storage).modified(f"sweeps/{name}/{NAMES}") is not None


def _get_trial(folder: Path) -> None:
    if not get(folder) or (folder / "outcome.json").exists():
        return
    storage = storage_at(folder)  # Empty files: what was committed and sent can be counted without the secret.
    names = [name for name in storage.list_names() if name.startswith("commit-")]
    for name in [*names, *(f"releases/{name}" for name in storage.list_names("releases"))]:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()


def _listed(storage: Storage, folder: Path) -> dict[str, str] | None:
    """The checksums in `files.json`; None if there is none."""
    if (data := storage.get(NAMES)) is None:
        return None
    where = storage.describe(NAMES)
    listed: dict[str, str] = parse_json(data, where, needs="files")["files"]
    if odd := [name for name in listed if not _allowed(folder, name)]:
        raise ValueError(f"{where} is damaged: it names {odd[0]!r}, which is not copied")
    return listed


def _allowed(folder: Path, name: str) -> bool:
    whole = not {"", ".", ".."} & set(name.split("/"))
    return whole and any(fnmatch.fnmatchcase(name, pattern.replace("**/", "")) for pattern in _patterns(folder))


def _patterns(folder: Path) -> tuple[str, ...]:
    return FILES["sweep" if folder.parent.name == "sweeps" else "trial"]


def _files(folder: Path) -> dict[str, Path]:
    found = (path for pattern in _patterns(folder) for path in sorted(folder.glob(pattern)))
    return {str(p.relative_to(folder)): p for p in found if p.is_file() and not p.name.startswith(".")}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
