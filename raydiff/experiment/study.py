"""What a sweep runs: one experiment, what to vary, what to compare it with; and the trials that this means."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raydiff.experiment import overrides
from raydiff.experiment.config import Experiment
from raydiff.experiment.searchers import GridSearch, Search, Settings, propose_all
from raydiff.federated.method import Method
from raydiff.lookup import bare_name, distinguishing_fields
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.localonly import LocalOnly

Choices = Mapping[str | tuple[str, ...], Sequence[Any]]
"""Field path -> the values that `raydiff tune` draws from; of several paths, the values that they take together."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A comparison beside a study's experiment, on those of the study's axes that it has.

    Examples:
        >>> arm = rd.Arm(method=rd.FedProx(mu=0.1), changes={"clients": 4})
        >>> arm.apply(rd.Experiment(method=rd.FedAvg(rounds=3))).method.rounds
        3
    """

    method: Method | type | None = None
    """Another method, which shares model, training and the like with the study's: fields at their default are taken
    from the study's method. A class: every field is at its default."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Other differences: field path -> value, or the class of a field of several classes."""
    private: bool = False
    """Only with an epsilon."""
    at_depths: Settings | None = None
    """These differences too, and in place of each epsilon the depth t0 that it needs, without noise."""
    space: Choices = field(default_factory=dict)
    """What `raydiff tune` chooses by this arm, for all arms of its method."""
    as_written: bool = False
    """It ignores settings chosen by `raydiff tune`."""

    def apply(self, base: Experiment) -> Experiment:
        """The arm's experiment. Raises ValueError for a field that does not exist, or that refuses the value."""
        experiment: Experiment = overrides.override(base, self._overrides())
        return experiment

    def axes(self, start: Experiment, grid: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
        """Those of these axes that the arm's experiment `start` has and that the arm does not set."""
        fixed = self._overrides()
        return {path: values for path, values in grid.items() if overrides.has_path(start, path) and path not in fixed}

    def _overrides(self) -> dict[str, Any]:
        if self.method is None or isinstance(self.method, type):
            return ({} if self.method is None else {"method": self.method}) | dict(self.changes)
        fields = dataclasses.fields(self.method)  # type: ignore[arg-type]  # every method is a dataclass
        differs = {f.name: getattr(self.method, f.name) for f in fields if getattr(self.method, f.name) != f.default}
        return {"method": type(self.method), **{f"method.{k}": v for k, v in differs.items()}, **self.changes}


@dataclass(frozen=True, kw_only=True)
class Study:
    """What `raydiff sweep` runs.

    Examples:
        >>> study = rd.Study(
        ...     experiment=rd.Experiment(),
        ...     grid={"clients": [2, 4]},
        ...     beside=(rd.Arm(method=rd.LocalOnly),),
        ... )
        >>> [type(arm.apply(study.experiment).method).__name__ for arm in study.beside]
        ['LocalOnly']
    """

    experiment: Experiment
    """The trial that the others are changes of."""
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Axes: field path -> values."""
    beside: tuple[Arm, ...] = ()
    """Comparisons."""
    search: Search = Search()
    """How trials are proposed, stopped early, and compared."""
    also: tuple[Study, ...] = ()
    """Studies with axes of their own, run in the same sweep."""
    space: Choices = field(default_factory=dict)
    """What `raydiff tune` chooses by `experiment`, for all arms of its method."""
    tuned: Mapping[str, Settings] = field(default_factory=dict)
    """Method -> what `raydiff tune` has chosen for it; `experiment` and the arms have it already."""

    chosen_by: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Field path -> the fields by whose values in `experiment` its value was chosen."""

    def check_chosen(self, changed: Mapping[str, Any], axes: Iterable[str] = ()) -> None:
        """Raises ValueError where these overrides, or an axis, keep a setting that was chosen by another value."""
        varied = {*changed, *axes}
        before = overrides.flatten_settings(self.experiment)
        now = overrides.flatten_settings(overrides.override(self.experiment, changed))
        for path in (p for p in varied if p in axes or now.get(p) != before.get(p)):
            if kept := [s for s, by in self.chosen_by.items() if path in by and s in now and s not in varied]:
                raise ValueError(
                    f"{', '.join(f'--{s} {overrides.format_value(now[s])}' for s in kept)} was chosen for --{path} "
                    f"{overrides.format_value(before[path])}, which this changes: give it too, or run raydiff init "
                    f"again with the other --{path}"
                )

    def others(self, fixed: Mapping[str, Any], *, baselines: bool = True) -> list[Experiment]:
        """The trials of `also` with the fields `fixed` overridden, as far as they have them."""
        experiments = []
        for study in self.also:
            values = {path: value for path, value in fixed.items() if overrides.has_path(study.experiment, path)}
            arms = study.beside if baselines and "method" not in fixed else ()
            grid = {path: values for path, values in study.grid.items() if path not in fixed}
            experiments += trials(overrides.override(study.experiment, values), grid, arms)
        return experiments


Varying = Mapping[str, Sequence[str]]
"""Method -> paths of the fields in which its experiments differ."""
BASELINES = (Arm(method=LocalOnly), Arm(method=FedAvg))
EPSILONS = (10.0, 50.0, 200.0)
SEEDS = (0, 1, 2, 3, 4)


def trials(base: Experiment, grid: Mapping[str, Sequence[Any]], beside: Sequence[Arm] = ()) -> list[Experiment]:
    """All combinations of the axes on `base`; then each arm on its `Arm.axes`."""
    experiments = _combine(base, grid)
    for arm in beside:
        start = arm.apply(base)
        axes = arm.axes(start, grid)
        if (arm.private or arm.at_depths is not None) and "method.epsilon" in axes:
            axes["method.epsilon"] = [epsilon for epsilon in axes["method.epsilon"] if epsilon is not None]
        of_arm = _combine(start, axes)
        if arm.at_depths is not None:
            depths = (experiment.method.depth for experiment in of_arm)  # type: ignore[attr-defined]
            changes = [{"method.epsilon": None, "method.t0": depth, **arm.at_depths} for depth in depths]
            of_arm = list(map(overrides.override, of_arm, changes))
        experiments += of_arm
    return experiments


def _combine(start: Experiment, grid: Mapping[str, Sequence[Any]]) -> list[Experiment]:
    cells = GridSearch({path: ("choice", values) for path, values in grid.items()})
    return [overrides.override(start, settings) for settings in propose_all(cells)]


def varying_fields(experiments: Sequence[Experiment], sampled: Iterable[str] = ()) -> Varying:
    """The fields in which experiments differ, with those that will, since they are `sampled`."""
    by_method: dict[str, list[dict[str, Any]]] = {}
    for experiment in experiments:
        by_method.setdefault(type(experiment.method).__name__, []).append(overrides.flatten_settings(experiment))
    fields = {}
    for method, flats in by_method.items():
        keys = dict.fromkeys(itertools.chain.from_iterable(flats))
        keys = {key: None for key in keys if not key.startswith(("runtime", "data_digest"))}
        needed = {*distinguishing_fields(flats, keys), *sampled} - {"method"}
        fields[method] = [k for k in keys if k in needed]
    return fields


def trial_name(flat: Mapping[str, Any], fields: Varying) -> str:
    """`PFDM epsilon=10 clients=4`, from `flatten_settings` of an experiment or of its file, and `varying_fields`."""
    method = bare_name(flat["method"])
    parts = [f"{k.rpartition('.')[2]}={overrides.format_value(flat[k])}" for k in fields.get(method, ()) if k in flat]
    return " ".join([method, *parts])


def varying(experiments: Sequence[Experiment], sampled: Iterable[str] = ()) -> Callable[[Experiment], str]:
    """A function that names an experiment by `trial_name`."""
    fields = varying_fields(experiments, sampled)
    return lambda experiment: trial_name(overrides.flatten_settings(experiment), fields)
