"""Finished trials on disk, for tests of what is done with them."""

import json
from pathlib import Path

from raydiff.experiment import trial
from raydiff.experiment.config import Experiment


class Storage:
    """A storage folder of finished sweeps with one trial each."""

    def __init__(self, root: Path) -> None:
        self.root, self.sweeps = root, root / "sweeps"

    def finish(self, name: str, experiment: Experiment) -> Path:
        """Run an experiment as a sweep of one trial, and give its folder."""
        opened = trial.open_trial(experiment, self.sweeps / name)
        for _ in trial.run_trial(opened, trial.local_executor(opened)):
            pass
        (self.sweeps / name / "sweep.json").write_text(json.dumps({"id": f"the id of {name}"}))
        return opened.folder

    def folder(self, name: str) -> Path:
        """The folder of a sweep's trial."""
        (folder,) = (self.sweeps / name / "trials").iterdir()
        return folder
