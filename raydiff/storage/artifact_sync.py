"""What people read of a sweep whose storage is a bucket: put there as it is, at a few moments, and named by
`files.json` beside it; and fetched by whoever reads it on another machine, or goes on with it."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import compress
from pathlib import Path

from raydiff import seeding
from raydiff.formats.json_files import sealed, unsealed
from raydiff.storage import staging as away
from raydiff.storage.atomic_files import write_bytes
from raydiff.storage.bucket import Bucket, is_bucket
from raydiff.storage.remote import Remote, shared

NAMES = "files.json"
READ = {
    "sweep": ("sweep.json", "split.json", "composed.json", "report/**/*"),
    "trial": ("metrics.jsonl", "rejected.jsonl", "lost.txt", "error.txt", "artifacts/*", "config.json", "outcome.json"),
}
"""What people read; the last is put last. Nothing else is fetched by the names that `files.json` gives: who writes to
the bucket may have written it, and commits and states are believed only because they are authenticated."""
DIGEST = re.compile("[0-9a-f]{16}")
CLOSED = ("error.txt",)
"""What of it is encrypted: it may show values of records."""
AT_ONCE = 8


def put(folder: Path) -> None:
    """Put what people read of a sweep or trial, where its storage is a bucket, and what has changed."""
    if not isinstance(there := shared(folder), Remote):
        return
    before = _named(there) or {}
    data = {name: path.read_bytes() for name, path in _files(folder).items()}
    now = {name: _digest(folder, name, content) for name, content in data.items()}
    if now == before:
        return
    for name in (name for name in now if now[name] != before.get(name)):
        closed = there.lock.closed(data[name], there.at(name)) if name in CLOSED else [data[name]]
        there.put(name, b"".join(closed))
    there.put(NAMES, sealed({"files": now}).encode())
    there.remove([name for name in before if name not in now])


def get(folder: Path) -> bool:
    """Make what people read of a sweep or trial what the bucket has; whether it has anything. Where the storage is a
    folder, nothing is done."""
    if not isinstance(there := shared(folder), Remote) or (named := _named(there)) is None:
        return False
    here = {name: _digest(folder, name, path.read_bytes()) for name, path in _files(folder).items()}
    named = {name: digest for name, digest in named.items() if name not in CLOSED or _has_secret(folder)}
    wanted = [name for name, digest in named.items() if here.get(name) != digest]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for name, data in zip(wanted, pool.map(there.get, wanted), strict=True):
            if data is None:
                raise ValueError(f"{there.called(name)} is gone, though {NAMES} names it")
            write_bytes(folder / name, there.lock.opened(data, there.at(name)) if name in CLOSED else data)
    for name in here.keys() - named.keys():
        (folder / name).unlink(missing_ok=True)
    return True


def get_sweep(sweep: Path) -> bool:
    """`get` of a sweep and of all its trials, of those without an outcome also which rounds count; and its secret,
    where the environment has it. Whether there is such a sweep."""
    if not isinstance(there := shared(sweep), Remote) or not get(sweep):
        return False
    said = json.loads(_text(sweep / "sweep.json") or "{}")
    names = {*said.get("trials", []), *there.bucket.below(there.at("trials"))}  # A search may have added some.
    if odd := sorted(name for name in names if not DIGEST.fullmatch(name)):
        raise ValueError(f"{there.called('trials')} is damaged: no trial can be called {odd[0]!r}")
    folders = [sweep / "trials" / digest for digest in sorted(names)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        begun = list(compress(folders, pool.map(get, folders)))
    for folder in begun:
        if not (folder / "outcome.json").exists():
            _mark(folder)
    given = os.environ.get(away.SECRET, "")
    secret = bytes.fromhex(given) if re.fullmatch("(?:[0-9a-fA-F]{2}){16,}", given) else b""
    its = bool(secret) and seeding.keyed_digest(secret, "sweep", sweep.name)[:16] == said.get("secret")
    if its and not (sweep / "secret").exists():
        away.keep(sweep / "secret", secret)
    return True


def fetched(uri: str) -> Path:
    """The folder here of a storage, a sweep or a trial that a bucket has, for whoever reads it: not the one in which a
    driver may be at work. What clients have is fetched when it is asked for. Any other path is itself. Raises
    ValueError where there is none."""
    if not is_bucket(uri):
        return Path(uri)
    text, mark, query = uri.partition("?")
    storage, _, inside = text.rstrip("/").partition("/sweeps/")
    bucket = Bucket(storage.removesuffix("/sweeps") + mark + query)
    at = away.root(bucket.uri) / "read"
    away.begin(at, bucket)
    wanted = inside.partition("/")[0]
    for name in [wanted] if inside else bucket.below("sweeps"):
        sweep, drivers = at / "sweeps" / name, away.root(bucket.uri) / "sweeps" / name / "secret"
        if not get_sweep(sweep) and inside:
            raise ValueError(f"there is no sweep {name} in {bucket.name}")
        if drivers.exists():
            away.keep(sweep / "secret", drivers.read_bytes())
    return at / "sweeps" / inside if inside else at


def to_go_on(folder: Path) -> None:
    """Make a trial's folder what the bucket has of it, where its storage is one: it goes on from there."""
    shared(folder).restore()
    if get(folder) and '"finished"' not in _text(folder / "outcome.json"):
        (folder / "outcome.json").unlink(missing_ok=True)  # It is about to have another one.


