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
ray job submit --working-dir . --runtime-env cluster/runtime_env.yaml -- raydiff sweep mnist --name mine --resume
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from raydiff.cli import arguments, sweep_folder
from raydiff.cli.parser import nearest
from raydiff.evaluation.suite import Evaluation
from raydiff.experiment import overrides as settings
from raydiff.experiment import trial
from raydiff.experiment.config import Experiment
from raydiff.experiment.owner import Owner, held
from raydiff.experiment.tracking import Mlflow
from raydiff.federated.checkpoint import write_text
from raydiff.privacy import accountants
from raydiff.privacy.composed import compose
from raydiff.privacy.ledger import Guarantee, Ledger

DELTA = 1e-5  # at which the trials are composed
METRICS = (
    "eval/utility_loss",
    "eval/tv_pairs",
    "eval/tv_columns",
    *(
        f"eval/{name}/{group}"
        for name in ("fd_cnn", "kd_cnn", "fid", "kid", "label_accuracy")
        for group in ("all", "major", "minor")
    ),
)


def main(argv: Sequence[str]) -> int:
    """Plan, check, run, report."""
    started = time.monotonic()
    name, study, rest = arguments.preset(argv)
    options, overrides = _options().parse_known_args(arguments.shorthand(rest))
    if options.help:
        print(arguments.help_text(__doc__, _options().format_help(), study))
        return 0
    _check_resumption(options)
    base, experiments, space, secret = _plan(study, options, overrides)
    if options.dry_run:
        return _dry_run(options, base, experiments)
    folder = sweep_folder.folder(base, options.name or sweep_folder.fresh_name(name))
    if (options.retry or options.extend) and not (folder / "sweep.json").exists():
        raise ValueError(f"there is no sweep {folder.name} in {folder.parent} to retry or extend")
    with held(folder) as owner:
        this = sweep_folder.plan(
            folder, trials=experiments, space=space, search=options.search, resume=options.resume, extend=options.extend
        )
        if options.retry:
            experiments, space, options.search = _failed(folder, base), {}, "grid"
            if not experiments:
                print(f"no trial of {folder.name} has failed")
                return 0
        for remark in sorted({e.runtime.remark for e in (base, *experiments)} - {""}):
            print(remark, flush=True)
        print(f"sweep {folder.name}: {len(experiments) + _suggested(options)} trials in {folder}", flush=True)
        return _run(options, name, folder, base, experiments, space, this, secret, owner, started)


