"""Trials whose storage is a bucket, for tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from raydiff.experiment import trial
from raydiff.experiment.config import Experiment
from raydiff.experiment.trial import Trial
from raydiff.storage import staging as away

SECRET = bytes(range(32))


def begun(experiment: Experiment, uri: str) -> Trial:
    """The trial on the machine where one is, as a driver there begins it or goes on with it."""
    away.prepare(uri)
    sweep = away.root(uri) / "sweeps" / "lab"
    trial.keep_secret(sweep, SECRET)
    return trial.open_trial(experiment, sweep)


def in_a_folder(experiment: Experiment, storage: Path) -> Trial:
    """The same trial in a folder."""
    sweep = storage / "folder" / "sweeps" / "lab"
    trial.keep_secret(sweep, SECRET)
    return trial.open_trial(experiment, sweep)


def through(this: Trial) -> Trial:
    """Run it to its end."""
    for _ in trial.run(this, trial.local_executor(this)):
        pass
    return this


def told(this: Trial) -> dict[str, object]:
    """All that it says, seconds apart."""
    outcome = this.outcome()
    assert outcome is not None
    outcome["final"] = {k: v for k, v in outcome["final"].items() if not k.startswith("time/")}
    commits = [json.loads(p.read_text()) for p in sorted(this.folder.glob("commit-*.json"))]
    for commit in commits:  # What was sent again says so, and so the commit has another digest.
        commit["metrics"] = {k: v for k, v in commit["metrics"].items() if not k.endswith("upload/resent")}
        del commit["previous"], commit["sha256"]
    lines = [json.loads(line) for line in (this.folder / "metrics.jsonl").read_text().splitlines()]
    return {"outcome": outcome, "commits": commits, "rounds": [line["step"] for line in lines]}


def objects(tmp_path: Path) -> Iterator[Path]:
    return (path for path in (tmp_path / "bucket").rglob("*") if path.is_file())
