"""Searchers of a sweep: the planned trials in order, or Optuna with its study in the sweep's folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.search import Searcher

from raydiff.experiment.config import Experiment
from raydiff.experiment.overrides import short
from raydiff.runtime.plan import Planned, written

LOG, NAME = "optuna.log", "sweep"
MAX_SHOWN = 10


class PlannedTrials(Searcher):
    """Suggests these trials in their order."""

    def __init__(self, trials: Iterable[Experiment]) -> None:
        super().__init__()
        self._trials = iter(trials)

    def suggest(self, trial_id: str) -> Any:
        experiment = next(self._trials, None)
        return Searcher.FINISHED if experiment is None else {"experiment": written(experiment)}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Nothing depends on results."""


def metric(plan: Planned) -> str:
    """The metric that a search reads: on the validation split, so that the test split only judges."""
    return plan.metric.replace("eval/", "validation/")


def mode(plan: Planned) -> str:
    """min or max."""
    return "min" if plan.lower_is_better else "max"


def optuna_of(plan: Planned, done: int) -> Searcher:
    """Return Optuna over a study that a resumed sweep continues. `done`: trials suggested so far."""
    from ray.tune.search.optuna import OptunaSearch

    domains = {"uniform": tune.uniform, "loguniform": tune.loguniform, "randint": tune.randint}
    space: Any = {
        path: tune.choice(list(values)) if kind == "choice" else domains[kind](*values)
        for path, (kind, values) in plan.space.items()
    }
    also = plan.asked.also
    return OptunaSearch(
        {"values": space},
        metric=[metric(plan), *also] if also else metric(plan),
        mode=[mode(plan), *["min"] * len(also)] if also else mode(plan),
        seed=plan.base.seed + done,  # The same seed would suggest the same points again.
        storage=_storage(plan.folder),
        study_name=NAME,
    )


def best(plan: Planned) -> Iterator[str]:
    """Lines on the study's best trials, or its Pareto front, and the command that shows it; none without a study."""
    import optuna

    if not (log := plan.folder / LOG).exists():
        return
    trials = optuna.load_study(storage=_storage(plan.folder), study_name=NAME).best_trials
    which = f"Pareto-optimal trials (at most {MAX_SHOWN}) by" if plan.asked.also else "best trial by"
    yield f"Optuna's {which} {', '.join([metric(plan), *plan.asked.also])}:"
    for trial in sorted(trials, key=lambda trial: trial.values)[:MAX_SHOWN]:
        values = ", ".join(f"{value:.4g}" for value in trial.values)
        fields = (f"{path.removeprefix('values/')}={short(value)}" for path, value in trial.params.items())
        yield f"  {values}: {' '.join(fields)}"
    yield f"all of Optuna's trials: optuna-dashboard {log}    (pip install optuna-dashboard)"


def _storage(folder: Path) -> Any:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return JournalStorage(JournalFileBackend(str(folder / LOG)))
