"""Optuna's search: its study is a file of the sweep's folder, and learns from the trials' files."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from typing import Any

from raydiff.experiment import overrides
from raydiff.experiment.config import Experiment
from raydiff.experiment.trial import Trial, resolve
from raydiff.formats.json_files import read_lines
from raydiff.runtime.plan import Planned

LOG, NAME = "optuna.log", "sweep"


def metric(plan: Planned) -> str:
    """The metric that a search reads: on the validation split, so that the test split only judges."""
    return plan.metric.replace("eval/", "validation/")


class Suggestions:
    """What Optuna has suggested and suggests next; nothing in a sweep without it. A suggestion stays open in its study
    until the trial has finished, so that a resumed sweep runs it again. Raises ValueError for an unreadable study."""

    def __init__(self, plan: Planned) -> None:
        self._plan = plan
        self._study: Any = _study(plan) if plan.suggested else None
        self.experiments: dict[int, Experiment] = {}  # number in the study -> experiment
        self.refused: dict[int, str] = {}  # number in the study -> why it cannot be an experiment
        self.distinct: dict[str, Experiment] = {}  # digest -> experiment, without those that are planned anyway
        self._planned = {e.digest for e in plan.trials}
        for trial in self._suggested():
            if trial.params.keys() == plan.space.keys():  # Else the driver was killed while Optuna wrote it.
                self._resolve(trial)

    @property
    def left(self) -> int:
        """The number of suggestions to come."""
        return max(0, self._plan.suggested - len(self.experiments) - len(self.refused))

    def more(self, skip: Callable[[Experiment | str], None]) -> Iterator[Experiment]:
        """Yield the suggestions to come, each when it is wanted. An experiment that is suggested again, or the reason
        why it is refused, is passed to `skip` instead."""
        while self.left:
            self.learn()
            before = len(self.distinct)
            number = self._resolve(self._study.ask(_distributions(self._plan)))
            if len(self.distinct) > before:
                yield self.experiments[number]
            else:
                skip(self.refused.get(number) or self.experiments[number])

    def learn(self) -> None:
        """Tell Optuna the results of the trials that have finished."""
        for number in [trial.number for trial in self._suggested() if not trial.state.is_finished()]:
            trial = Trial(self.experiments[number], self._plan.folder) if number in self.experiments else None
            if trial and (trial.outcome() or {}).get("outcome") == "finished":
                last = {k: v for line in read_lines(trial.folder / "metrics.jsonl") for k, v in line.items()}
                self._study.tell(number, last.get(metric(self._plan), math.nan))

    def _suggested(self) -> list[Any]:
        return self._study.trials if self._study else []

    def _resolve(self, trial: Any) -> int:
        number: int = trial.number
        try:
            experiment = resolve(overrides.override(self._plan.base, trial.params), self._plan.secret)
            self.experiments[number] = experiment
            self.distinct |= {} if experiment.digest in self._planned else {experiment.digest: experiment}
        except ValueError as e:
            fields = (f"{path.rpartition('.')[2]}={overrides.short(value)}" for path, value in trial.params.items())
            self.refused[number] = f"{' '.join(fields)}: FAILED, {e}"
        return number


def best(plan: Planned) -> Iterator[str]:
    """Lines on the study's best trial, if one has finished, and the command that shows them all."""
    for trial in _study(plan).best_trials[:1]:
        fields = " ".join(f"{path}={overrides.short(value)}" for path, value in trial.params.items())
        yield f"Optuna's best trial by {metric(plan)}: {trial.value:.4g}: {fields}"
    yield f"all of Optuna's trials: optuna-dashboard {plan.folder / LOG}    (pip install optuna-dashboard)"


def _distributions(plan: Planned) -> dict[str, Any]:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    kinds: dict[str, Callable[[Any], Any]] = {
        "choice": lambda values: CategoricalDistribution(list(values)),
        "randint": lambda ends: IntDistribution(ends[0], ends[1] - 1),
        "uniform": lambda ends: FloatDistribution(*ends),
        "loguniform": lambda ends: FloatDistribution(ends[0], ends[1], log=True),
    }
    return {path: kinds[kind](values) for path, (kind, values) in plan.space.items()}


def _study(plan: Planned) -> Any:
    """Open the study, which the lease of the sweep protects from other drivers; its own lock may be a dead one's."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    log = plan.folder / LOG
    try:
        log.with_name(f"{LOG}.lock").unlink(missing_ok=True)
        if log.exists():  # What follows the last whole line was cut short by a crash.
            os.truncate(log, log.read_bytes().rfind(b"\n") + 1)
        study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(log))),
            study_name=NAME,
            load_if_exists=True,
            direction="minimize" if plan.lower_is_better else "maximize",
        )
    except OSError as e:
        raise ValueError(f"Optuna's study {log} cannot be read and written: {e.strerror}") from None
    except Exception as e:  # Whatever Optuna raises where a line is not its own.
        remedy = "remove it and continue with --resume, which asks Optuna anew and runs no finished trial again"
        raise ValueError(f"Optuna's study {log} is damaged ({type(e).__name__}): {remedy}") from None
    # The same seed would suggest the same points again.
    study.sampler = optuna.samplers.TPESampler(seed=plan.base.seed + len(study.trials))
    return study
