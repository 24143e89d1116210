"""The Hugging Face hub: repositories downloaded once, then read locally. The only home of huggingface_hub."""

import fnmatch
import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from raydiff.data import sizes

PREFIX = "hub:"
NAME = re.compile(r"hub:([\w.-]+/[\w.-]+)(?:/(.+))?")  # hub:owner/name, or hub:owner/name/folder in it
PATIENCE_S = 5.0  # timeout of a request to the hub


@functools.cache
def folder(name: str) -> Path:
    """The local folder of this data set, downloaded into the hub's cache.

    Raises ValueError as `snapshot_of` does, and without parquet files.
    """
    from raydiff.data import parquet  # slow to import

    if not (match := NAME.fullmatch(name)):
        raise ValueError(f"a data set of the hub is hub:owner/name, got {name!r}")
    repository, inner = match.groups()
    folder = snapshot_of(repository, kind="dataset", patterns=["*.parquet"], says=name) / (inner or "")
    if not folder.is_dir() or not parquet.folders_below(folder):
        raise ValueError(f"{name!r} has no parquet files: only data sets in that form are read")
    return folder


def snapshot_of(repository: str, *, kind: Literal["dataset", "model"], patterns: Sequence[str], says: str) -> Path:
    """Return the folder with the matching files of owner/name, up to date or, if the hub is silent, cached.

    `says` is the user's name for it. Raises ValueError if the hub lacks it, or neither answers nor is cached.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError

    files: Sequence[Any] = ()
    silent = ""  # why the hub does not answer
    try:
        # snapshot_download has no time limit.
        info: Any = HfApi().repo_info(repository, repo_type=kind, timeout=PATIENCE_S, files_metadata=True)
        files = info.siblings or ()
    except RepositoryNotFoundError:
        raise ValueError(f"{says!r}: the hub has no such {kind}, or not for you") from None
    except Exception as error:  # Without a network the exception differs by version.
        silent = _first_sentence(error)
    size = sum(f.size or 0 for f in files if any(fnmatch.fnmatch(f.rfilename, pattern) for pattern in patterns))
    if size > sizes.MOST_DOWNLOADED:
        raise ValueError(
            f"{says!r} takes {sizes.format_bytes(size)}, more than the {sizes.format_bytes(sizes.MOST_DOWNLOADED)} "
            "that are downloaded: name a folder"
        )
    local = bool(silent)
    try:
        return Path(snapshot_download(repository, repo_type=kind, allow_patterns=[*patterns], local_files_only=local))
    except Exception as error:
        cached = f"is not in the local cache, and the hub does not answer: {silent}" if silent else ""
        raise ValueError(f"{says!r} {cached or f'cannot be downloaded: {_first_sentence(error)}'}") from error


def _first_sentence(error: Exception) -> str:
    return re.split(r"\.\s|\n", str(error).strip())[0].rstrip(".") or type(error).__name__
