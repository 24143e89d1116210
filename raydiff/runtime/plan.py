"""Plan of a sweep: a study with the given options, every trial resolved and checked. Nothing is written."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from raydiff import lookup, methods
from raydiff.data import datasets
from raydiff.evaluation.metrics import lower_is_better
from raydiff.evaluation.suite import Evaluation
from raydiff.experiment import overrides, trial
from raydiff.experiment.config import Experiment
from raydiff.experiment.study import Study, trials
from raydiff.runtime import sweep_folder
from raydiff.storage.lease import Lease
from raydiff.storage.object_store import is_bucket

Search = Literal["grid", "random", "optuna", "asha"]
Space = Mapping[str, tuple[str, tuple[Any, ...]]]
"""Field path -> (uniform, loguniform, randint or choice; its bounds or values)."""


@dataclass(frozen=True, kw_only=True)
class SweepRequest:
    """Options of `raydiff sweep`."""

    overrides: Mapping[str, Any] = field(default_factory=dict)  # field path -> value in every trial
    grid: Mapping[str, Sequence[Any]] | None = None  # axes in place of the study's
    baselines: bool = True  # whether to run the study's baselines too
    search: Search = "grid"
    sample: Space = field(default_factory=dict)  # the space of random search and Optuna
    samples: int = 16  # number of samples of it
    metric: str | None = None  # objective of Optuna and ASHA, and of the best trial; None: the evaluation's own
    concurrent: int | None = None  # maximum of concurrent trials; None: as many as fit
    budget_s: float | None = None  # stop all trials after so many seconds
    stop_on_error: bool = False  # end the sweep when a trial fails
    samplers: bool = False  # log every finished trial's sampler to MLflow, not only the best one's
    experiment: str | None = None  # MLflow experiment of the runs; None: raydiff- and the name of the data set


@dataclass(frozen=True, kw_only=True)
class Planned:
    """Trials that are resolved and checked against the data."""

    preset: str
    folder: Path  # of the sweep, which may not exist yet; its name is the sweep's
    owner: Lease | None = None  # of the driver that runs the sweep
    base: Experiment
    trials: tuple[Experiment, ...]  # of a grid or random search; with Optuna, only the baselines
    secret: bytes  # the sweep's noise secret
    asked: SweepRequest = SweepRequest()
    metric: str  # objective of Optuna and ASHA, and of the best trial shown; measured on the validation split
    lower_is_better: bool = True
    repeats: int = 0  # how many samples, or cells of the grid, are the experiment of another one, and no trials
    tuned: tuple[str, ...] = ()  # one line per method with the settings that `raydiff tune` has chosen

    @property
    def space(self) -> Space:
        """Optuna's search space."""
        return self.asked.sample if self.asked.search == "optuna" else {}

    @property
    def suggested(self) -> int:
        """Number of trials that Optuna suggests."""
        return self.asked.samples if self.asked.search == "optuna" else 0

    @property
    def total(self) -> int:
        """Number of all trials."""
        return len(self.trials) + self.suggested

    @property
    def most_clients(self) -> int:
        """Number of clients of the largest trial."""
        return max(experiment.clients for experiment in (self.base, *self.trials))

    @property
    def server_workers(self) -> int:
        """Largest number of processes that train a trial's server."""
        return max(experiment.numerics.server_workers for experiment in (self.base, *self.trials))


def written(experiment: Experiment) -> str:
    """Serialise an experiment for Tune, without the noise secret, since Tune keeps it on disk."""
    return json.dumps(overrides.to_dict(trial.without_secret(experiment)))


def experiment_of(config: Mapping[str, Any]) -> Experiment:
    """Return the experiment of a Tune config, which was `written`."""
    experiment: Experiment = overrides.from_dict(json.loads(config["experiment"]), Experiment)
    return experiment


