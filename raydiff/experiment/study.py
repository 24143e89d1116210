"""What a sweep runs: one experiment, what to vary, what to compare it with; and the trials that this means."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raydiff.experiment import overrides
from raydiff.experiment.config import Experiment
from raydiff.federated.method import Method
from raydiff.lookup import telling
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.localonly import LocalOnly

Settings = Mapping[str, Any]
"""Field path -> its value."""
Choices = Mapping[str | tuple[str, ...], Sequence[Any]]
"""Field path -> the values that `raydiff tune` draws from; of several paths, the values that they take together."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """Something to run beside a study's experiment. It takes those of the study's axes that it has."""

    method: Method | type | None = None
    """Another method. Its fields that are at their default are those of the study's method, where that has them, so
    arms share its model and its training. A class is a method with every field at its default."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Field path -> value, in what else it differs. A class as a value is a change of kind, as for `method`."""
    private: bool = False
    """Only where there is an epsilon."""
    at_depths: bool = False
    """In place of each epsilon, the depth t0 that it needs, without noise."""
    space: Choices = field(default_factory=dict)
    """What `raydiff tune` chooses by this arm, for all arms of its method."""
    as_written: bool = False
    """It keeps the settings that the preset is written with, whatever is chosen for its method."""

    def apply(self, base: Experiment) -> Experiment:
        """The arm's experiment. Raises ValueError for a field that does not exist, or that refuses the value."""
        made: Experiment = overrides.override(base, {**self._of_method(), **self.changes})
        return made

    def sets(self, path: str) -> bool:
        """Whether the arm itself says what the field at this path is."""
        return path in self.changes or path in self._of_method()

    def axes(self, start: Experiment, of: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
        """Those of these axes that its experiment, `start`, has and that the arm does not set itself."""
        return {path: values for path, values in of.items() if overrides.has_path(start, path) and not self.sets(path)}

    def _of_method(self) -> dict[str, Any]:
        if self.method is None:
            return {}
        if isinstance(self.method, type):
            return {"method": self.method}
        given = dataclasses.fields(self.method)  # type: ignore[arg-type]  # every method is a dataclass
        differs = {f.name: getattr(self.method, f.name) for f in given if getattr(self.method, f.name) != f.default}
        return {"method": type(self.method)} | {f"method.{name}": value for name, value in differs.items()}


@dataclass(frozen=True, kw_only=True)
class Study:
    """What `raydiff sweep` runs."""

    experiment: Experiment
    """The trial from which the others differ."""
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Axes: field path -> values."""
    beside: tuple[Arm, ...] = ()
    """What to compare it with."""
    also: tuple[Study, ...] = ()
    """Studies with axes of their own, run in the same sweep."""
    space: Choices = field(default_factory=dict)
    """What `raydiff tune` chooses by `experiment`, for all arms of its method."""
    tuned: Mapping[str, Settings] = field(default_factory=dict)
    """Method -> what `raydiff tune` has chosen for it, which `experiment` and the arms have already."""

    def others(self, given: Mapping[str, Any], *, baselines: bool = True) -> list[Experiment]:
        """The trials of `also`, each under those of the fields that it has."""
        found = []
        for study in self.also:
            own = {path: value for path, value in given.items() if overrides.has_path(study.experiment, path)}
            arms = study.beside if baselines and "method" not in given else ()
            of = {path: values for path, values in study.grid.items() if path not in given}
            found += trials(overrides.override(study.experiment, own), of, arms)
        return found


BASELINES = (Arm(method=LocalOnly), Arm(method=FedAvg))
EPSILONS = (10.0, 50.0, 200.0)
SEEDS = (0, 1, 2, 3, 4)


def trials(base: Experiment, of: Mapping[str, Sequence[Any]], beside: Sequence[Arm] = ()) -> list[Experiment]:
    """All combinations of the axes on `base`; then each arm on those axes that it has and does not set itself."""
    found = _combinations(base, of)
    for arm in beside:
        start = arm.apply(base)
        mine = arm.axes(start, of)
        if (arm.private or arm.at_depths) and "method.epsilon" in mine:
            mine["method.epsilon"] = [epsilon for epsilon in mine["method.epsilon"] if epsilon is not None]
        own = _combinations(start, mine)
        found += [_without_noise(experiment) for experiment in own] if arm.at_depths else own
    return found


def _combinations(start: Experiment, of: Mapping[str, Sequence[Any]]) -> list[Experiment]:
    return [
        overrides.override(start, dict(zip(of, combination, strict=True)))
        for combination in itertools.product(*of.values())
    ]


def _without_noise(experiment: Experiment) -> Experiment:
    """The same depth, without the noise that asked for it."""
    depth = experiment.method.depth  # type: ignore[attr-defined]
    changed: Experiment = overrides.override(experiment, {"method.epsilon": None, "method.t0": depth})
    return changed


def varying(experiments: Sequence[Experiment], sampled: Iterable[str] = ()) -> Callable[[Experiment], str]:
    """A short name for each of these: its method, and the fields that tell it from others of that method, or will."""
    by_method: dict[str, list[dict[str, Any]]] = {}
    for experiment in experiments:
        by_method.setdefault(type(experiment.method).__name__, []).append(overrides.flat(experiment))
    shown = {}
    for method, flats in by_method.items():
        keys = dict.fromkeys(k for flat in flats for k in flat if not k.startswith(("runtime", "data_digest")))
        needed = {*telling(flats, keys), *sampled} - {"method"}
        shown[method] = [k for k in keys if k in needed]

    def name(experiment: Experiment) -> str:
        method, flat = type(experiment.method).__name__, overrides.flat(experiment)
        parts = [f"{k.rsplit('.', 1)[-1]}={overrides.short(flat[k])}" for k in shown.get(method, ()) if k in flat]
        return " ".join([method, *parts])

    return name
