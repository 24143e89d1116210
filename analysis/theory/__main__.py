"""What could a paper's method reach with perfect denoisers? Predictions in seconds, most without training.

    python -m analysis.theory                  PFDM's theorems, its mixture, and digits
    python -m analysis.theory theorems         PFDM's Theorem 5.2 and Eq. 9 against Monte-Carlo; mixture: its Figure 5
    python -m analysis.theory mnist --size 14 --out mine.csv       minority W2^2 of each arm, for any data set
    python -m analysis.theory collaboration    the same for a preset's data and minority sizes
    python -m analysis.theory spire            SPIRE's Theorems 4.2 and 4.3; feddistr: Theorems 1, 2; pdp: the bound

The csv has means over seeds with 95 % t intervals; the gain over local training is paired by seed. Options beside these
override fields of the data set. The arms and the assumptions: analysis/theory/on_data.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.theory import feddistr_theory, mixture, on_data, random_tables, spire_theory, theorems, trained
from raydiff.__main__ import leave
from raydiff.cli.options import parse_command, positional
from raydiff.data.datasets import Data
from raydiff.experiment import overrides, presets

THEORIES: dict[str, Callable[[Path], list[str]]] = {
    "theorems": lambda out: [*theorems.report(), ""],
    "mixture": lambda out: [*mixture.report(out), ""],
    "spire": spire_theory.report,
    "feddistr": feddistr_theory.report,
    "pdp": lambda out: [*random_tables.report(out), "", *trained.report()],
}
"""Name -> lines, with files written into a folder. Any other name is a data set or a preset."""
MINORITIES = (3, 20, 100)
OTHERS = Data(size=14, train=2000, public=1000, validation=0, calibration=0, test=4000)
"""How data sets other than digits are cut. All rows make the truth."""


@dataclass(frozen=True, kw_only=True)
class TheoryOptions:
    what: str = positional("all")
    """theorems, mixture, spire, feddistr, pdp or a data set (default: theorems, mixture, digits)."""
    out: Path = Path("oracle-report")
    """Folder; for a data set also x.csv."""
    seeds: int = 20
    """Draws of the clients' records."""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"--seeds must be at least 1, got {self.seeds}")
        if self.out.suffix == ".csv" and self.what in ("all", *THEORIES):
            raise ValueError(f"--out must be a folder unless a data set is named, got {self.out}")


def main(argv: Sequence[str]) -> int:
    """Print the tables, write the files and say where they are."""
    options, fields = parse_command(TheoryOptions, argv, __doc__, Data())
    for name in ("theorems", "mixture") if options.what == "all" else {options.what} & set(THEORIES):
        options.out.mkdir(parents=True, exist_ok=True)
        print("\n".join(THEORIES[name](options.out)))
    if options.what not in THEORIES:
        name = "digits" if options.what == "all" else options.what
        path = options.out if options.out.suffix == ".csv" else options.out / f"{Path(name).name}.csv"
        data, minorities = _choose_data(name)
        data = overrides.override(data, overrides.parse_fields(data, fields))
        print("\n".join(on_data.report(data, path, minorities, seeds=options.seeds)))
    return 0


def _choose_data(name: str) -> tuple[Data, tuple[int, ...]]:
    """(data, minority sizes): of a preset that varies these; else of a data set."""
    if name in presets.PRESETS:
        study = presets.PRESETS[name]()
        sizes = study.grid.get("partition.minority", ())
        if sizes:
            return study.experiment.data, tuple(int(n) for n in sizes)
    return (Data() if name == "digits" else overrides.override(OTHERS, {"name": name})), MINORITIES


if __name__ == "__main__":
    leave(main, sys.argv[1:])