def plan(preset: str, study: Study, asked: SweepRequest, *, name: str) -> Planned:
    """Resolve every trial of the study for the sweep of this name. Raises ValueError for contradicting settings."""
    study.check_chosen(asked.overrides, {**(asked.grid or {}), **asked.sample})
    base: Experiment = overrides.override(study.experiment, asked.overrides)
    evaluation = base.evaluation or Evaluation()
    metric = asked.metric or evaluation.headline(datasets.load(base.data).modality)
    lower = True
    if asked.metric is not None or asked.search in ("asha", "optuna"):  # Else it is only displayed.
        lower = lower_is_better(metric, evaluation, newcomers=base.newcomers is not None)
    _check(asked, base, metric)
    if asked.search in ("asha", "optuna") and base.evaluation is not None and base.evaluation.every == 0:
        base = overrides.override(base, {"evaluation.every": 1 if asked.search == "asha" else base.method.rounds})
    beside = study.beside if asked.baselines and "method" not in asked.overrides else ()
    if asked.search in ("random", "optuna"):
        draws = _draw(asked.sample, asked.samples, base.seed) if asked.search == "random" else []
        planned = [overrides.override(base, values) for values in draws] + trials(base, {}, beside)[1:]
    elif asked.grid is not None:
        planned = trials(base, asked.grid, beside)
    else:
        grid = {k: v for k, v in study.grid.items() if k not in asked.overrides and overrides.has_path(base, k)}
        planned = trials(base, grid, beside) + study.others(asked.overrides, baselines=asked.baselines)
    methods.check_names([type(e.method) for e in planned])
    folder = sweep_folder.place(base, name)
    secret = trial.planned_secret(folder, base)
    unique = {e.digest: e for e in (trial.resolve(e, secret) for e in planned)}
    return Planned(
        preset=preset,
        folder=folder,
        base=trial.resolve(base, secret),
        trials=tuple(unique.values()),
        repeats=len(planned) - len(unique),
        secret=secret,
        asked=asked,
        metric=metric,
        lower_is_better=lower,
        tuned=_tuned(study, asked),
    )


def _tuned(study: Study, asked: SweepRequest) -> tuple[str, ...]:
    """One line per method with its tuned settings that are not overridden."""
    main = lookup.name_on_disk(type(study.experiment.method))
    lines = []
    for name, settings in study.tuned.items() if "method" not in asked.overrides else ():
        left = {path: v for path, v in settings.items() if name != main or path not in asked.overrides}
        if left and (name == main or asked.baselines):
            shown = (f"{path.removeprefix('method.')} {overrides.short(value)}" for path, value in left.items())
            lines.append(f"{name}: {', '.join(shown)}")
    return tuple(lines)


def _check(asked: SweepRequest, base: Experiment, metric: str) -> None:
    numbers = {"--samples": asked.samples, "--max-concurrent": asked.concurrent, "--time-budget": asked.budget_s}
    for option, value in numbers.items():
        if value is not None and not value > 0:
            raise ValueError(f"{option} must be positive, got {value}")
    if asked.search in ("asha", "optuna"):
        if base.evaluation is None:
            raise ValueError(f"--search {asked.search} needs the evaluation that --protocol-only switches off")
        if metric.endswith(("/major", "/minor")) or metric.startswith("new/"):  # Unseen clients join after all rounds.
            raise ValueError(f"--search {asked.search} needs a metric of rounds over all classes, got {metric}")
    if asked.search == "optuna" and is_bucket(base.runtime.storage):
        raise ValueError("--search optuna keeps its study in a file of the storage, which must then be a folder")
    if bool(asked.sample) != (asked.search in ("random", "optuna")):
        raise ValueError("--search random or optuna needs --sample, and no other search takes it")


def _draw(space: Space, count: int, seed: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    kinds: dict[str, Callable[[Any], Any]] = {
        "choice": lambda values: values[rng.integers(len(values))],
        "randint": lambda ends: int(rng.integers(*ends)),
        "uniform": lambda ends: float(rng.uniform(*ends)),
        "loguniform": lambda ends: math.exp(rng.uniform(math.log(ends[0]), math.log(ends[1]))),
    }
    return [{path: kinds[kind](values) for path, (kind, values) in space.items()} for _ in range(count)]
