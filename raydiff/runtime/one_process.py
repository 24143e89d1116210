"""Trials one after the other, with the coordinator in this process: `runtime.pool` local, or `server_workers`."""

import contextlib
import itertools
from typing import Any

from raydiff.experiment import study, trial
from raydiff.process import saying
from raydiff.runtime import estimate, finish, sweep_folder
from raydiff.runtime.place import Place, cap_memory
from raydiff.runtime.plan import Planned
from raydiff.storage import atomic_files, copies


def prepare_places(planned: Planned) -> contextlib.AbstractContextManager[Place]:
    """Return the context in which the trials run. Raises ValueError if they cannot run so."""
    if planned.search.scheduler or planned.asked.budget_s is not None:
        raise ValueError("a scheduler and a time budget need Ray Tune: set runtime.pool to ray")
    if planned.server_workers > 1:
        from raydiff.runtime import data_parallel

        return data_parallel.prepare_parallel_places(planned)
    runtime = planned.base.runtime
    cap_memory(max(runtime.gpu_per_worker, runtime.gpu_server))
    return contextlib.nullcontext(lambda this: (trial.local_executor(this), None))


def run_in_process(planned: Planned, place: Place) -> finish.Ended:
    """Run the trials without an outcome."""
    ended = finish.Ended(planned.folder)
    suggestions = planned.suggestions()
    experiments = [*planned.trials, *suggestions.distinct.values()]
    name = study.varying([planned.base, *experiments] if planned.suggested else experiments, planned.space)
    for count, experiment in enumerate(itertools.chain(experiments, suggestions.more()), 1):
        if experiment is None:  # The searcher waits for a trial, and none runs.
            break
        this = trial.Trial(experiment, planned.folder, planned.owner)
        if this.outcome() is not None:
            continue
        if planned.total > 1:
            print(f"[{count}/{planned.total}] {name(experiment)}", flush=True)
        _run_trial(this, place)
        if planned.asked.stop_on_error and (this.outcome() or {}).get("outcome") == "failed":
            return ended
    if planned.suggested:
        print(suggestions.summary(lower_is_better=planned.lower_is_better), flush=True)
    return ended


def _run_trial(this: trial.Trial, place: Place) -> None:
    """Raises ValueError where the storage cannot be written any more."""
    try:
        trial.begin(this)
        try:
            running = estimate.Running(this.folder, this.experiment)
            with saying(running.place, estimate.EVERY_S):
                executor, train = place(this)
                for result in trial.run_trial(this, executor, train=train):
                    copies.download(this.folder)
                    running.round = result["round"]
                    _print_round(result, this.experiment.method.rounds)
        except atomic_files.LeaseLost:  # Another driver owns the sweep now, and writes how the trial ends.
            raise
        except Exception as e:  # Every trial that began gets an outcome.
            trial.end_unfinished(this.folder, "failed", reason=str(e) or type(e).__name__)
    except OSError as e:  # The outcome cannot be written either: without one the trial is run again.
        if reason := sweep_folder.not_writable(e, this.sweep):
            raise ValueError(reason) from None
        raise


def _print_round(result: dict[str, Any], rounds: int) -> None:
    if not result["finished"]:
        loss = next((f", {k} {result[k]:.4f}" for k in ("train/loss", "server/loss") if k in result), "")
        print(f"round {result['round'] + 1}/{rounds}: {result['time/seconds']:.1f} s{loss}", flush=True)
        for who, why in result["rejected"].items():
            print(f"  rejected {who}: {why}", flush=True)