def exists(storage: str, name: str) -> bool:
    """Whether a bucket has a sweep of this name."""
    return is_bucket(storage) and Bucket(storage).written(f"sweeps/{name}/{NAMES}") is not None


def _mark(folder: Path) -> None:
    """Have the names of a trial's commits in its folder, and of what was sent after them, for whoever only counts them,
    and may have no secret."""
    number, there = 0, shared(folder)
    while there.written(f"commit-{number:05d}") is not None:
        (folder / f"commit-{number:05d}.json").touch()
        number += 1
    if there.written(f"log/{number:05d}/00000") is not None:  # In the next one something was sent.
        (folder / "releases").mkdir(exist_ok=True)
        (folder / "releases" / f"{number:05d}-log.jsonl").touch()


def _digest(folder: Path, name: str, content: bytes) -> str:
    """By which a change is seen."""
    plain = hashlib.sha256(content).hexdigest()
    if name not in CLOSED or not _has_secret(folder):
        return plain
    return seeding.keyed_digest((folder.parents[1] / "secret").read_bytes(), "file", plain)


def _has_secret(folder: Path) -> bool:
    return (folder.parents[1] / "secret").exists()


def _named(there: Remote) -> dict[str, str] | None:
    data = there.get(NAMES)
    try:
        named = {} if data is None else dict[str, str](unsealed(data.decode())["files"])
    except (ValueError, KeyError, TypeError) as e:
        raise ValueError(f"{there.called(NAMES)} is damaged: {e}") from None
    if odd := [name for name in named if not _is_read(there.folder, name)]:
        raise ValueError(f"{there.called(NAMES)} is damaged: it names {odd[0]!r}, which is none of what people read")
    return None if data is None else named


def _is_read(folder: Path, name: str) -> bool:
    whole = not {"", ".", ".."} & set(name.split("/"))
    return whole and any(fnmatch.fnmatchcase(name, pattern.replace("**/", "")) for pattern in _patterns(folder))


def _patterns(folder: Path) -> tuple[str, ...]:
    return READ["sweep" if folder.parent.name == "sweeps" else "trial"]


def _files(folder: Path) -> dict[str, Path]:
    patterns = _patterns(folder)
    found = (path for pattern in patterns for path in sorted(folder.glob(pattern)))
    return {str(p.relative_to(folder)): p for p in found if p.is_file() and not p.name.startswith(".")}


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
