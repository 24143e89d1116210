"""The MLflow writer of a sweep, and the report that it attaches at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydiff.runtime import sweep_folder
from raydiff.runtime.plan import Planned


@dataclass(frozen=True)
class Reporter:
    """Writes about a sweep that is over, from its folder."""

    describe: Callable[[Path, str], tuple[str, dict[str, dict[str, Any]]]]
    """(folder, table) -> (Markdown for the sweep's own MLflow run, the means of each setting)."""
    write: Callable[[Path, Callable[[Path], str]], str] | None = None
    """(folder, what gives its composed epsilon as a sentence) -> the printed table, beside the files of the report."""


class SweepCallbacks:
    """Starts, feeds and closes MLflow's writer; does nothing where the sweep is not tracked."""

    def __init__(
        self, planned: Planned, folder: Path, experiment: str, *, report: Reporter | None, track: bool
    ) -> None:
        self.folder, self.report, self.begun = folder, report, False
        of, samplers = (folder, planned.preset, planned.base), planned.asked.samplers
        self.mlflow = sweep_folder.mlflow(*of, experiment=experiment, samplers=samplers) if track else None
        if self.mlflow:
            self.mlflow.start()  # Opening a new store takes 10 s, in which Ray starts.

    def ready(self) -> dict[str, str]:
        """Wait for MLflow; returns its fields of sweep.json."""
        if not self.mlflow:
            return {}
        self.mlflow.wait_ready()
        return {"opened_by": sweep_folder.opened_by(self.folder, str(self.mlflow.experiment_id))}

    def begin(self) -> None:
        """The sweep's folder exists now."""
        self.begun = True
        if self.mlflow:
            self.mlflow.begin()

    def end(self, status: str, table: str = "", timeout_s: float = 120.0) -> None:
        """Catch up with the trials' files, attach the report to MLflow's run of the sweep, and print what MLflow lacks.
        `timeout_s` as in `Mlflow.close`."""
        if self.mlflow:
            self.mlflow.close(timeout_s)
            text, means = self.report.describe(self.folder, table) if self.report else ("", {})
            files = tuple(sorted((self.folder / "report").glob("*")))
            if incomplete := self.mlflow.end(status, files, note=text, means=means):
                print(incomplete)
