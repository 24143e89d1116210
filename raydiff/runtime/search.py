"""What a search reads of a trial and varies, and Optuna's study, which lies in the sweep's folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ray import tune

from raydiff.experiment.overrides import short
from raydiff.runtime.plan import Planned

LOG, NAME = "optuna.log", "sweep"
SHOWN = 10
"""Trials that are named."""


def metric(plan: Planned) -> str:
    """What is searched for: on the validation split; the test split only judges."""
    return plan.metric.replace("eval/", "validation/")


def mode(plan: Planned) -> str:
    """min or max."""
    return "min" if plan.lower_is_better else "max"


def space(plan: Planned) -> dict[str, Any]:
    """What Tune draws of each field."""
    kinds = {"uniform": tune.uniform, "loguniform": tune.loguniform, "randint": tune.randint}
    return {
        path: tune.choice(list(values)) if kind == "choice" else kinds[kind](*values)
        for path, (kind, values) in plan.space.items()
    }


def optuna_of(plan: Planned, done: int) -> Any:
    """Optuna over a study that a resumed sweep goes on with, so that it knows what it has learned."""
    from ray.tune.search.optuna import OptunaSearch

    seed = plan.base.seed + done  # The same seed would suggest the same points again.
    metrics, modes = [metric(plan), *plan.asked.also], [mode(plan), *["min"] * len(plan.asked.also)]
    aims = {"metric": metrics, "mode": modes} if plan.asked.also else {"metric": metrics[0], "mode": modes[0]}
    return OptunaSearch(**aims, seed=seed, storage=_storage(plan.folder), study_name=NAME)


def best(plan: Planned) -> Iterator[str]:
    """Lines on the trials of a finished study of which none is better in all that was searched for, and what shows the
    study; none where there is no study."""
    import optuna

    if not (log := plan.folder / LOG).exists():
        return
    names = [metric(plan), *plan.asked.also]
    found = optuna.load_study(storage=_storage(plan.folder), study_name=NAME).best_trials
    which = "none is better in all of" if plan.asked.also else "the best by"
    yield f"of Optuna's trials {which} {', '.join(names)}:"
    for trial in sorted(found, key=lambda one: one.values)[:SHOWN]:
        values = ", ".join(f"{value:.4g}" for value in trial.values)
        fields = (f"{path.removeprefix('values/')}={short(value)}" for path, value in trial.params.items())
        yield f"  {values}: {' '.join(fields)}"
    if len(found) > SHOWN:
        yield f"  and {len(found) - SHOWN} more"
    yield f"what Optuna tried: optuna-dashboard {log}    (pip install optuna-dashboard)"


def _storage(folder: Path) -> Any:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return JournalStorage(JournalFileBackend(str(folder / LOG)))
