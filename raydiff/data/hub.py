"""Data sets of the Hugging Face hub, by hub:owner/name: parquet files, downloaded once, then read locally."""

from __future__ import annotations

import functools
import re
from pathlib import Path

PREFIX = "hub:"
PATIENCE_S = 5.0
"""How long the hub may take to answer."""
NAME = re.compile(r"hub:([\w.-]+/[\w.-]+)(?:/(.+))?")
"""hub:owner/name, or hub:owner/name/folder where the data set has its parquet files in several folders."""


@functools.cache
def folder(name: str) -> Path:
    """The local folder of this data set's parquet files, downloaded into the hub's own cache where they are not there.

    Raises ValueError, in one sentence, where the hub does not answer or does not know the name, and where parquet
    files lie in no or in several folders.
    """
    if not (match := NAME.fullmatch(name)):
        raise ValueError(f"a data set of the hub is hub:owner/name, got {name!r}")
    repository, inner = match.groups()
    snapshot = _download(repository, name)
    there = sorted({path.parent for path in snapshot.rglob("*.parquet")})
    if inner and snapshot / inner in there:
        return snapshot / inner
    if len(there) == 1 and not inner:
        return there[0]
    if not there:
        raise ValueError(f"{name!r} has no parquet files: only data sets in that form are read")
    choices = ", ".join(f"{PREFIX}{repository}/{path.relative_to(snapshot)}" for path in there)
    raise ValueError(f"{name!r} has parquet files in {'other' if inner else 'several'} folders: name {choices}")


def _download(repository: str, name: str) -> Path:
    """The snapshot's folder: up to date, or what is in the local cache where the hub does not answer."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError

    here = False
    try:
        HfApi().dataset_info(repository, timeout=PATIENCE_S)  # snapshot_download would wait for ever
    except RepositoryNotFoundError:
        raise ValueError(f"{name!r}: the hub has no such data set, or not for you") from None
    except Exception as error:  # no network, by kind and version
        here, reason = True, _first_sentence(error)
    try:
        path = snapshot_download(repository, repo_type="dataset", allow_patterns=["*.parquet"], local_files_only=here)
    except Exception as error:
        cached = f"is not in the local cache, and the hub does not answer: {reason}" if here else ""
        raise ValueError(f"{name!r} {cached or f'cannot be downloaded: {_first_sentence(error)}'}") from error
    return Path(path)


def _first_sentence(error: Exception) -> str:
    return re.split(r"\.\s|\n", str(error).strip())[0].rstrip(".") or type(error).__name__
