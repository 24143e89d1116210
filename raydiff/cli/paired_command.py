"""Each setting of a sweep minus another one, seed by seed: which differences are more than chance?

    raydiff paired SWEEP [--reading eval/fd_cnn/all] [--against LocalOnly] [--out DIR]     prints, and writes paired.csv

Settings are compared within a cell: equal in every field that is not the method's (clients, partition, data). Without
--against each is compared with the best arm of its cell that sends nothing or, where there is none, with the best
setting. Differences have a mean over seeds and its 95 % Student interval, without a correction for their number.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from raydiff.cli.options import parse_options
from raydiff.cli.report import FinishedSweepOptions
from raydiff.formats import rounding
from raydiff.formats.csv_files import write_csv
from raydiff.formats.intervals import format_interval
from raydiff.formats.tables import aligned, number
from raydiff.report.paired import pair_settings


@dataclass(frozen=True, kw_only=True)
class PairedOptions(FinishedSweepOptions):
    reading: str | None = None
    """A final number (default: the measure that ranks the frontier)."""
    against: str | None = None
    """The setting that the others are compared with (default: training alone)."""


def main(argv: Sequence[str]) -> None:
    """Print the table, and write it."""
    options = parse_options(PairedOptions, argv, __doc__)
    sweep, out = options.open()
    table = pair_settings(sweep, reading=options.reading, against=options.against)
    write_csv(out / "paired.csv", table)
    lines = [["cell", "setting", "epsilon", "mean", "minus", "is", "n"]]
    for row in table.to_dict("records"):
        numbers = [rounding.up(row["epsilon"]), number(row["mean"])]
        difference = format_interval(row["difference"], row["low"], row["high"], "+.3f")
        lines.append([row["cell"], row["setting"], *numbers, row["base"], difference, str(row["n"])])
    print(*aligned(lines, words=2), "", out, sep="\n")
