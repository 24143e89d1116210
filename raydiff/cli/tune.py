"""Choose the settings of every arm of a preset alike: on the validation split, with equally many trials.

    raydiff tune feddistr-digits --trials 8 --seeds 10,11          on Ray, like a sweep
    raydiff tune digits --trials 8 --runtime.pool local --name mine --resume    in this process; continue

For each arm with a space (Study.space, Arm.space) settings are drawn at random, run in every cell of the preset's grid
with each seed, and the best mean is chosen. PRESET.json has the choice, PRESET.csv every trial; beside the presets,
which is the default folder, they change the preset's settings from then on.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from raydiff.cli import arguments
from raydiff.cli.options import check_option, parse_command
from raydiff.data import datasets
from raydiff.experiment import overrides, tuning
from raydiff.experiment.searchers import Search
from raydiff.experiment.study import Study


@dataclass(frozen=True, kw_only=True)
class TuneOptions(arguments.ExperimentOptions):
    trials: int = 8
    """Settings to try for each arm."""
    seeds: tuple[int, ...] = (10, 11)
    """Seeds of each setting's runs."""
    metric: str | None = None
    """Objective (default: as in raydiff sweep)."""
    out: Path = tuning.FOLDER
    """Folder to write."""


def main(argv: Sequence[str]) -> int:
    """Draw, run, choose, write."""
    preset, study, rest = arguments.split_preset(argv)
    options, fields = parse_command(TuneOptions, rest, __doc__, study.experiment)
    reported = study.grid.get("seed", (study.experiment.seed,))
    check_option(options, "seeds", not {*options.seeds} & {*reported}, f"apart from those that are reported {reported}")
    from raydiff.report.after_sweep import SUMMARY
    from raydiff.runtime import launch, sweep_folder
    from raydiff.runtime.plan import SweepRequest, plan_sweep

    changes = arguments.overrides(study.experiment, fields)
    study.check_chosen(changes)
    base = overrides.override(study.experiment, changes)
    study = Study(experiment=base, grid=study.grid, beside=study.beside, space=study.space)
    candidates = tuning.candidates(study, trials=options.trials)
    evaluation = next(iter(candidates.values())).start.evaluation
    assert evaluation is not None  # `candidates` would have raised.
    metric = options.metric or str(evaluation.headline(datasets.load_dataset(base.data).modality))
    name = options.name or sweep_folder.fresh_name(f"tune-{preset}")
    asked = SweepRequest(experiment=options.experiment)
    compared = replace(tuning.study_of(candidates, seeds=options.seeds), search=Search(metric=metric))
    planned = plan_sweep(f"tune-{preset}", compared, asked, name=name)
    sweep_folder.check_writable(options.out, "--out")
    exists = options.resume and (planned.folder / "sweep.json").exists()
    ended = launch.start(planned, resume=options.resume, extend=exists, report=SUMMARY)
    if ended.interrupted:
        return ended.code
    rows = tuning.tabulate_trials(candidates, planned.trials, ended.folder, metric)
    chosen = tuning.chosen(candidates, rows, lower_is_better=planned.lower_is_better)
    search = {
        "command": shlex.join(["raydiff", "tune", *argv]),
        "metric": metric,
        "split": "validation",
        "seeds": options.seeds,
        "trials_per_arm": options.trials,
        "made_by": sweep_folder.code_version(),
    }
    path = tuning.keep(options.out, preset, chosen, search, rows)
    means = rows.groupby("method")["mean"].agg("min" if planned.lower_is_better else "max")
    for method, settings in chosen.items():
        shown = ", ".join(f"{field} {overrides.format_value(value)}" for field, value in settings.items())
        print(f"{method}: {shown} ({metric} {means[method]:.4g})")
    print(f"files: {path}, {path.with_suffix('.csv')}")
    ended.print_incomplete()
    return ended.code
