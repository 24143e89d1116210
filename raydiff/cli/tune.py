"""Choose the settings of a preset's arms alike: on the validation split, with one budget, and with seeds of their own.

raydiff tune feddistr-digits --trials 8 --seeds 10,11          on Ray, like a sweep
raydiff tune digits --trials 8 --seeds 10,11 --runtime.pool local --name mine --resume    in this process; go on

For each arm that declares a space (Study.space, Arm.space) --trials settings are drawn from it, at random and none
twice. Each runs in every cell of the preset's grid and with every one of --seeds, none of which the preset reports, and
is measured on the validation split; the best mean is chosen. PRESET.json says what was chosen and how, PRESET.csv has
every trial. Where both lie beside the presets, which is the default, the preset has these settings from then on.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from raydiff.cli import arguments
from raydiff.cli.parser import Parser, folder
from raydiff.evaluation.metrics import lower_is_better
from raydiff.experiment import overrides, tuning
from raydiff.experiment.study import Study


def main(argv: Sequence[str]) -> int:
    """Draw, run, choose, write."""
    preset, study, rest = arguments.preset(argv)
    options, fields = _options().parse_known_args(arguments.shorthand(rest))
    if options.help:
        print(arguments.help_text(__doc__, _options().format_help(), study.experiment))
        return 0
    seeds = _seeds(options.seeds, study)
    if options.resume and not options.name:
        raise ValueError("--resume continues the tuning of a name: give its --name")
    from raydiff.report.after_sweep import SUMMARY
    from raydiff.runtime import launch, sweep_folder
    from raydiff.runtime.plan import Asked, plan

    base = overrides.override(study.experiment, arguments.overrides(study.experiment, fields))
    study = Study(experiment=base, grid=study.grid, beside=study.beside, space=study.space)
    of = tuning.candidates(study, trials=options.trials)
    evaluation = next(iter(of.values())).start.evaluation
    assert evaluation is not None  # `candidates` would have raised.
    metric = options.metric or evaluation.metric
    lower = lower_is_better(metric, evaluation, newcomers=base.newcomers is not None)
    name = options.name or sweep_folder.fresh_name(f"tune-{preset}")
    planned = plan(f"tune-{preset}", tuning.study_of(of, seeds=seeds), Asked(metric=metric), name=name)
    sweep_folder.check_writable(options.out, "--out")
    begun = options.resume and (planned.folder / "sweep.json").exists()
    ended = launch.start(planned, resume=options.resume, extend=begun, report=SUMMARY)
    if ended.interrupted:
        print(f"interrupted; continue with: {sweep_folder.resume_command(name)}")
        return ended.code
    rows = tuning.table(of, planned.trials, ended.folder, metric)
    settings = tuning.chosen(of, rows, lower_is_better=lower)
    search = {
        "command": _command(preset, options, fields),
        "metric": metric,
        "split": "validation",
        "seeds": seeds,
        "trials_per_arm": options.trials,
        "made_by": sweep_folder.version(),
    }
    path = tuning.keep(options.out, preset, settings, search, rows)
    means = rows.groupby("method")["mean"].agg("min" if lower else "max")
    for method, own in settings.items():
        shown = ", ".join(f"{field} {overrides.short(value)}" for field, value in own.items())
        print(f"{method}: {shown} ({metric} {means[method]:.4g})")
    print(f"files: {path}, {path.with_suffix('.csv')}")
    return ended.code


def _command(preset: str, options: argparse.Namespace, fields: Sequence[str]) -> str:
    """What would choose the same: without where it ran."""
    words, skipped = ["raydiff tune", preset, "--trials", str(options.trials), "--seeds", options.seeds], False
    words += ["--metric", options.metric] if options.metric else []
    for word in fields:
        skipped = word.startswith("--runtime.") or (skipped and not word.startswith("--"))
        words += [] if skipped else [word]
    return " ".join(words)


def _options() -> Parser:
    p = Parser("tune [PRESET]", __doc__, fields=True)
    p.add_argument("--trials", type=int, default=8, help="settings that are tried of each arm (default: %(default)s)")
    p.add_argument("--seeds", default="10,11", help="seeds of each setting's runs (default: %(default)s)")
    p.add_argument("--metric", default=None, help="what is best (default: as in raydiff sweep)")
    p.add_argument("--out", type=folder, default=tuning.FOLDER, help="folder to write (default: beside the presets)")
    p.add_argument("--name", default=None, help="name of the sweep that it runs (default: preset and time)")
    p.add_argument("--resume", action="store_true", help="continue that of this name if it exists; --trials may grow")
    return p


def _seeds(text: str, study: Study) -> tuple[int, ...]:
    """Raises ValueError where one is no number, or is reported."""
    try:
        seeds = tuple(int(word) for word in text.split(","))
    except ValueError:
        raise ValueError(f"--seeds must be integers like 10,11, got {text!r}") from None
    reported = study.grid.get("seed", (study.experiment.seed,))
    if both := sorted({*seeds} & {*reported}):
        listed = ", ".join(map(str, reported))
        raise ValueError(f"--seeds must be apart from those that are reported ({listed}), got {both[0]}")
    return seeds
