"""Plans for tests of sweeps."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raydiff.experiment.config import Experiment
from raydiff.formats.metric_records import Metric
from raydiff.runtime.plan import Planned, SweepRequest


def seeded(number: int) -> Experiment:
    """An experiment with this seed."""
    return dataclasses.replace(Experiment(), seed=number)


def planned_as(folder: Path, trials: Sequence[Experiment], **more: Any) -> Planned:
    """A sweep of these, one after the other, in this folder."""
    return Planned(
        preset="p",
        folder=folder,
        trials=tuple(trials),
        secret=b"the noise secret",
        metric=Metric(name="fd_cnn", group="all", split="eval", lower_is_better=True),
        **({"base": trials[0] if trials else None, "asked": SweepRequest(concurrent=1)} | more),
    )
