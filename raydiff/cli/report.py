"""Write a sweep's report: one HTML page that opens offline, and its tables as CSV and parquet.

    raydiff report SWEEP [--out DIR]             writes report.html and the tables into DIR
    raydiff report SWEEP --section mylab:cost    with a section of your own: a function of the `SweepView` to HTML

A sweep may still be running.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from raydiff.cli.options import StorageOptions, parse_options, positional
from raydiff.report import page
from raydiff.report.sweep_view import SweepView, open_sweep
from raydiff.runtime import sweep_folder


@dataclass(frozen=True, kw_only=True)
class FinishedSweepOptions(StorageOptions):
    """Options of a command on a sweep."""

    sweep: str = positional()
    """Any name of a sweep."""
    out: Path | None = None
    """Folder to write (default: SWEEP/report)."""

    @property
    def folder(self) -> Path:
        """The sweep's folder. Raises ValueError where there is none."""
        return sweep_folder.sweep_named(self.sweep, self.storage)

    def open(self) -> tuple[SweepView, Path]:
        """(the sweep, the folder to write, which exists). Raises ValueError where the sweep has no trial."""
        sweep = open_sweep(self.folder)
        out = self.out or sweep.folder / "report"
        out.mkdir(parents=True, exist_ok=True)
        return sweep, out


@dataclass(frozen=True, kw_only=True)
class ReportOptions(FinishedSweepOptions):
    section: tuple[str, ...] = ()
    """Sections of your own, MODULE:NAME."""


def main(argv: Sequence[str]) -> None:
    """Write the report and print its path."""
    options = parse_options(ReportOptions, argv, __doc__)
    sweep, out = options.open()
    print(page.write_page(out, sweep, sections=options.section))
