"""What a sweep runs: one experiment, what to vary, what to compare it with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from raydiff.experiment.config import Experiment


@dataclass(frozen=True, kw_only=True)
class Arm:
    """Something to run beside a study's experiment."""

    changes: Mapping[str, str]
    """Field path -> value, as on the command line: in what it differs. It takes those of the study's axes that it has.
    """
    private: bool = False
    """Only where there is an epsilon."""
    at_depths: bool = False
    """In place of each epsilon, the depth t0 that it needs, without noise."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """What `raydiff sweep` runs."""

    experiment: Experiment
    """The trial from which the others differ."""
    grid: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Axes: field path -> values, as one would write them on the command line."""
    beside: tuple[Arm, ...] = ()
    """What to compare it with."""
    also: tuple[Study, ...] = ()
    """Studies with axes of their own, run in the same sweep."""


BASELINES = (Arm(changes={"method": "localonly"}), Arm(changes={"method": "fedavg"}))
EPSILONS = ("10", "50", "200")
SEEDS = ("0", "1", "2", "3", "4")
