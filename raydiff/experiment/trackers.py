"""Trackers beside MLflow, for those who ask for one: TensorBoard or Weights & Biases, told what the trials' files say.

A tracker opens a run for a trial, which takes the numbers of a round and, at the end, the final ones: three functions.
What it is told is what MLflow is told. It is imported only where it is asked for, and nothing depends on it.
"""

from __future__ import annotations

import math
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from raydiff.experiment import told
from raydiff.report.files import flatten, read_json, read_lines, read_outcome

Name = Literal["tensorboard", "wandb"]
NAMES: tuple[Name, ...] = get_args(Name)


class Run(Protocol):
    """A trial, as a tracker has it."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """The finite numbers of a round."""

    def end(self, final: Mapping[str, float]) -> None:
        """The final ones; there are no others after them."""


Tracker = Callable[[str, str, Mapping[str, object]], Run]
"""(digest, name, fields of the config by path) -> the run of this trial. Called again for a digest, it begins anew."""


def tensorboard(folder: Path) -> Tracker:
    """Event files in a folder for each trial. Raises ValueError where TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError("--tracker tensorboard needs TensorBoard: pip install tensorboard") from None

    class Writer:
        """A folder of event files."""

        def __init__(self, digest: str, name: str, fields: Mapping[str, object]) -> None:
            at = folder / f"{name} {digest}"
            shutil.rmtree(
                at, ignore_errors=True
            )  # All is written anew from the trial's files, so nothing is there twice.
            self.writer: Any = SummaryWriter(str(at))
            self.writer.add_text("config", "\n".join(f"    {path} = {value}" for path, value in fields.items()))

        def log(self, step: int, values: Mapping[str, float]) -> None:
            for key, value in values.items():
                self.writer.add_scalar(key, value, step)
            self.writer.flush()

        def end(self, final: Mapping[str, float]) -> None:
            self.log(0, final)
            self.writer.close()

    return Writer


def wandb(project: str, sweep: str) -> Tracker:
    """Runs of this project, a sweep's in one group; where they go is wandb's own settings' to say. Raises ValueError
    where it is not installed."""
    try:
        import wandb as client
    except ImportError:
        raise ValueError("--tracker wandb needs Weights & Biases: pip install wandb") from None

    class Logged:
        """One of wandb's runs."""

        def __init__(self, digest: str, name: str, fields: Mapping[str, object]) -> None:
            about = {"id": f"{sweep}-{digest}", "name": name, "group": sweep, "config": dict(fields)}
            self.run: Any = client.init(project=project, resume="allow", reinit="create_new", **about)

        def log(self, step: int, values: Mapping[str, float]) -> None:
            self.run.log(dict(values), step=step)

        def end(self, final: Mapping[str, float]) -> None:
            self.run.summary.update(dict(final))
            self.run.finish()

    return Logged


def named(name: Name, sweep: Path, project: str) -> Tracker:
    """The tracker that is called so, of this sweep. Raises ValueError where it is not installed."""
    return tensorboard(sweep / "tensorboard") if name == "tensorboard" else wandb(project, sweep.name)


class Follower(threading.Thread):
    """Follows a sweep's folder and tells a tracker, until it is closed. Trials that had ended before it came are left
    out: an earlier one has told of them."""

    def __init__(self, sweep: Path, tracker: Tracker) -> None:
        super().__init__(name="tracker", daemon=True)
        self.sweep, self.tracker = sweep, tracker
        self.error: Exception | None = None
        self._runs: dict[str, Run] = {}
        self._told: dict[str, int] = {}  # trial digest -> the last step that the tracker has
        self._over = {path.parent.name for path in sweep.glob("trials/*/outcome.json")}
        self._closing = threading.Event()

    def run(self) -> None:
        """Look at the files until closed. Whatever a tracker raises ends what it is told, and nothing else."""
        try:
            while not self._closing.wait(told.PERIOD_S):
                self._look()
            self._look()
        except Exception as e:
            self.error = e

    def close(self, timeout_s: float = 60.0) -> str:
        """Look once more, then stop. Gives what went wrong, in a sentence, or ""."""
        self._closing.set()
        if self.ident is None:  # It was never started: there was nothing to tell.
            return ""
        self.join(timeout_s)
        if self.is_alive():
            return f"the tracker was still writing after {timeout_s:g} s"
        return f"the tracker has not got everything: {self.error}" if self.error else ""

    def _look(self) -> None:
        for folder in sorted((self.sweep / "trials").glob("*")):
            if folder.name in self._over or not (folder / "config.json").exists():
                continue
            outcome = read_outcome(folder)  # read first: rounds logged after this look are seen in the next
            if folder.name not in self._runs:
                tree = read_json(folder / "config.json", needs="method")
                self._runs[folder.name] = self.tracker(folder.name, told.run_name(tree), flatten(tree))
            for line in read_lines(folder / "metrics.jsonl"):
                if line["step"] > self._told.get(folder.name, -1):
                    self._runs[folder.name].log(line["step"], _numbers(told.of_round(line)))
                    self._told[folder.name] = line["step"]
            if outcome is not None:
                self._runs.pop(folder.name).end(_numbers(told.telling(told.final(outcome))))
                self._over.add(folder.name)


def _numbers(values: Mapping[str, object]) -> dict[str, float]:
    return {k: float(v) for k, v in values.items() if isinstance(v, (int, float)) and math.isfinite(v)}
