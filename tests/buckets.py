"""Trials whose storage is a bucket, for tests."""

import json
from collections.abc import Iterator
from pathlib import Path

from raydiff.experiment import trial
from raydiff.experiment.config import Experiment
from raydiff.experiment.trial import Trial
from raydiff.storage import staging
from raydiff.storage.storage import storage_at

SECRET = bytes(range(32))


def begun(experiment: Experiment, storage: str) -> Trial:
    """The trial in a bucket, or in a folder, as a driver on this machine begins it or goes on with it."""
    staging.prepare_storage(storage)
    sweep = staging.storage_root(storage) / "sweeps" / "lab"
    trial.keep_secret(sweep, SECRET)
    return trial.open_trial(experiment, sweep)


def through(this: Trial) -> Trial:
    """Run it to its end."""
    for _ in trial.run_trial(this, trial.local_executor(this)):
        pass
    return this


def result(this: Trial) -> dict[str, object]:
    """Its outcome, commits and rounds, without times and without what only says that an upload was resent."""
    outcome, storage = this.outcome(), storage_at(this.folder, private=True)
    assert outcome is not None
    outcome["final"] = [metric for metric in outcome["final"] if metric["name"] != "time/seconds"]
    names = [name for name in storage.list_names() if name.startswith("commit-")]
    commits = [json.loads(storage.get(name) or b"") for name in names]
    for commit in commits:
        for metrics in (commit["metrics"], *commit["client_metrics"].values()):
            metrics.pop("upload/resent", None)
        del commit["previous"], commit["sha256"]
    lines = [json.loads(line) for line in (this.files.get("metrics.jsonl") or b"").splitlines()]
    return {"outcome": outcome, "commits": commits, "rounds": [line["step"] for line in lines]}


def objects(tmp_path: Path) -> Iterator[Path]:
    """The objects in the bucket."""
    return (path for path in (tmp_path / "bucket").rglob("*") if path.is_file())
