"""Run one trial, and see each round.

raydiff run digits --runtime.pool local                    in this process, no Ray
raydiff run digits --epsilon 50 --clients 4                on a local Ray, one trial
raydiff run digits --runtime.server-workers 2              the server's training on two processes
raydiff run --config ~/raydiff/sweeps/NAME/trials/DIGEST/config.json    a trial of a sweep, again
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raydiff.cli import arguments
from raydiff.cli.parser import Parser
from raydiff.experiment import config, trial
from raydiff.experiment.config import Experiment
from raydiff.experiment.study import Study
from raydiff.formats import metric_names


def main(argv: Sequence[str]) -> int:
    """Resolve, run, say what came out."""
    preset, study, rest = arguments.preset(argv)
    parser = _options()
    options, fields = parser.parse_known_args(arguments.shorthand(rest))
    if options.help:
        print(arguments.help_text(__doc__, parser.format_help(), study.experiment))
        return 0
    if options.resume and not options.name:
        raise ValueError("--resume continues the run of a name: give its --name")
    from raydiff.report.after_sweep import SUMMARY
    from raydiff.runtime import launch, sweep_folder
    from raydiff.runtime.plan import Asked, plan

    start: Experiment = study.experiment
    if options.config is not None:
        start = config.read(options.config, edited=True)
    given = arguments.overrides(start, fields)
    name = options.name or sweep_folder.fresh_name(f"run-{preset}")
    asked = Asked(given=given, samplers=True, experiment=options.experiment)
    planned = plan(preset, Study(experiment=start), asked, name=name)
    ended = launch.start(planned, resume=options.resume, report=SUMMARY)
    if ended.interrupted:
        print(f"interrupted; continue with: {sweep_folder.resume_command(name)}")
    outcome = trial.Trial(planned.trials[0], ended.folder).outcome() or {}
    _show(outcome)
    print(f"files: {ended.folder / 'trials' / planned.trials[0].digest}")
    print(f"all numbers and samples as a page: raydiff report {ended.folder}\nopen the run {ended.opened_by}")
    return 0 if outcome.get("outcome") == "finished" else 130 if ended.interrupted else 1


def _options() -> Parser:
    p = Parser("run [PRESET]", __doc__, fields=True)
    p.add_argument("--config", type=Path, default=None, help="start from a trial's config.json in place of a preset")
    p.add_argument("--name", default=None, help="name of the run (default: preset and time)")
    p.add_argument("--experiment", default=None, help=arguments.EXPERIMENT)
    p.add_argument("--resume", action="store_true", help="continue the run of this name if it exists")
    return p


def _show(outcome: dict[str, object]) -> None:
    if "final" not in outcome:
        print(f"{outcome.get('outcome', 'not finished')}: {outcome.get('reason', 'no reason recorded')}")
        return
    print(outcome["says"])
    for name, value in sorted(metric_names.shown(metric_names.final(outcome)).items()):
        print(f"  {name.removeprefix('final/')} {value:.4g}")
