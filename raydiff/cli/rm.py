"""Remove the files of a sweep or run: models, samples, ledgers, its secret.

    raydiff rm NAME                     prints what would be lost; --yes removes it
    raydiff rm NAME --cache             only what can be recomputed: feature networks, shadow models

Of a sweep in a bucket (--storage s3://...) its objects and this machine's copies go. A running sweep is refused;
runs in MLflow stay. Removal takes back nothing that was sent.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from raydiff.cli import ls
from raydiff.cli.options import StorageOptions, parse_options, positional
from raydiff.formats.tables import size
from raydiff.results.spent import composed_guarantee
from raydiff.runtime import sweep_folder
from raydiff.storage.lease import hold_lease
from raydiff.storage.object_store import ObjectStore
from raydiff.storage.storage import storage_at

RECOMPUTED = ("cnn-", "shadow")  # cached files that any command trains again; not clients' models, which are sampled


@dataclass(frozen=True, kw_only=True)
class RemoveOptions(StorageOptions):
    name: str = positional()
    """The sweep or run, as raydiff ls shows it, or its folder."""
    cache: bool = False
    """Remove only files that can be recomputed."""
    yes: bool = False
    """Remove the files."""


def main(argv: Sequence[str]) -> int:
    """Print what would be lost; with --yes, remove it."""
    options = parse_options(RemoveOptions, argv, __doc__)
    folder = sweep_folder.find_folder(options.name, options.storage)
    if (folder / "config.json").exists():
        raise ValueError(f"{options.name} is a trial of {folder.parents[1].name}, and a sweep is removed as a whole")
    with hold_lease(folder):
        if options.cache:
            files = [path for path in folder.glob("cache/*") if path.name.startswith(RECOMPUTED)]
            print(f"{folder / 'cache'}: {len(files)} files, {size(sum(path.stat().st_size for path in files))}")
            if options.yes:
                for path in files:
                    path.unlink()
        else:
            print(f"{folder}: {ls.state(folder)}, {ls.disk_use(folder)}\n{composed_guarantee(folder)}")
    if options.yes and not options.cache:
        storage = storage_at(folder)
        storage.remove_all()
        if isinstance(storage, ObjectStore):
            for copy in (folder, folder.parents[2] / "sweeps" / folder.name):
                shutil.rmtree(copy, ignore_errors=True)
    print("removed; runs in MLflow stay" if options.yes else "nothing was removed: --yes does")
    return 0
