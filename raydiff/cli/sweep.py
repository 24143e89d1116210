"""Sweep private federated diffusion on Ray, recorded in MLflow.

raydiff sweep                                         the main job: embedded data, local Ray, local MLflow
raydiff sweep digits --grid method.epsilon=1,5 seed=0,1,2    these axes in place of the preset's
raydiff sweep digits --model unet --clients 8 --partition dirichlet
raydiff sweep reproduce --paper pfdm --scale cpu      a paper's tables; raydiff claims says what came out
raydiff sweep digits --search random --sample method.clip=uniform:3,8 --samples 20
raydiff sweep digits --grid seed=0,1,2 --dry-run      trials, slots, GPUs and CPUs, and about how long
raydiff sweep digits --name mine --resume             start, or go on where it ended
raydiff sweep digits --name mine --resume --retry failed    run again what failed, and only that
raydiff sweep digits --name mine --resume --extend --grid AXES    the old axes with more values, the same sweep
ray job submit --working-dir . --runtime-env cluster/runtime_env.yaml -- python jobs/sweep.py mnist --name mine --resume
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from raydiff.cli import arguments
from raydiff.cli.parser import Parser
from raydiff.experiment import overrides
from raydiff.experiment.study import Study

if TYPE_CHECKING:
    from raydiff.runtime.plan import Planned


def main(argv: Sequence[str]) -> int:
    """Plan, check, run, report."""
    since = time.monotonic()
    preset, study, rest = arguments.preset(argv)
    options, fields = _options().parse_known_args(arguments.shorthand(rest))
    if options.help:
        print(arguments.help_text(__doc__, _options().format_help(), study.experiment))
        return 0
    _check_resumption(options)
    from raydiff.report.after_sweep import FULL
    from raydiff.runtime import launch, sweep_folder

    plan = planned(preset, study, options, fields)
    if options.dry_run:
        return _dry_run(plan)
    more = {"resume": options.resume, "extend": options.extend, "retry": options.retry is not None}
    ended = launch.start(plan, since=since, report=FULL, **more)
    print(f"whole run: {time.monotonic() - since:.0f} s")
    if ended.interrupted:
        print(f"\ninterrupted; continue with: {sweep_folder.resume_command(plan.folder.name)}")
    print(f"open the runs {ended.opened_by}")
    if plan.asked.search == "optuna":
        from raydiff.runtime import search as searched

        print("\n".join(searched.best(plan)))
    return ended.code


def planned(preset: str, study: Study, options: argparse.Namespace, fields: Sequence[str]) -> Planned:
    """What the command line asks for. Raises ValueError for what does not fit together."""
    from raydiff.runtime import sweep_folder
    from raydiff.runtime.plan import Asked, plan

    given = arguments.overrides(study.experiment, fields)
    base = overrides.override(study.experiment, given)
    if options.log_samplers and base.evaluation is None:
        raise ValueError("--log-samplers uploads the clients' own models, which --protocol-only keeps with them")
    asked = Asked(
        given=given,
        grid=arguments.axes(base, options.grid) if options.grid else None,
        baselines=not options.no_baselines,
        search=options.search,
        sample=arguments.distributions(base, options.sample),
        samples=options.samples,
        metric=options.metric[0] if options.metric else None,
        also=tuple(options.metric[1:]),
        concurrent=options.max_concurrent,
        budget_s=options.time_budget,
        stop_on_error=options.on_error == "stop",
        samplers=options.log_samplers,
        experiment=options.experiment,
    )
    return plan(preset, study, asked, name=options.name or sweep_folder.fresh_name(preset))


def _options() -> Parser:
    p = Parser("sweep [PRESET]", __doc__, fields=True)
    p.add_argument("--grid", nargs="+", default=None, help="axes, in place of the preset's: a.b=1,2,3 c=x,y")
    p.add_argument("--sample", nargs="+", default=[], help="sampled fields: a.b=loguniform:1e-4,1e-2 (random, optuna)")
    p.add_argument("--samples", type=int, default=16, help="how many samples")
    p.add_argument("--search", choices=("grid", "random", "optuna", "asha"), default="grid")
    p.add_argument(
        "--metric",
        action="append",
        default=[],
        help="what is best, and what Optuna and ASHA search for (default: eval/fd_cnn/all, kd_cnn or utility_loss); "
        "given again, what Optuna weighs against it: privacy/epsilon_server, comm/bytes_up",
    )
    p.add_argument("--no-baselines", action="store_true", help="leave out what the preset compares with")
    p.add_argument("--max-concurrent", type=int, default=None, help="trials side by side (default: as many as fit)")
    p.add_argument("--time-budget", type=float, default=None, help="seconds after which no trial goes on")
    p.add_argument("--on-error", choices=("continue", "stop"), default="continue")
    p.add_argument("--log-samplers", action="store_true", help="log every trial's sampler to MLflow, with its weights")
    p.add_argument("--experiment", default=None, help=arguments.EXPERIMENT)
    p.add_argument("--dry-run", action="store_true", help="what it would need, and about how long; nothing is kept")
    p.add_argument("--name", default=None, help="the sweep's name (default: preset and time)")
    p.add_argument("--resume", action="store_true", help="continue the sweep of this name if it exists")
    p.add_argument("--extend", action="store_true", help="with --resume: the grid may have grown")
    p.add_argument(
        "--retry",
        choices=("failed",),
        default=None,
        help="with --resume: run again the trials that failed, and no other",
    )
    return p


def _check_resumption(options: argparse.Namespace) -> None:
    for name in ("retry", "extend"):
        if getattr(options, name) and not (options.resume and options.name):
            raise ValueError(f"--{name} is for a sweep that exists: give its --name, and --resume")
    if options.resume and not options.name:
        raise ValueError("--resume continues the sweep of a name: give its --name")
    if options.retry and options.extend:
        raise ValueError("--retry runs what failed and --extend what is new: give one of them")


def _dry_run(plan: Planned) -> int:
    """Say what the sweep would need and about how long it would take; nothing is kept, and no Ray is started."""
    import torch

    from raydiff.runtime import estimate, tuner
    from raydiff.runtime.cluster import cluster
    from raydiff.runtime.eta import RemainingTime, duration
    from raydiff.runtime.slots import fitting, say, total_of

    print(f"{plan.total} trials" + (f", {plan.suggested} of them Optuna's" if plan.suggested else ""))
    trials = [*plan.trials, *[plan.base] * plan.suggested]
    with cluster(only_join=True) as nodes:
        slot = tuner.slot_of(plan, nodes)
        slots = min(fitting(slot, nodes), plan.asked.concurrent or len(trials), len(trials))
        print(f"a trial: {slot.workers} worker(s), {say(slot.total)}")
        print(f"needed: {say({k: slots * v for k, v in slot.total.items()})}, for {slots} trial(s) side by side")
        print(f"available: {say(total_of(nodes))} on {len(nodes)} node(s)", flush=True)
    if "GPU" in slot.total and not torch.cuda.is_available():
        print("no time estimate: the trials use a GPU, and this machine has none")
        return 0
    left = RemainingTime()
    for experiment in {type(e.method): e for e in sorted(trials, key=lambda e: -e.clients)}.values():
        bare = {"evaluation": None, "newcomers": None, "runtime.workers": slot.workers}
        left.add(experiment, seconds := estimate.seconds(overrides.override(experiment, bare)))
        print(f"{type(experiment.method).__name__}, {experiment.clients} clients: {duration(seconds)}", flush=True)
    total = left.seconds(trials, [], slots=slots)
    print(f"about {duration(total or 0.0)} for all rounds; evaluation and the start of processes come on top")
    return 0
