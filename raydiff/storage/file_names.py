"""Names of the files below a sweep's folder.

Others, such as copies that editors and synchronising programs leave, are never read: they are counted.
"""

import re
from pathlib import Path

from raydiff.formats.json_files import TRIAL

# round
COMMIT = "commit-{:05d}.json"
SERVER = "server-{:05d}.safetensors"
# client, round, checksum
RELEASE = "releases/{:05d}-{:05d}.safetensors"
STATE = "clients/{:05d}-{:05d}-{}.safetensors"
ROUND = r"(?P<round>\d{5,})"
NAMES = {  # of the files of a kind; of the last four, in the folder of this name
    "commit": re.compile(rf"commit-{ROUND}\.json"),
    "server": re.compile(rf"server-{ROUND}\.safetensors"),
    "clients": re.compile(rf"(?P<client>\d{{5,}})-{ROUND}-(?P<checksum>[0-9a-f]{{16}})\.safetensors"),
    "releases": re.compile(rf"(?:(?P<client>\d{{5,}})-)?{ROUND}(?:\.safetensors|-[0-9a-f]{{12}}\.jsonl)"),
    "owners": re.compile(r"\d{5,}\.json"),
    "cache": re.compile(r"[\w-]+\.safetensors"),
}
_ANY = {kind: re.sub(r"\?P<\w+>", "?:", pattern.pattern) for kind, pattern in NAMES.items()}
OURS = re.compile(  # paths below a sweep's folder
    rf"(trials/{TRIAL.pattern}/)?({_ANY['commit']}|{_ANY['server']}|releases/({_ANY['releases']})|clients/{_ANY['clients']}"
    r"|(config|outcome|budget|sweep|composed)\.json|(metrics|rejected)\.jsonl|(lost|error)\.txt|secret"
    rf"|owners/{_ANY['owners']}|cache/{_ANY['cache']}|(artifacts|beats|unseen|report|train)/.*"
    r"|(\w+/)?\..+\.[0-9a-f]{8})"  # a temporary name, which a process that died leaves
)


def strays(sweep: Path) -> str:
    """Say how many files of a sweep's folder are ignored, since raydiff gives no such names; "": none."""
    paths = [str(path.relative_to(sweep)) for path in sorted(sweep.rglob("*")) if path.is_file()]
    odd = [path for path in paths if not OURS.fullmatch(path)]
    count = f"{len(odd)} files, such as" if len(odd) > 1 else "1 file,"
    return f"ignored in {sweep}, since raydiff gives no such names: {count} {odd[0]}" if odd else ""
