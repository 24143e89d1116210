"""Plan of a sweep: a study with the given options, every trial resolved and checked. Nothing is written."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raydiff import lookup, methods
from raydiff.data import datasets
from raydiff.evaluation.evaluation_settings import Evaluation
from raydiff.evaluation.sample_metrics import metric_to_rank_by
from raydiff.experiment import overrides, trial
from raydiff.experiment.config import Experiment
from raydiff.experiment.searchers import Search, Space, build_searcher, check_space, is_adaptive, named
from raydiff.experiment.study import Study, trials
from raydiff.formats.json_files import dumps
from raydiff.formats.metric_records import Metric
from raydiff.runtime import sweep_folder
from raydiff.runtime.search import Suggestions
from raydiff.settings import Count, Positive, settings
from raydiff.storage.lease import Lease


@settings(frozen=True, kw_only=True)
class SweepRequest:
    """Options of `raydiff sweep`."""

    overrides: Mapping[str, Any] = field(default_factory=dict)  # field path -> value in every trial
    grid: Mapping[str, Sequence[Any]] | None = None  # axes in place of the study's
    baselines: bool = True  # whether to run the study's baselines too
    concurrent: Count | None = None  # maximum of concurrent trials; None: as many as fit
    budget_s: Positive | None = None  # stop all trials after so many seconds
    stop_on_error: bool = False  # end the sweep when a trial fails
    experiment: str | None = None  # MLflow experiment of the runs; None: raydiff- and the name of the data set


@dataclass(frozen=True, kw_only=True)
class Planned:
    """Trials that are resolved and checked against the data."""

    preset: str
    folder: Path  # of the sweep, which may not exist yet; its name is the sweep's
    owner: Lease | None = None  # of the driver that runs the sweep
    base: Experiment
    trials: tuple[Experiment, ...]  # with an adaptive searcher only the baselines
    suggested: int = 0  # number of trials that an adaptive searcher suggests
    secret: bytes  # the sweep's noise secret
    asked: SweepRequest = SweepRequest()
    search: Search = Search()
    metric: Metric  # what trials are compared by
    refused: tuple[str, ...] = ()  # settings that a searcher has drawn and that are no experiment
    tuned: tuple[str, ...] = ()  # one line per method with the settings that `raydiff tune` has chosen

    @property
    def space(self) -> Space:
        """The space of an adaptive searcher."""
        return self.search.space if self.suggested else {}

    @property
    def search_record(self) -> dict[str, Any]:
        """How trials are chosen and stopped, as sweep.json has it."""
        fields = {
            "search": named(self.search.searcher),
            "scheduler": self.search.scheduler and named(self.search.scheduler),
            "space": {
                path: [kind, *map(overrides.format_value, values)] for path, (kind, values) in self.space.items()
            },
            "base": self.base.digest if self.suggested else None,
            "suggested": self.suggested,
        }
        return dict(json.loads(dumps(fields)))

    @property
    def objective(self) -> str:
        """Column that searcher and scheduler read: on the validation split, so that the test split only judges."""
        return str(replace(self.metric, split="validation"))

    @property
    def lower_is_better(self) -> bool:
        """Direction of the metric."""
        return bool(self.metric.lower_is_better)

    def suggestions(self, samples: int | None = None) -> Suggestions:
        """Return what the searcher suggests: so many experiments; by default those that are not planned."""
        searcher = build_searcher(
            self.search.searcher, self.search.space, seed=self.base.seed, lower_is_better=self.lower_is_better
        )
        return Suggestions(
            searcher,
            self.base,
            secret=self.secret,
            folder=self.folder,
            space=self.search.space,
            samples=self.suggested if samples is None else samples,
            objective=self.objective,
            planned={experiment.digest for experiment in self.trials},
        )

    @property
    def total(self) -> int:
        """Number of all trials."""
        return len(self.trials) + self.suggested

    @property
    def packages(self) -> set[str]:
        """Top-level packages, other than raydiff, that its trials name."""
        experiments = [replace(experiment, data_digest="") for experiment in (self.base, *self.trials)]
        return lookup.packages_in(" ".join(map(serialize_experiment, experiments)))

    @property
    def most_clients(self) -> int:
        """Number of clients of the largest trial."""
        return max(experiment.clients for experiment in (self.base, *self.trials))

    @property
    def server_workers(self) -> int:
        """Largest number of processes that train a trial's server."""
        return max(experiment.numerics.server_workers for experiment in (self.base, *self.trials))


def serialize_experiment(experiment: Experiment) -> str:
    """Serialise an experiment for Tune, without the noise secret, since Tune keeps it on disk."""
    return dumps(overrides.to_dict(trial.without_secret(experiment)))


