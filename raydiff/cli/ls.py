"""The sweeps and runs of a storage folder: how far each is, how much it takes, when it last changed.

raydiff ls                          newest last
raydiff ls NAME                     its trials: how each ended, what it takes, what it guarantees
raydiff ls --storage /mnt/shared/raydiff
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import localtime, strftime

from raydiff.cli.parser import Parser
from raydiff.formats.json_files import outcomes, read_json, read_outcome
from raydiff.formats.tables import aligned, size


def main(argv: Sequence[str]) -> int:
    """Look, and print a line for each."""
    p = Parser("ls [NAME]", __doc__).with_storage()
    p.add_argument("name", nargs="?", default=None, help="of a sweep or run, to list its trials")
    given = p.parse_args(argv)
    if given.name is not None:
        rows = trials(of_name(given.storage, given.name))
    else:
        sweeps = sorted((path.parent for path in given.storage.glob("sweeps/*/sweep.json")), key=changed)
        if not sweeps:
            raise ValueError(f"there are no sweeps in {given.storage}")
        rows = [(strftime("%Y-%m-%d %H:%M", localtime(changed(s))), s.name, state(s), taken(s)) for s in sweeps]
    print(*aligned(rows), sep="\n")
    return 0


def of_name(storage: Path, name: str) -> Path:
    """The folder of the sweep that is called so. Raises ValueError where there is none."""
    folder = storage / "sweeps" / name
    if folder.parent != storage / "sweeps" or not (folder / "sweep.json").exists():
        raise ValueError(f"there is no sweep {name} in {storage}: raydiff ls lists them")
    return folder


def trials(sweep: Path) -> list[tuple[str, ...]]:
    """(digest, name, outcome, what its files take, its guarantee) of each trial that has begun. Raises ValueError where
    none has."""
    from raydiff.experiment import config  # These take seconds, which the list of sweeps does without.
    from raydiff.experiment.study import varying

    folders = sorted(path.parent for path in sweep.glob("trials/*/config.json"))
    if not folders:
        raise ValueError(f"no trial of {sweep.name} has begun")
    experiments = [config.read(folder / "config.json") for folder in folders]
    named, rows = varying(experiments), list[tuple[str, ...]]()
    for folder, experiment in zip(folders, experiments, strict=True):
        ended = read_outcome(folder) or {"outcome": "not ended"}
        rows.append((folder.name, named(experiment), ended["outcome"], taken(folder), ended.get("says", "")))
    return rows


def state(sweep: Path) -> str:
    """`24 finished, 1 failed of 30`."""
    planned = len(read_json(sweep / "sweep.json", needs="trials")["trials"])
    ended = Counter(str(outcome["outcome"]) for _, outcome in outcomes(sweep))
    said = ", ".join(f"{n} {outcome}" for outcome, n in sorted(ended.items())) or "nothing ended"
    return f"{said} of {max(planned, ended.total())}"


def taken(folder: Path) -> str:
    """What its files take."""
    return size(sum(path.stat().st_size for path in _files(folder)))


def changed(sweep: Path) -> float:
    """When a file of it was written last, in seconds since 1970."""
    return max(path.stat().st_mtime for path in _files(sweep))


def _files(sweep: Path) -> Iterator[Path]:
    return (path for path in sweep.rglob("*") if path.is_file())
