"""The end of a sweep: outcomes of trials that began, the report, MLflow's last word, and how it ended."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from raydiff import process
from raydiff.experiment import trial
from raydiff.formats.json_files import outcomes, read_json
from raydiff.results import chance, spent
from raydiff.runtime import sweep_folder
from raydiff.storage import copies
from raydiff.tracking.mlflow_writer import Mlflow, SweepSummary

HURRY_S = 10.0  # An interrupted report waits so long for MLflow.


@dataclass(frozen=True)
class Reporter:
    """Writes about a sweep that is over, from its folder."""

    describe: Callable[[Path], SweepSummary]
    """What the sweep's own MLflow run says."""
    write: Callable[[Path, Callable[[Path], str]], None] | None = None
    """(folder, what gives its composed epsilon as a sentence): print the table and write the files of the report."""


@dataclass(frozen=True)
class Ended:
    """How a sweep ended."""

    folder: Path
    interrupted: int = 0  # the number of the signal that ended it, or 0
    failed: str = ""  # why the last trial failed now, or had no node to run on: the folder may not say it
    incomplete: str = ""  # what MLflow lacks

    @property
    def opened_by(self) -> str:
        """What opens its runs in the MLflow UI; follows "open the runs "."""
        return str(read_json(self.folder / "sweep.json", needs="opened_by")["opened_by"])

    @property
    def code(self) -> int:
        """The exit code: 0 where every trial finished, was stopped or was out of time, and MLflow has everything."""
        if self.interrupted:
            return 128 + self.interrupted
        unfinished = [folder for folder, end in outcomes(self.folder) if end["outcome"] in sweep_folder.UNFINISHED]
        return int(any((self.failed, unfinished, sweep_folder.list_open_trials(self.folder), self.incomplete)))

    def print_incomplete(self) -> None:
        """Say what MLflow lacks, and what adds it."""
        if self.incomplete:
            print(
                f"MLflow is incomplete: {self.incomplete}; once it can be written, add the rest by: "
                f"{sweep_folder.resume_command(self.folder)}",
                flush=True,
            )


@dataclass(frozen=True)
class Finisher:
    """Ends the sweep in a folder, in order or not."""

    folder: Path
    mlflow: Mlflow | None
    reporter: Reporter | None

    def kill_open(self, reason: str) -> None:
        """End the trials that began and have no outcome."""
        for digest in sweep_folder.list_open_trials(self.folder):
            trial.end_unfinished(self.folder / "trials" / digest, "killed", reason=reason)

    def lose_head(self, reason: str) -> None:
        """End the sweep from a second thread: the first may wait for Ray, which soon ends this process."""
        self.kill_open(reason)
        self.close_mlflow("KILLED", timeout_s=HURRY_S)
        print(f"{reason}; continue on a new Ray with: {sweep_folder.resume_command(self.folder)}", flush=True)
        os._exit(1)

    def report(self, ended: Ended) -> Ended:
        """Write the report, let MLflow have it, and say how the sweep continues. An interrupt cuts this short."""
        try:
            with process.waiting("the report, and for the storage and MLflow to have it"):
                incomplete = self._write_report("KILLED" if ended.interrupted else "FINISHED")
        except KeyboardInterrupt as e:
            print(
                f"interrupted while reporting; to make the report: raydiff report {quote(str(self.folder))}", flush=True
            )
            incomplete = self.close_mlflow("KILLED", timeout_s=HURRY_S)
            ended = replace(ended, interrupted=process.signal_of(e))
        if ended.interrupted or ended.failed:
            why = "interrupted" if ended.interrupted else "trials failed"
            print(f"{why}; continue with: {sweep_folder.resume_command(self.folder)}", flush=True)
        return replace(ended, incomplete=incomplete)

    def _write_report(self, status: str) -> str:
        if self.reporter and self.reporter.write:
            self.reporter.write(self.folder, spent.composed_guarantee)
        try:
            copies.publish_report(self.folder)
        except OSError as e:
            print(f"the report is only on this machine, in {self.folder / 'report'}: {e}", flush=True)
        incomplete = self.close_mlflow(status)
        noise = chance.noise(self.folder)
        if noise:
            print(noise, flush=True)
        return incomplete

    def close_mlflow(self, status: str, timeout_s: float = 120.0) -> str:
        """Let MLflow catch up with the trials' files, attach the report, and return what MLflow lacks."""
        if self.mlflow is None:
            return ""
        self.mlflow.close(timeout_s)
        summary = self.reporter.describe(self.folder) if self.reporter else SweepSummary()
        return self.mlflow.end(status, tuple(sorted((self.folder / "report").glob("*"))), summary) or ""
