"""The failed trials of a sweep once more: the same trials in the same folder, those that ran out of GPU memory on a
larger slot."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from raydiff.experiment.config import Experiment
from raydiff.experiment.overrides import override
from raydiff.experiment.trial import Trial
from raydiff.runtime import tuner
from raydiff.runtime.gpu_memory import doubled
from raydiff.runtime.plan import Planned
from raydiff.runtime.progress import Progress

DOUBLINGS = 2  # A slice is doubled this often in one command.


def run(plan: Planned, nodes: Sequence[Mapping[str, float]]) -> bool:
    """Run the plan's trials again, all of which have failed; True after an interrupt.

    Where a slice of a GPU was too small it is doubled, and doubled once more if it is too small again. What
    fits on no node stays failed, and one line says why.
    """
    deadline = None if plan.asked.budget_s is None else time.monotonic() + plan.asked.budget_s
    waiting = list(plan.trials)
    for _ in range(DOUBLINGS):
        slots: dict[tuple[float, float], list[Experiment]] = {}
        for experiment in waiting:
            given = larger(experiment, Trial(experiment, plan.folder))
            slots.setdefault((given.runtime.worker_share, given.runtime.gpu_server), []).append(given)
        for _, trials in sorted(slots.items()):
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            asked = replace(plan.asked, budget_s=left)
            if _again(replace(plan, trials=tuple(trials), asked=asked), nodes):
                return True
        waiting = [e for e in waiting if _too_small(Trial(e, plan.folder))]
    return False


def larger(experiment: Experiment, this: Trial) -> Experiment:
    """The experiment on a slot with twice the slice that was too small when it last failed, or as it is."""
    outcome = this.outcome() or {}
    if not (slice_ := outcome.get("slice")):
        return experiment
    wanted = max(doubled(slice_["share"]), getattr(experiment.runtime, slice_["field"]))
    found: Experiment = override(experiment, {f"runtime.{slice_['field']}": wanted})
    return found


def _too_small(this: Trial) -> bool:
    slice_ = (this.outcome() or {}).get("slice", {})
    return float(slice_.get("share", 1.0)) < 1


def _again(plan: Planned, nodes: Sequence[Mapping[str, float]]) -> bool:
    """One slot's trials."""
    runtime = plan.trials[0].runtime
    slices = {f"runtime.{k}": getattr(runtime, k) for k in ("gpu_per_worker", "gpu_server")}
    plan = replace(plan, base=override(plan.base, slices))
    try:
        shape = tuner.fitted(plan, nodes, most=plan.base.runtime.workers)
    except ValueError as e:
        print(f"{len(plan.trials)} trial(s) stay failed: {e}", flush=True)
        return False
    for experiment in plan.trials:
        (Trial(experiment, plan.folder).folder / "outcome.json").unlink(missing_ok=True)
    return tuner.run(plan, shape, Progress(plan))
