"""Who is told of a sweep while it runs, and of what it has shown when it is over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydiff.runtime import sweep_folder
from raydiff.runtime.plan import Planned


@dataclass(frozen=True)
class Reporter:
    """What writes about a sweep that is over: it reads the sweep's folder."""

    describe: Callable[[Path, str], tuple[str, dict[str, dict[str, Any]]]]
    """(folder, table) -> what MLflow shows of the sweep's own run, as Markdown; and of each setting its means."""
    write: Callable[[Path, str], str] | None = None
    """(folder, composed epsilon, in a sentence) -> the table that it printed, beside the files of the report."""


class SweepCallbacks:
    """MLflow's writer, where the sweep is tracked."""

    def __init__(
        self, planned: Planned, folder: Path, experiment: str, *, report: Reporter | None, track: bool
    ) -> None:
        self.folder, asked, of = folder, planned.asked, (folder, planned.preset, planned.base)
        self.begun, self.report = False, report
        self.mlflow = sweep_folder.mlflow(*of, experiment=experiment, samplers=asked.samplers) if track else None
        if self.mlflow:
            self.mlflow.start()  # Opening a new store takes 10 s, in which Ray starts.

    def ready(self) -> dict[str, str]:
        """Wait for MLflow; what sweep.json says of it."""
        if not self.mlflow:
            return {}
        self.mlflow.wait_ready()
        return {"opened_by": sweep_folder.opened_by(self.folder, str(self.mlflow.experiment_id))}

    def begin(self) -> None:
        """From now on there is a sweep to follow."""
        self.begun = True
        if self.mlflow:
            self.mlflow.begin()

    def close(self, timeout_s: float = 120.0) -> None:
        """Catch up with the trials' files, and say what went wrong. `timeout_s` as in `Mlflow.close`."""
        if self.mlflow:
            self.mlflow.close(timeout_s)

    def end(self, status: str, table: str) -> None:
        """Attach the report to MLflow's run of the sweep, and say what it has not got."""
        if not self.mlflow:
            return
        says, numbers = self.report.describe(self.folder, table) if self.report else ("", {})
        files = tuple(sorted((self.folder / "report").glob("*")))
        if behind := self.mlflow.end(status, files, note=says, means=numbers):
            print(behind)
