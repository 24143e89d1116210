"""Remove the files of a sweep or run: models, samples, ledgers, its secret.

    raydiff rm NAME                     says what would be lost; nothing is removed
    raydiff rm NAME --yes

One that is being run is refused. Its runs in MLflow stay. That it is forgotten here takes back nothing that was sent:
what its records have spent is printed before it goes.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from raydiff.cli import ls
from raydiff.cli.parser import Parser
from raydiff.experiment.owner import held
from raydiff.results.spent import composed


def main(argv: Sequence[str]) -> int:
    """Say what it is, then remove it where that is meant."""
    p = Parser("rm NAME", __doc__).with_storage()
    p.add_argument("name", help="of the sweep or run, as raydiff ls has it")
    p.add_argument("--yes", action="store_true", help="remove it")
    given = p.parse_args(argv)
    folder = given.storage / "sweeps" / given.name
    if folder.parent != given.storage / "sweeps" or not (folder / "sweep.json").exists():
        raise ValueError(f"there is no sweep {given.name} in {given.storage}: raydiff ls lists them")
    with held(folder):
        print(f"{folder}: {ls.state(folder)}, {ls.taken(folder)}\n{composed(folder)}")
    if given.yes:
        shutil.rmtree(folder)
        print("removed; its runs in MLflow are still there")
    else:
        print("nothing was removed: raydiff rm --yes does")
    return 0
