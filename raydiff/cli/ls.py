"""The sweeps and runs of a storage folder: how far each is, its size, when it last changed.

raydiff ls                          newest last
raydiff ls NAME                     its trials: how each ended, its size, what it guarantees
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import localtime, strftime

from raydiff.cli.options import StorageOptions, parse_options, positional
from raydiff.experiment import config
from raydiff.experiment.study import varying
from raydiff.formats.json_files import outcomes, read_outcome, read_plan, trial_folders
from raydiff.formats.tables import aligned, size
from raydiff.runtime import sweep_folder
from raydiff.storage.file_names import strays


@dataclass(frozen=True, kw_only=True)
class ListOptions(StorageOptions):
    name: str | None = positional(None)
    """A sweep, by any of its names or of a trial's, to list its trials."""


def main(argv: Sequence[str]) -> int:
    """Print a line for each sweep, or for each trial of one."""
    options = parse_options(ListOptions, argv, __doc__)
    sweeps: list[Path] = []
    if options.name is not None:
        rows = trial_rows(sweep_folder.sweep_named(options.name, options.storage))
    else:
        sweeps = sorted((path.parent for path in options.storage.glob("sweeps/*/sweep.json")), key=changed)
        if not sweeps:
            raise ValueError(f"there are no sweeps in {options.storage}")
        rows = [(strftime("%Y-%m-%d %H:%M", localtime(changed(s))), s.name, state(s), disk_use(s)) for s in sweeps]
    print(*aligned(rows), *filter(None, map(strays, sweeps)), sep="\n")
    return 0


def trial_rows(sweep: Path) -> list[tuple[str, ...]]:
    """(digest, name, outcome, size, guarantee) of each trial that has begun. Raises ValueError where none has."""
    folders = trial_folders(sweep)
    if not folders:
        raise ValueError(f"no trial of {sweep.name} has begun")
    experiments = [config.read_config(folder / "config.json") for folder in folders]
    label = varying(experiments)
    ends = [read_outcome(folder) or {"outcome": "not ended"} for folder in folders]
    return [
        (folder.name, label(experiment), end["outcome"], disk_use(folder), end.get("text", ""))
        for folder, experiment, end in zip(folders, experiments, ends, strict=True)
    ]


def state(sweep: Path) -> str:
    """`24 finished, 1 failed of 30`."""
    planned = len(read_plan(sweep, needs="trials")["trials"])
    ended = Counter(str(outcome["outcome"]) for _, outcome in outcomes(sweep))
    counts = ", ".join(f"{n} {outcome}" for outcome, n in sorted(ended.items())) or "nothing ended"
    return f"{counts} of {max(planned, ended.total())}"


def disk_use(folder: Path) -> str:
    """Size of its files."""
    return size(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))


def changed(sweep: Path) -> float:
    """Time of the last write to a file of it, in seconds since 1970."""
    return max(path.stat().st_mtime for path in sweep.rglob("*") if path.is_file())
