"""Run one trial, and print each round.

raydiff run digits --runtime.pool local                    in this process, no Ray
raydiff run digits --numerics.server-workers 2             the server's training on two processes
raydiff run --config ~/raydiff/sweeps/NAME/trials/DIGEST/config.json    a trial of a sweep, again
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from raydiff.cli import arguments
from raydiff.cli.options import parse_command
from raydiff.experiment import config, trial
from raydiff.experiment.config import Experiment
from raydiff.experiment.study import Study
from raydiff.formats.metric_records import read_metrics, select_shown


@dataclass(frozen=True, kw_only=True)
class RunCommandOptions(arguments.ExperimentOptions):
    config: Path | None = None
    """Start from a trial's config.json in place of a preset."""


def main(argv: Sequence[str]) -> int:
    """Resolve and run the trial, and print its final metrics."""
    preset, study, rest = arguments.split_preset(argv)
    options, fields = parse_command(RunCommandOptions, rest, __doc__, study.experiment)
    from raydiff.report.after_sweep import SUMMARY
    from raydiff.runtime import launch, sweep_folder
    from raydiff.runtime.plan import SweepRequest, plan_sweep

    start: Experiment = study.experiment if options.config is None else config.read_config(options.config)
    name = options.name or sweep_folder.fresh_name(f"run-{preset}")
    asked = SweepRequest(overrides=arguments.overrides(start, fields), experiment=options.experiment)
    planned = plan_sweep(preset, Study(experiment=start, chosen_by=study.chosen_by), asked, name=name)
    ended = launch.start(planned, resume=options.resume, report=SUMMARY)
    outcome = trial.Trial(planned.trials[0], ended.folder).outcome() or {}
    if "final" not in outcome:
        print(f"{outcome.get('outcome', 'not finished')}: {outcome.get('reason', 'no reason recorded')}")
    else:
        print(f"{outcome['text']}\n{outcome['released']}")
        for metric, value in select_shown(read_metrics(outcome["final"])).items():
            print(f"  {metric} {value:.4g}")
    print(f"files: {ended.folder / 'trials' / planned.trials[0].digest}")
    report = shlex.join(["raydiff", "report", str(ended.folder)])
    print(f"all numbers and samples as a page: {report}\nopen the run {ended.opened_by}")
    ended.print_incomplete()
    return int(bool(ended.incomplete)) if outcome.get("outcome") == "finished" else ended.code or 1
