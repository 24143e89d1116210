"""A sweep from its plan to its report: place its trials, run them, follow them, finish. A refused plan has no files."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from raydiff import lookup, process
from raydiff.experiment import spending, study, trial
from raydiff.runtime import one_process, sweep_folder
from raydiff.runtime.finish import Ended, Finisher, Reporter
from raydiff.runtime.plan import Planned
from raydiff.storage import copies, object_store, storage
from raydiff.storage.lease import Lease, hold_lease
from raydiff.tracking.mlflow_writer import Mlflow


def start(
    planned: Planned,
    *,
    resume: bool = False,
    extend: bool = False,
    report: Reporter | None = None,
    track: bool = True,
    call: str = "",
) -> Ended:
    """Run a sweep: its trials without an outcome, then the report.

    Args:
        planned: What to run.
        resume: Whether a sweep of this name may exist.
        extend: Whether that sweep gets more trials.
        report: What is written when the trials are over.
        track: Whether MLflow records the sweep.
        call: The Python call that starts the sweep; "": this process's command line.

    Returns:
        How the sweep ended.

    Raises:
        ValueError: If the sweep may not start, or not here.
    """
    named = {*planned.packages, *lookup.PACKAGES, *(lookup.ALLOWED.get() or ())}
    with contextlib.ExitStack() as stack:
        stack.enter_context(lookup.allowed_packages(named))  # Folders of other sweeps may name other people's code.
        planned = replace(planned, owner=_take(planned, stack))
        about = _describe(planned, resume=resume, extend=extend, call=call)
        _announce(planned, report)
        mlflow = _open_mlflow(planned, about) if track else None
        finisher = Finisher(planned.folder, mlflow, report)
        return finisher.report(_run(planned, about, finisher))


def _take(planned: Planned, stack: contextlib.ExitStack) -> Lease:
    """Hold the sweep's lease, so that no other driver runs it."""
    folder = sweep_folder.create_folder(planned.base, planned.folder.name)
    with process.waiting(f"the storage {storage.storage_at(folder).describe('')}"):
        lease = stack.enter_context(hold_lease(folder))
        copies.download_sweep(folder)  # Only now: before, another driver of this machine may be at work there.
    return lease


def _describe(planned: Planned, *, resume: bool, extend: bool, call: str) -> sweep_folder.Plan:
    """The content of sweep.json. Raises ValueError where the sweep may not continue so, or would overspend."""
    folder = planned.folder
    begun = (folder / "sweep.json").exists()
    if extend and not begun:
        raise ValueError(f"there is no sweep {folder.name} in {folder.parent} to extend")
    about = sweep_folder.describe_sweep(
        folder,
        trials=planned.trials,
        search=planned.search_record,
        resume=resume,
        extend=extend,
        secret=planned.secret,
        data=planned.base.data.name,
        experiment=planned.asked.experiment,
        call=call,
    )
    if not begun:  # In a resumed sweep each trial checks the budget for itself.
        spending.check_spending(planned.trials, folder)
    if planned.search.metric:
        about["metric"] = (str(planned.metric), planned.lower_is_better)
    if planned.tuned:
        about["tuned"] = planned.tuned
    return about


def _announce(planned: Planned, report: Reporter | None) -> None:
    folder = planned.folder
    if object_store.is_bucket(planned.base.runtime.storage) and planned.base.runtime.noise_secret is None:
        print(f"only this machine has the noise secret, in {folder / 'secret'}: nothing goes on without it", flush=True)
    if report and report.write:
        print(f"sweep {folder.name}: {planned.total} trials in {folder}", flush=True)
        for line in (*planned.refused, *(f"tuned: {line}" for line in planned.tuned)):
            print(line, flush=True)


def _open_mlflow(planned: Planned, about: sweep_folder.Plan) -> Mlflow:
    """Start the writer of the sweep's MLflow runs: opening a new store takes 10 s, in which Ray starts."""
    trials = [planned.base, *planned.trials] if planned.suggested else planned.trials
    mlflow = sweep_folder.build_writer(
        planned.folder,
        planned.preset,
        base=planned.base,
        about=about,
        swept=study.varying_fields(
            trials, planned.space if planned.total > 1 else ("method.epsilon", "clients", "seed")
        ),
    )
    mlflow.start()
    return mlflow


def _begin(planned: Planned, about: sweep_folder.Plan, mlflow: Mlflow | None) -> None:
    """Write the sweep's folder and its MLflow run, once nothing is refused any more."""
    folder = planned.folder
    if mlflow:
        mlflow.wait_ready()
        about["opened_by"] = sweep_folder.describe_view(folder, mlflow.experiment_id, about["id"])
    sweep_folder.write_sweep(folder, about, planned.secret)
    if mlflow:
        mlflow.begin()


def _run(planned: Planned, about: sweep_folder.Plan, finisher: Finisher) -> Ended:
    """Begin the sweep and run its trials. After an interrupt, trials that began are killed."""
    begun = False
    try:
        with _prepare(planned, finisher.lose_head) as run:
            _begin(planned, about, finisher.mlflow)
            begun = True
            return run()
    except KeyboardInterrupt as e:
        if not begun:
            raise
        finisher.kill_open("interrupted")
        return Ended(planned.folder, process.signal_of(e))
    except BaseException:  # The storage cannot be written any more, say, or code of the user's exits.
        if begun:
            finisher.close_mlflow("KILLED")
        raise


@contextlib.contextmanager
def _prepare(planned: Planned, lost: Callable[[str], None]) -> Iterator[Callable[[], Ended]]:
    """Yield what runs the trials, in this process or on Ray. Raises ValueError where they cannot run.

    `lost` is called, in a thread, with the reason why Ray's head is gone.
    """
    folder = planned.folder
    if _finished(planned):
        print(f"sweep {folder.name} is finished, nothing runs: its results are in {folder}", flush=True)
        yield lambda: Ended(folder)
    elif planned.base.runtime.pool == "local" or planned.server_workers > 1:
        with one_process.prepare_places(planned) as place:
            yield lambda: one_process.run_in_process(planned, place)
    else:
        from raydiff.runtime import tuner
        from raydiff.runtime.cluster import join_cluster, watch_head
        from raydiff.runtime.follow import SweepProgress

        since = time.monotonic()
        with join_cluster() as nodes:
            slot = tuner.choose_slot(planned, nodes)
            print(f"ready after {time.monotonic() - since:.0f} s: {slot.workers} worker(s) per trial", flush=True)

            def run() -> Ended:
                with watch_head(lost):
                    return tuner.run_on_tune(planned, slot, SweepProgress(planned))

            yield run


def _finished(planned: Planned) -> bool:
    """Return whether each trial has an outcome that a resumed sweep keeps."""
    suggestions = planned.suggestions()
    trials = (*planned.trials, *suggestions.distinct.values())
    ends = [trial.Trial(experiment, planned.folder).outcome() for experiment in trials]
    kept = all(end and not {end["outcome"], end.get("reason")} & sweep_folder.UNFINISHED for end in ends)
    return kept and next(suggestions.more(), None) is None
