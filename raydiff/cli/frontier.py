"""The privacy-utility frontier of a sweep, as a table for people and as a plot.

    raydiff frontier SWEEP [--out DIR]     prints the table, writes frontier.png and frontier.csv

A row is a setting, over its seeds and splits. Epsilons compare within one privacy definition (unit, neighbouring
relation, trust model, delta) only, each with its column. Under central trust the epsilon is that against outsiders.
"""

from collections.abc import Sequence

from raydiff.cli.options import parse_options
from raydiff.cli.report import FinishedSweepOptions
from raydiff.formats.csv_files import write_csv
from raydiff.report.frontier.text import text
from raydiff.report.guarantees import flatten_guarantees


class FrontierOptions(FinishedSweepOptions):
    """Those of a command on a sweep."""


def main(argv: Sequence[str]) -> None:
    """Print the table, write the files, and print where they are."""
    sweep, out = parse_options(FrontierOptions, argv, __doc__).open()
    write_csv(out / "frontier.csv", flatten_guarantees(sweep.frontier))
    plot = "" if sweep.picture else "\n\nno plot: no setting has a finite epsilon and a measure of quality"
    if sweep.picture:
        (out / "frontier.png").write_bytes(sweep.picture)
    print(f"{text(sweep)}{plot}\n\n{out}")