def _options() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="raydiff sweep [PRESET]", add_help=False, allow_abbrev=False)
    p.add_argument("--help", "-h", action="store_true", help="show this, with every field of the preset")
    p.add_argument("--grid", nargs="+", default=None, help="axes, in place of the preset's: a.b=1,2,3 c=x,y")
    p.add_argument("--sample", nargs="+", default=[], help="sampled fields: a.b=loguniform:1e-4,1e-2 (random, optuna)")
    p.add_argument("--samples", type=int, default=16, help="how many samples")
    p.add_argument("--search", choices=("grid", "random", "optuna", "asha"), default="grid")
    p.add_argument(
        "--metric",
        default=None,
        help="what is best, and what Optuna and ASHA minimise (default: eval/fd_cnn/all, kd_cnn or utility_loss)",
    )
    p.add_argument("--no-baselines", action="store_true", help="leave out what the preset compares with")
    p.add_argument("--max-concurrent", type=int, default=None, help="trials side by side (default: as many as fit)")
    p.add_argument("--time-budget", type=float, default=None, help="seconds after which no trial goes on")
    p.add_argument("--on-error", choices=("continue", "stop"), default="continue")
    p.add_argument("--log-samplers", action="store_true", help="log every trial's sampler to MLflow, with its weights")
    p.add_argument("--dry-run", action="store_true", help="what it would need, and about how long; nothing is kept")
    p.add_argument("--name", default=None, help="the sweep's name (default: preset and time)")
    p.add_argument("--resume", action="store_true", help="continue the sweep of this name if it exists")
    p.add_argument("--extend", action="store_true", help="with --resume: the grid may have grown")
    p.add_argument(
        "--retry",
        choices=("failed",),
        default=None,
        help="with --resume: run again the trials that failed, and no other; those that ran out of GPU memory on twice "
        "the slice, then on four times",
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


def _failed(folder: Path, base: Experiment) -> list[Experiment]:
    """The sweep's failed trials, to be run where this command says."""
    found = sweep_folder.ended(folder, "failed")
    return [replace(e, runtime=replace(base.runtime, threads=e.runtime.threads)) for e in found]


def _plan(
    study: Any, options: argparse.Namespace, overrides: Sequence[str]
) -> tuple[Experiment, list[Experiment], dict[str, Any], bytes]:
    """(base, every trial that is known beforehand, Optuna's space, the noise secret), all resolved and checked against
    the data."""
    for name in ("samples", "max_concurrent", "time_budget"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise ValueError(f"--{name.replace('_', '-')} must be positive, got {value}")
    given = arguments.overrides(study.experiment, overrides)
    base: Experiment = settings.override(study.experiment, given)
    if options.metric is None:
        options.metric = (base.evaluation or Evaluation()).metric
    if options.metric not in METRICS:
        raise ValueError(f"unknown metric {options.metric!r}{nearest(options.metric, METRICS)}")
    if options.search in ("asha", "optuna") and base.evaluation is None:
        raise ValueError(f"--search {options.search} needs the evaluation that --protocol-only switches off")
    if options.log_samplers and base.evaluation is None:
        raise ValueError("--log-samplers uploads the clients' own models, which --protocol-only keeps with them")
    if options.search in ("asha", "optuna") and options.metric.endswith(("/major", "/minor")):
        raise ValueError(f"--search {options.search} needs a metric over all classes, got {options.metric}")
    if options.search in ("asha", "optuna") and base.evaluation is not None and base.evaluation.every == 0:
        base = settings.override(base, {"evaluation.every": 1 if options.search == "asha" else base.method.rounds})
    of = arguments.axes(options.grid) if options.grid else {k: v for k, v in study.grid.items() if k not in given}
    of = {k: v for k, v in of.items() if options.grid or settings.has_path(base, k)}
    sampled = arguments.distributions(base, options.sample)
    if sampled and options.search not in ("random", "optuna"):
        raise ValueError("--sample needs --search random or --search optuna")
    if options.search in ("random", "optuna") and not sampled:
        raise ValueError(f"--search {options.search} needs --sample")
    beside = () if options.no_baselines or "method" in given else study.beside
    if options.search == "random":
        draws = _draw(sampled, options.samples, base.seed)
        experiments = [settings.override(base, values) for values in draws] + arguments.grid(base, {}, beside)[1:]
    elif options.search == "optuna":
        experiments = arguments.grid(base, {}, beside)[1:]
    else:
        experiments = arguments.grid(base, of, beside)
        if not options.grid:
            experiments += arguments.others(study.also, given, baselines=not options.no_baselines)
    name = options.name or sweep_folder.fresh_name("new")  # a new sweep has no secret yet, whatever it will be called
    secret = trial.planned_secret(sweep_folder.place(base, name), base)
    unique = {e.digest: e for e in (trial.resolve(e, secret) for e in experiments)}
    space = sampled if options.search == "optuna" else {}
    return trial.resolve(base, secret), list(unique.values()), space, secret


def _draw(sampled: dict[str, Any], count: int, seed: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)

    def one(kind: str, values: tuple[Any, ...]) -> Any:
        if kind == "choice":
            return values[rng.integers(len(values))]
        if kind == "randint":
            return int(rng.integers(values[0], values[1]))
        if kind == "loguniform":
            return float(math.exp(rng.uniform(math.log(values[0]), math.log(values[1]))))
        return float(rng.uniform(values[0], values[1]))

    return [{path: one(kind, values) for path, (kind, values) in sampled.items()} for _ in range(count)]


def _dry_run(options: argparse.Namespace, base: Experiment, experiments: list[Experiment]) -> int:
    """Say what the sweep would need and about how long it would take; nothing is kept, and no Ray is started."""
    from raydiff.runtime import estimate, tuner
    from raydiff.runtime.progress import duration
    from raydiff.runtime.slots import fitting, say, total_of

    count = len(experiments) + _suggested(options)
    print(f"{count} trials" + (f", {_suggested(options)} of them Optuna's" if _suggested(options) else ""))
    with tuner.cluster(only_join=True) as nodes:
        base, experiments = tuner.sized(base, experiments, nodes)
        trials = experiments + [base] * _suggested(options)
        slot = tuner.slot_of(base, experiments, nodes)
        slots = min(fitting(slot, nodes), options.max_concurrent or len(trials), len(trials))
        print(f"a trial: {slot.workers} worker(s), {say(slot.total)}")
        print(f"needed: {say({k: slots * v for k, v in slot.total.items()})}, for {slots} trial(s) side by side")
        print(f"available: {say(total_of(nodes))} on {len(nodes)} node(s)", flush=True)
        probed: dict[str, tuple[int, estimate.Times]] = {}
        for experiment in estimate.representatives(trials):
            name = type(experiment.method).__name__
            times = estimate.probe_where_it_will_run(experiment, slot)
            probed[name] = experiment.clients, times
            later = f", then {times[1]:.1f} s each" if experiment.method.rounds > 1 else ""
            print(f"{name}, {experiment.clients} clients, one process: first round {times[0]:.1f} s{later}", flush=True)
        total = estimate.seconds(trials, probed, slot=slot, slots=slots)
    print(f"about {duration(total)} for all rounds; evaluation and the start of processes come on top")
    return 0


def _suggested(options: argparse.Namespace) -> int:
    return options.samples if options.search == "optuna" else 0


# --------------------------------------------------------------------------------------------------------- running


def _run(
    options: argparse.Namespace,
    name: str,
    folder: Path,
    base: Experiment,
    experiments: list[Experiment],
    space: dict[str, Any],
    this: sweep_folder.Plan,
    secret: bytes,
    owner: Owner,
    started: float,
) -> int:
    mlflow = sweep_folder.mlflow(folder, name, base, samplers=options.log_samplers)
    mlflow.start()  # opening a new store takes 10 s: while Ray starts
    from raydiff.runtime import retry, tuner
    from raydiff.runtime.progress import Progress

    named = arguments.varying([base, *experiments], space)
    shown = functools.partial(
        Progress,
        metric=options.metric,
        name=lambda values: named(tuner.experiment_of(values)),
        stop_on_error=options.on_error == "stop",
    )
    with tuner.cluster() as nodes:
        measured = base.runtime.gpu_per_worker == "auto"
        base, experiments = tuner.sized(base, experiments, nodes, share=None if options.extend else this.get("share"))
        if measured:
            this["share"] = base.runtime.worker_share  # what a resumed sweep goes on with
        plan = tuner.Plan(
            folder=folder,
            owner=owner,
            trials=experiments,
            base=base,
            space=space,
            samples=_suggested(options),
            search=options.search,
            metric=options.metric,
            concurrent=options.max_concurrent,
            budget_s=options.time_budget,
        )
        slot = tuner.check(plan, nodes)
        mlflow.wait_ready()
        # from here on there is a sweep; what was refused before has left nothing
        sweep_folder.write(folder, this, secret, again=not options.retry)
        mlflow.begin()
        print(f"ready after {time.monotonic() - started:.0f} s: {slot.workers} worker(s) per trial", flush=True)
        if options.retry:
            interrupted = retry.run(plan, nodes, lambda total: shown(total=total))
        else:
            progress = shown(total=len(experiments) + _suggested(options))
            interrupted = tuner.run(plan, slot, progress)
            if split := progress.split():
                _say_split(folder, split)
    return _report(options, folder, mlflow, interrupted, started)


def _say_split(folder: Path, split: Mapping[str, float]) -> None:
    """Print where the time went, and keep it as split.json."""
    write_text(folder / "split.json", json.dumps(split, indent=1))
    share = {k: split[k] / split["slots_s"] for k in ("working", "waiting", "outside")}
    print(
        f"of the time of {split['slots']:.0f} slot(s) since the first trial began, {share['working']:.0%} went into "
        f"training, sampling and evaluation, {share['outside']:.0%} into changing trials, "
        f"{share['waiting']:.0%} into waiting for the last ones"
    )


def _report(options: argparse.Namespace, folder: Path, mlflow: Mlflow, interrupted: bool, started: float) -> int:
    from raydiff.report import load
    from raydiff.report.frontier import write

    mlflow.close()
    out = folder / "report"
    for unread in load.cut_short(folder):
        print(unread)
    try:
        print("\n" + write.write(folder, out))
        print(_composed(folder) + (f"\nplot: {png}" if (png := out / "frontier.png").exists() else ""))
    except (ValueError, OSError) as e:
        print(f"no table: {e}")
    print(_page(folder, out))
    if behind := mlflow.end("KILLED" if interrupted else "FINISHED", tuple(sorted(out.glob("*")))):
        print(behind)
    print(f"whole run: {time.monotonic() - started:.0f} s")
    if interrupted:
        print(f"\ninterrupted; continue with: {sweep_folder.resume_command(folder.name)}")
    print(f"open the runs {sweep_folder.opened_by(mlflow.uri)}")
    return (
        130
        if interrupted
        else int(bool(sweep_folder.ended(folder, "failed", "killed") or sweep_folder.open_ended(folder)))
    )


def _page(folder: Path, out: Path) -> str:
    """Write the report; gives a line that says where it is, or why there is none."""
    try:
        from raydiff.report import page

        return f"report: {page.write(folder, out)}"
    except Exception as e:  # the trials are done and recorded: a page about them cannot fail the sweep
        return f"no report: {type(e).__name__}: {e}"


def _composed(folder: Path) -> str:
    """What all trials have spent together, run on the same records: a line for each kind of epsilon, for these do not
    compose. Also written as composed.json."""
    trials = sorted((folder / "trials").glob("*"))
    ledgers = [trial.ledger_of(f).server for f in trials]
    protected = [book for book in ledgers if all(math.isfinite(g.epsilon) for g in _guarantees(book))]
    says = [
        *_lines(f"all {len(ledgers)} trials composed", ledgers),
        *_lines(f"the {len(protected)} protected ones alone", protected),
    ]
    write_text(folder / "composed.json", json.dumps({"trials": [f.name for f in trials], "says": says}, indent=1))
    return "\n".join(says)


def _lines(about: str, books: Sequence[Ledger]) -> list[str]:
    found = list(dict.fromkeys(map(str, _guarantees(compose(books)))))
    which = [f", kind {i} of {len(found)}" if len(found) > 1 else "" for i in range(1, len(found) + 1)]
    return [f"{about}{kind}: {epsilon}" for kind, epsilon in zip(which, found, strict=True)]


def _guarantees(book: Ledger) -> list[Guarantee]:
    """One per kind of epsilon, by the first accountant that has a theorem for all of it."""
    try:
        return book.guarantees(DELTA, "exact")
    except accountants.Unsupported:  # sampled noise
        return book.guarantees(DELTA, "rdp")
