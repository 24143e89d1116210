"""Data sets of the Hugging Face hub, by hub:owner/name: parquet files, downloaded once, then read locally."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from raydiff.data import download

PREFIX = "hub:"
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
    snapshot = download.snapshot(repository, kind="dataset", patterns=["*.parquet"], says=name)
    there = sorted({path.parent for path in snapshot.rglob("*.parquet")})
    if inner and snapshot / inner in there:
        return snapshot / inner
    if len(there) == 1 and not inner:
        return there[0]
    if not there:
        raise ValueError(f"{name!r} has no parquet files: only data sets in that form are read")
    choices = ", ".join(f"{PREFIX}{repository}/{path.relative_to(snapshot)}" for path in there)
    raise ValueError(f"{name!r} has parquet files in {'other' if inner else 'several'} folders: name {choices}")
