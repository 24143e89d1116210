"""Who is told of a sweep while it runs, and of what it has shown when it is over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raydiff.runtime import sweep_folder
from raydiff.runtime.plan import Planned


class Followers:
    """MLflow's writer, where the sweep is tracked."""

    def __init__(self, planned: Planned, folder: Path, experiment: str, *, track: bool) -> None:
        self.folder, asked, of = folder, planned.asked, (folder, planned.preset, planned.base)
        self.begun = False
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
        says, numbers = _description(self.folder, table)
        files = tuple(sorted((self.folder / "report").glob("*")))
        if behind := self.mlflow.end(status, files, note=says, means=numbers):
            print(behind)


def _description(folder: Path, table: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """(what MLflow shows of the sweep's own run, as Markdown; of each setting its means over seeds)."""
    from raydiff.report.sections.conclusion import means, sentences
    from raydiff.report.sweep_view import open_sweep

    command = f"To go on: `{sweep_folder.resume_command(folder.name)}`"
    try:
        view = open_sweep(folder)
        said, *lines = sentences(view)
        says, numbers = "\n".join([said, "", *(f"- {line}" for line in lines)]), means(view)
    except Exception as e:  # As of the page: nothing here can fail a sweep that is done and recorded.
        says, numbers = f"Nothing to report: {type(e).__name__}: {e}", {}
    return "\n\n".join([says, *[f"```\n{table}\n```"] * bool(table), command]), numbers
