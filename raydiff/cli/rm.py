"""Remove the files of a sweep or run: models, samples, ledgers, its secret.

    raydiff rm NAME                     says what would be lost; nothing is removed
    raydiff rm NAME --yes
    raydiff rm NAME --cache             what is made again when it is asked for: feature networks, shadow models

One that is being run is refused. Its runs in MLflow stay. That it is forgotten here takes back nothing that was sent:
what its records have spent is printed before it goes.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from raydiff.cli import ls
from raydiff.cli.parser import Parser
from raydiff.formats.tables import size
from raydiff.results.spent import composed
from raydiff.storage.lease import held

REMADE = ("cnn-*", "shadow*")
"""Of a sweep's cache what any command trains again where it is missing; from the clients' models, which are there too,
finished trials are sampled."""


def main(argv: Sequence[str]) -> int:
    """Say what it is, then remove it where that is meant."""
    p = Parser("rm NAME", __doc__).with_storage()
    p.add_argument("name", help="of the sweep or run, as raydiff ls has it")
    p.add_argument("--cache", action="store_true", help="only what is made again when it is asked for")
    p.add_argument("--yes", action="store_true", help="remove it")
    given = p.parse_args(argv)
    folder = ls.of_name(given.storage, given.name)
    with held(folder):
        if given.cache:
            return _remove_cache(folder, meant=given.yes)
        print(f"{folder}: {ls.state(folder)}, {ls.taken(folder)}\n{composed(folder)}")
    if given.yes:
        shutil.rmtree(folder)
        print("removed; its runs in MLflow are still there")
    else:
        print("nothing was removed: raydiff rm --yes does")
    return 0


def _remove_cache(sweep: Path, *, meant: bool) -> int:
    found = [path for kind in REMADE for path in (sweep / "cache").glob(kind)]
    print(f"{sweep / 'cache'}: {len(found)} files, {size(sum(path.stat().st_size for path in found))}")
    for path in found if meant else []:
        path.unlink()
    print("removed" if meant else "nothing was removed: raydiff rm --cache --yes does")
    return 0
