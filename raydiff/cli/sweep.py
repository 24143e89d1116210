"""Sweep private federated diffusion on Ray, recorded in MLflow.

raydiff sweep                                         the main job: embedded data, local Ray, local MLflow
raydiff sweep digits --grid method.epsilon=1,5 seed=0,1,2    these axes in place of the preset's
raydiff sweep digits --search random --sample method.clip=uniform:3,8 --samples 20 --scheduler asha
ray job submit --working-dir . -- python jobs/sweep.py mnist --name mine --resume    on a cluster: start, or continue
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from raydiff.cli import arguments
from raydiff.cli.options import Fields, parse_command
from raydiff.experiment import overrides, presets, searchers
from raydiff.experiment.searchers import Chosen
from raydiff.experiment.study import Study
from raydiff.settings import Count, Positive

if TYPE_CHECKING:
    from raydiff.runtime.plan import Planned


@dataclass(frozen=True, kw_only=True)
class SweepOptions(arguments.ExperimentOptions):
    grid: tuple[str, ...] | None = None
    """Axes, in place of the preset's: a.b=1,2,3 c=x,y."""
    sample: tuple[str, ...] = ()
    """Fields that a search draws: a.b=loguniform:1e-4,1e-2."""
    samples: Count | None = None
    """How many different experiments a search draws (default: 16)."""
    search: str | None = None
    """What proposes trials (default: grid): grid, random, optuna, or module:Name of one of Optuna's samplers, of Tune's
    searchers or of your own, with --search.KEYWORD VALUE for its arguments."""
    scheduler: str | None = None
    """What stops trials early: asha, median, or module:Name of Tune's, with --scheduler.KEYWORD VALUE."""
    metric: str | None = None
    """Objective of a search and a scheduler (default: the distance on all classes)."""
    no_baselines: bool = False
    """Leave out the arms that the preset compares with."""
    max_concurrent: Count | None = None
    """Trials at the same time (default: as many as fit)."""
    time_budget: Positive | None = None
    """Seconds after which no trial goes on."""
    on_error: Literal["continue", "stop"] = "continue"
    """Whether a failed trial ends the sweep."""
    dry_run: bool = False
    """Print the number of trials and the resources that they need; write nothing."""
    extend: bool = False
    """With --resume: the grid may have grown."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.extend and not self.resume:
            raise ValueError("--extend is for a sweep that exists: give its --name, and --resume")


def main(argv: Sequence[str]) -> int:
    """Plan, check, run, report."""
    since = time.monotonic()
    preset, study, rest = arguments.split_preset(argv, presets.MAIN)
    options, fields = parse_command(SweepOptions, rest, __doc__, study.experiment)
    from raydiff.report.after_sweep import FULL
    from raydiff.runtime import launch

    plan = plan_request(preset, study, options, fields)
    if options.dry_run:
        return _dry_run(plan)
    ended = launch.start(plan, resume=options.resume, extend=options.extend, report=FULL)
    print(f"whole run: {time.monotonic() - since:.0f} s")
    print(f"open the runs {ended.opened_by}")
    ended.print_incomplete()
    return ended.code


def plan_request(preset: str, study: Study, options: SweepOptions, fields: Fields) -> Planned:
    """The sweep that the command line asks for. Raises ValueError where its parts contradict each other."""
    from raydiff.runtime import sweep_folder
    from raydiff.runtime.plan import SweepRequest, plan_sweep

    of_searcher, fields = arguments.keywords(fields, "search")
    of_scheduler, fields = arguments.keywords(fields, "scheduler")
    changes = arguments.overrides(study.experiment, fields)
    base = overrides.override(study.experiment, changes)
    asked = SweepRequest(
        overrides=changes,
        grid=None if options.grid is None else arguments.axes(base, options.grid),
        baselines=not options.no_baselines,
        concurrent=options.max_concurrent,
        budget_s=options.time_budget,
        stop_on_error=options.on_error == "stop",
        experiment=options.experiment,
    )
    sample = arguments.assignments(options.sample, "a sampled field looks like method.clip=loguniform:1,10")
    search = study.search.changed(
        searcher=_choose(options.search, of_searcher, study.search.searcher),
        space=searchers.parse_space(base, sample) or None,
        samples=options.samples,
        scheduler=_choose(options.scheduler, of_scheduler, study.search.scheduler),
        metric=options.metric,
    )
    study = replace(study, search=search)
    return plan_sweep(preset, study, asked, name=options.name or sweep_folder.fresh_name(preset))


def _choose(name: str | None, keywords: Mapping[str, Any], before: Chosen | None) -> Chosen | None:
    """What the command line names, or the study, with the keyword arguments of both where it is the same."""
    known, before_keywords = searchers.named(before) if before else ("", {})
    kept = before_keywords if name in (None, known) else {}
    chosen = name or known
    if keywords and not chosen:
        raise ValueError(f"--scheduler.{next(iter(keywords))} needs a --scheduler")
    return (chosen, {**kept, **keywords}) if chosen else None


def _dry_run(plan: Planned) -> int:
    """Print the resources that the sweep would take, without starting Ray or writing files."""
    from raydiff.runtime import tuner
    from raydiff.runtime.cluster import join_cluster
    from raydiff.runtime.place import check_bundles_fit, count_fitting, format_resources, this_machine, total_of

    trials = [*plan.trials, *[plan.base] * plan.suggested]
    with join_cluster() if os.environ.get("RAY_ADDRESS") else contextlib.nullcontext([this_machine()]) as nodes:
        slot = tuner.slot_for(plan, nodes)
        check_bundles_fit(slot.bundles, slot.total, nodes)
        slots = min(count_fitting(slot.bundles, nodes), plan.asked.concurrent or len(trials), len(trials))
        print(f"{len(trials)} trials, {slots} at once: each {slot.workers} worker(s), {format_resources(slot.total)}")
        print(f"available: {format_resources(total_of(nodes))} on {len(nodes)} node(s)", flush=True)
    return 0
