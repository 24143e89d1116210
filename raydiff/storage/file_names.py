"""Names of the files below a sweep's folder. Others, such as copies that editors and synchronising programs leave, are
never read: they are counted."""

from __future__ import annotations

import re
from pathlib import Path

from raydiff.formats.json_files import TRIAL

COMMIT, SERVER = "commit-{:05d}.json", "server-{:05d}.safetensors"  # round
RELEASE, STATE = "releases/{:05d}-{:05d}.safetensors", "clients/{:05d}-{:05d}-{}.safetensors"  # client, round, checksum
ROUND = r"(?P<round>\d{5,})"
NAMES = {
    "commit": re.compile(rf"commit-{ROUND}\.json"),
    "server": re.compile(rf"server-{ROUND}\.safetensors"),
    "clients": re.compile(rf"(?P<client>\d{{5,}})-{ROUND}-(?P<checksum>[0-9a-f]{{16}})\.safetensors"),
    "releases": re.compile(rf"(?:(?P<client>\d{{5,}})-)?{ROUND}(?:\.safetensors|-[0-9a-f]{{12}}\.jsonl)"),
    "owners": re.compile(r"\d{5,}\.json"),
    "cache": re.compile(r"[\w-]+\.safetensors"),
}
"""Names of a kind of file, or in the folder of this name."""
FREE = ("artifacts", "beats", "report")
"""Folders whose files may have any name."""
OTHERS = re.compile(
    r"(sweep|composed|config|outcome|budget|bucket|files)\.json|(metrics|rejected)\.jsonl|(lost|error)\.txt|secret"
    r"|\.(git|ray)ignore|\..+\.[0-9a-f]{8}"  # The last ones are being written, or were when their process died.
)


def strays(sweep: Path) -> str:
    """Return how many files of a sweep's folder have names that raydiff does not give, which are ignored; "": none."""
    paths = [path.relative_to(sweep) for path in sorted(sweep.rglob("*")) if path.is_file()]
    odd = [str(path) for path in paths if not _expected(path.parts)]
    count = f"{len(odd)} files" if len(odd) > 1 else "1 file"
    return f"{count} of other names than raydiff gives in {sweep}, ignored: {odd[0]!r}" if odd else ""


def _expected(parts: tuple[str, ...]) -> bool:
    *folders, name = parts
    if folders[:1] == ["trials"]:
        if len(folders) < 2 or not TRIAL.fullmatch(folders[1]):
            return False
        folders = folders[2:]
    if not folders:
        return any(p.fullmatch(name) for p in (OTHERS, NAMES["commit"], NAMES["server"]))
    pattern = NAMES.get(folders[0])
    return folders[0] in FREE or (pattern is not None and bool(pattern.fullmatch(name) or OTHERS.fullmatch(name)))
