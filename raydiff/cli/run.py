"""Run one trial, and see each round.

raydiff run digits --runtime.pool local                    in this process, no Ray
raydiff run digits --epsilon 50 --clients 4                on a local Ray, one trial
raydiff run digits --runtime.server-workers 2              the server's training on two processes
raydiff run --config ~/raydiff/sweeps/NAME/trials/DIGEST/config.json    a trial of a sweep, again
"""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from raydiff.cli import arguments, sweep_folder
from raydiff.evaluation.suite import Evaluation
from raydiff.experiment import config, trial
from raydiff.experiment import overrides as settings
from raydiff.experiment.config import Experiment
from raydiff.experiment.owner import Owner, held
from raydiff.experiment.tracking import read_json
from raydiff.federated.checkpoint import Overtaken
from raydiff.federated.rounds import Pool
from raydiff.models.training import Train
from raydiff.runtime.slots import cap_memory


def main(argv: Sequence[str]) -> int:
    """Resolve, run, say what came out."""
    name, study, rest = arguments.preset(argv)
    parser = _options()
    options, overrides = parser.parse_known_args(arguments.shorthand(rest))
    if options.help:
        print(arguments.help_text(__doc__, parser.format_help(), study))
        return 0
    if options.resume and not options.name:
        raise ValueError("--resume continues the run of a name: give its --name")
    start: Experiment = study.experiment
    if options.config is not None:
        start = config.from_dict(read_json(options.config, needs="method"))
    given: Experiment = settings.override(start, arguments.overrides(start, overrides))
    called = options.name or sweep_folder.fresh_name(f"run-{name}")
    secret = trial.planned_secret(sweep_folder.place(given, called), given)
    experiment = trial.resolve(given, secret)
    if experiment.runtime.remark:
        print(experiment.runtime.remark, flush=True)
    folder = sweep_folder.folder(experiment, called)
    with held(folder) as owner:
        this = sweep_folder.plan(folder, trials=[experiment], space={}, search="grid", resume=options.resume)
        mlflow = sweep_folder.mlflow(folder, name, experiment, samplers=True)
        mlflow.start()
        ended = False
        try:
            mlflow.wait_ready()
            here = experiment.runtime.pool == "local" or experiment.runtime.server_workers > 1

            def begin() -> None:
                sweep_folder.write(folder, this, secret)
                mlflow.begin()

            ended = (_here if here else _on_ray)(experiment, folder, owner, begin)
        except KeyboardInterrupt:
            if (folder / "trials" / experiment.digest / "config.json").exists():
                trial.cut_short(folder / "trials" / experiment.digest, "killed", reason="interrupted")
        if not ended:
            print(f"interrupted; continue with: {sweep_folder.resume_command(folder.name)}")
        mlflow.close()
        if behind := mlflow.end("FINISHED" if ended else "KILLED"):
            print(behind)
        outcome = trial.Trial(experiment, folder).outcome() or {}
        _show(outcome)
        print(f"files: {folder / 'trials' / experiment.digest}\nopen the run {sweep_folder.opened_by(mlflow.uri)}")
        return 0 if outcome.get("outcome") == "finished" else 130 if not ended else 1


def _options() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="raydiff run [PRESET]", add_help=False, allow_abbrev=False)
    p.add_argument("--help", "-h", action="store_true", help="show this, with every field of the preset")
    p.add_argument("--config", type=Path, default=None, help="start from a trial's config.json in place of a preset")
    p.add_argument("--name", default=None, help="name of the run (default: preset and time)")
    p.add_argument("--resume", action="store_true", help="continue the run of this name if it exists")
    return p


def _here(experiment: Experiment, folder: Path, owner: Owner, begin: Callable[[], None]) -> bool:
    """With the coordinator in this process. `begin` is called once nothing is refused any more."""
    this = trial.Trial(experiment, folder, owner)
    with _means(this) as (pool, train):
        begin()
        this = trial.open_trial(experiment, folder, owner)
        try:
            for result in trial.run(this, pool(), train=train):
                if not result["finished"]:
                    _show_round(result, experiment.method.rounds)
        except Overtaken:  # another driver writes how it ends
            raise
        except Exception as e:  # every trial that began has an outcome
            trial.cut_short(this.folder, "failed", reason=str(e) or type(e).__name__)
    return True


@contextlib.contextmanager
def _means(this: trial.Trial) -> Iterator[tuple[Callable[[], Pool], Train | None]]:
    """Where it runs: in this process alone, or with help from a Ray."""
    given = this.experiment.runtime
    if given.server_workers > 1:
        from raydiff.runtime import data_parallel

        with data_parallel.means(this) as found:
            yield found
    else:
        cap_memory(1.0 if given.gpu_per_worker == "auto" else max(given.worker_share, given.gpu_server))
        yield functools.partial(trial.local_pool, this), None


def _show_round(result: dict[str, Any], rounds: int) -> None:
    loss = next((f", {k} {result[k]:.4f}" for k in ("train/loss", "server/loss") if k in result), "")
    print(f"round {result['round'] + 1}/{rounds}: {result['time/seconds']:.1f} s{loss}", flush=True)
    for who, why in result["rejected"].items():
        print(f"  rejected {who}: {why}", flush=True)


def _on_ray(experiment: Experiment, folder: Path, owner: Owner, begin: Callable[[], None]) -> bool:
    from raydiff.runtime import tuner
    from raydiff.runtime.progress import Progress

    name = arguments.varying([experiment])(experiment)
    progress = Progress(
        total=1, metric=(experiment.evaluation or Evaluation()).metric, name=lambda _: name, stop_on_error=False
    )
    with tuner.cluster() as nodes:
        experiment, _ = tuner.sized(experiment, [], nodes)
        plan = tuner.Plan(folder=folder, owner=owner, trials=[experiment], base=experiment)
        shape = tuner.check(plan, nodes)
        begin()
        return not tuner.run(plan, shape, progress)


def _show(outcome: dict[str, object]) -> None:
    final = outcome.get("final")
    if not isinstance(final, dict):
        print(f"{outcome.get('outcome', 'not finished')}: {outcome.get('reason', 'no reason recorded')}")
        return
    print(outcome["says"])
    if "remark" in outcome:
        print(outcome["remark"])
    details = (
        "_low",
        "_high",
        "threshold",
        "timestep_index",
        "n_members",
        "n_nonmembers",
        "tpr_calibrated",
        "fpr_reached",
    )
    for key in sorted(k for k in final if not k.endswith(details)):
        print(f"  {key} {final[key]:.4g}")