def parse_experiment(config: Mapping[str, Any]) -> Experiment:
    """Return the experiment of a Tune config, which was `written`."""
    experiment: Experiment = overrides.from_dict(json.loads(config["experiment"]), Experiment)
    return experiment


def plan_sweep(preset: str, study: Study, asked: SweepRequest, *, name: str) -> Planned:
    """Resolve every trial of the study for the sweep of this name. Raises ValueError for contradicting settings."""
    search = study.search
    study.check_chosen(asked.overrides, {**(asked.grid or {}), **search.space})
    base: Experiment = overrides.override(study.experiment, asked.overrides)
    adaptive = is_adaptive(search.searcher)
    metric = _metric_to_compare_by(search.metric, base, guided=adaptive or search.scheduler is not None)
    _check(search, base, metric)
    if (adaptive or search.scheduler) and base.evaluation is not None and base.evaluation.every == 0:
        base = overrides.override(base, {"evaluation.every": 1 if search.scheduler else base.method.rounds})
    experiments = _without_search(study, asked, base)
    methods.check_names([type(e.method) for e in (base, *experiments)])
    folder = sweep_folder.locate_sweep(base, name)
    secret = trial.planned_secret(folder, base)
    unique = {e.digest: e for e in (trial.resolve_on_data(e, secret) for e in experiments)}
    planned = Planned(
        preset=preset,
        folder=folder,
        base=trial.resolve_on_data(base, secret),
        trials=tuple(unique.values()),
        suggested=search.samples if adaptive else 0,
        secret=secret,
        asked=asked,
        search=search,
        metric=metric,
        tuned=_describe_tuned(study, asked),
    )
    return _search(planned) if search.space else planned


def _search(planned: Planned) -> Planned:
    """Add all draws of a searcher that reads no results; ask any other for one, so that it fails here or never."""
    suggestions = planned.suggestions(1 if planned.suggested else planned.search.samples)
    drawn = suggestions.draw()
    if planned.suggested:
        return planned
    return replace(planned, trials=(*drawn, *planned.trials), refused=tuple(suggestions.refused))


def _metric_to_compare_by(name: str | None, base: Experiment, *, guided: bool) -> Metric:
    evaluation = base.evaluation or Evaluation()
    if name is None:
        headline = evaluation.headline(datasets.load_dataset(base.data).modality)
        if not guided:  # It is only displayed.
            return headline
        name = str(headline)
    return metric_to_rank_by(name, evaluation, unseen=base.unseen is not None)


def _without_search(study: Study, asked: SweepRequest, base: Experiment) -> list[Experiment]:
    """The trials that no searcher proposes: the grid, the arms beside it, and the study's other trials."""
    arms = study.beside if asked.baselines and "method" not in asked.overrides else ()
    if study.search.space:
        return trials(base, {}, arms)[1:]
    if asked.grid is not None:
        return trials(base, asked.grid, arms)
    grid = {k: v for k, v in study.grid.items() if k not in asked.overrides and overrides.has_path(base, k)}
    return trials(base, grid, arms) + study.others(asked.overrides, baselines=asked.baselines)


def _describe_tuned(study: Study, asked: SweepRequest) -> tuple[str, ...]:
    """One line per method of the sweep with its tuned settings that are not overridden."""
    if "method" in asked.overrides:
        return ()
    main = lookup.name_on_disk(type(study.experiment.method))
    names = study.tuned if asked.baselines else study.tuned.keys() & {main}
    lines = []
    for name in sorted(names):
        overridden = asked.overrides if name == main else ()
        values = [
            f"{path.removeprefix('method.')} {overrides.format_value(value)}"
            for path, value in study.tuned[name].items()
            if path not in overridden
        ]
        if values:
            lines.append(f"{name}: {', '.join(values)}")
    return tuple(lines)


def _check(search: Search, base: Experiment, metric: Metric) -> None:
    check_space(base, search.space)
    name, keywords = named(search.searcher)
    if name == "grid" and keywords:
        raise ValueError(f"the search grid takes no keywords, got {', '.join(keywords)}")
    if bool(search.space) != (name != "grid"):
        raise ValueError(f"the search {name} {'takes no sample' if search.space else 'needs a sample'}")
    if search.scheduler or is_adaptive(search.searcher):
        if base.evaluation is None:
            raise ValueError("a search or scheduler that reads metrics needs an evaluation, which is switched off")
        if metric.group in ("major", "minor") or metric.split == "unseen":  # Unseen clients join after all rounds.
            raise ValueError(f"a search or scheduler needs a metric of rounds over all classes, got {metric}")
    if search.scheduler:
        from raydiff.runtime.schedulers import build_scheduler

        build_scheduler(search.scheduler, objective=str(metric), lower_is_better=True, rounds=base.method.rounds)
