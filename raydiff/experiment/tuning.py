"""Settings chosen alike for every arm of a study: on the validation split, with as many draws from the space that each
declares, and with seeds apart from those that are reported.

`study_of` makes a sweep of it, which runs like any other; `chosen` reads what came out. What was chosen for a preset
lies beside the presets, as PRESET.json with its search as PRESET.csv, and is put in when the preset is built (`used`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from raydiff import seeding
from raydiff.experiment import overrides
from raydiff.experiment.config import Experiment
from raydiff.experiment.study import Arm, Choices, Settings, Study
from raydiff.formats.json_files import read_json
from raydiff.lookup import nearest

if TYPE_CHECKING:
    import pandas as pd

FOLDER = Path(__file__).parents[1] / "papers" / "tuned"


@dataclass(frozen=True)
class Candidates:
    """What one method's settings are chosen from."""

    start: Experiment
    """The arm by which they are chosen, measured on the validation split."""
    axes: Mapping[str, Sequence[Any]]
    """The cells of the study, in all of which a setting is tried."""
    settings: tuple[Settings, ...]
    """Those that were drawn."""


def candidates(study: Study, *, trials: int) -> dict[str, Candidates]:
    """Method -> so many settings drawn from its space; of more trials, these are the first.

    Raises ValueError where the study has no space or no validation records, where a space has too few settings, and
    where an arm has not the fields of its own.
    """
    found: dict[str, Candidates] = {}
    for arm in (Arm(space=study.space), *study.beside):
        if not arm.space:
            continue
        start = arm.apply(study.experiment)
        name = overrides.kind(type(start.method))
        if name in found:
            raise ValueError(f"two arms of {name} declare a space: its settings can be chosen by one alone")
        if start.evaluation is None:
            raise ValueError("settings are chosen by the evaluation, which --protocol-only switches off")
        if not start.data.validation:
            raise ValueError("settings are chosen on validation records, and data.validation is 0")
        if unknown := [path for path in _paths(arm.space) if not overrides.has_path(start, path)]:
            hint = nearest(unknown[0], overrides.flat(start))
            raise ValueError(f"the space of {name} names a field that it has not, {unknown[0]}{hint}")
        start = overrides.override(start, {"evaluation.split": "validation"})
        found[name] = Candidates(start, arm.axes(start, study.grid), _drawn(name, arm.space, trials))
    if not found:
        raise ValueError("the preset declares no space to choose settings from (Study.space, Arm.space)")
    return found


def _paths(space: Choices) -> list[str]:
    return [path for key in space for path in ((key,) if isinstance(key, str) else key)]


def _drawn(name: str, space: Choices, count: int) -> tuple[Settings, ...]:
    """So many different combinations, at random."""
    total = math.prod(len(values) for values in space.values())
    if not 1 <= count <= total:
        raise ValueError(f"--trials must be in 1..{total}, the settings that the space of {name} has, got {count}")
    order = torch.randperm(total, generator=seeding.generator(0, "tune", name))
    return tuple(_combination(space, number) for number in order[:count].tolist())


def _combination(space: Choices, number: int) -> Settings:
    found: dict[str, Any] = {}
    for key, values in space.items():
        number, at = divmod(number, len(values))
        found |= {key: values[at]} if isinstance(key, str) else dict(zip(key, values[at], strict=True))
    return found


def study_of(of: Mapping[str, Candidates], *, seeds: Sequence[int]) -> Study:
    """Every setting in every cell, with every seed; the first settings of all methods come first.

    Raises ValueError where a setting does not fit its arm.
    """
    rounds = zip(*([(own, settings) for settings in own.settings] for own in of.values()), strict=True)
    parts = [
        Study(experiment=overrides.override(own.start, settings), grid={**own.axes, "seed": seeds})
        for one_each in rounds
        for own, settings in one_each
    ]
    return replace(parts[0], also=tuple(parts[1:]))


def table(of: Mapping[str, Candidates], trials: Sequence[Experiment], sweep: Path, metric: str) -> pd.DataFrame:
    """A row for each trial of the sweep: method, setting (from 0), its fields, cell, seed, outcome, the metric (none
    where it failed), and its mean over the setting's trials (none where one has none)."""
    import pandas as pd

    from raydiff.experiment.trial import Trial  # Presets are built where trials are not run.

    rows = []
    for experiment in trials:
        flat, name = overrides.flat(experiment), overrides.kind(type(experiment.method))
        number = next(i for i, own in enumerate(of[name].settings) if all(flat[p] == v for p, v in own.items()))
        outcome = Trial(experiment, sweep).outcome() or {"outcome": "unfinished"}
        value = outcome.get("final", {}).get(metric) if outcome["outcome"] == "finished" else None
        cell = {path: flat[path] for path in (*of[name].axes, "seed")}
        row = {"method": name, "setting": number, **of[name].settings[number], **cell}
        rows.append({**row, "outcome": outcome["outcome"], metric: math.nan if value is None else value})
    frame = pd.DataFrame(rows).sort_values(["method", "setting"], kind="stable")
    own = frame.groupby(["method", "setting"])[metric]
    return frame.assign(mean=own.transform(lambda values: values.mean(skipna=False)))


def chosen(of: Mapping[str, Candidates], rows: pd.DataFrame, *, lower_is_better: bool) -> dict[str, Settings]:
    """The best setting of each method by its mean. Raises ValueError where none of a method's finished everywhere."""
    found = {}
    for name, own in of.items():
        means = rows[rows["method"] == name].groupby("setting")["mean"].first().dropna()
        if not len(means):
            raise ValueError(f"no setting of {name} finished in every cell and with every seed")
        best = means.argmin() if lower_is_better else means.argmax()
        found[name] = own.settings[means.index.tolist()[int(best)]]
    return found


def keep(
    folder: Path, preset: str, settings: Mapping[str, Settings], search: Mapping[str, Any], rows: pd.DataFrame
) -> Path:
    """Write PRESET.json and PRESET.csv into the folder; returns the former."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{preset}.json"
    path.write_text(json.dumps({"settings": settings, "search": search}, indent=1) + "\n")
    rows.to_csv(path.with_suffix(".csv"), index=False)
    return path


def used(preset: str, made: Callable[[], Study]) -> Study:
    """The preset's study with the settings that are kept for it; as it is where there are none.

    Raises ValueError where they cannot be read, or are of another space.
    """
    path, study = FOLDER / f"{preset}.json", made()
    if not path.exists():
        return study
    spaces = {_name(study, arm): {*_paths(arm.space)} for arm in (Arm(space=study.space), *study.beside) if arm.space}
    try:
        settings = read_json(path, needs="settings")["settings"]
        if not isinstance(settings, dict) or {name: {*own} for name, own in settings.items()} != spaces:
            raise ValueError(f"{path} has not the methods and fields that the preset's spaces name")
        return _with_settings(study, settings)
    except ValueError as e:
        own = "" if str(path) in str(e) else f"{path} does not fit the preset: "
        raise ValueError(f"{own}{e}; delete it, or make it again by raydiff tune {preset}") from None


def _name(study: Study, arm: Arm) -> str:
    return overrides.kind(type(arm.apply(study.experiment).method))


def _with_settings(study: Study, settings: Mapping[str, Settings]) -> Study:
    """The study with these settings in every arm of their method that is not to be as it is written."""
    own = settings.get(overrides.kind(type(study.experiment.method)), {})
    written = {path: value for path, value in overrides.flat(study.experiment).items() if path in own}
    beside = []
    for arm in study.beside:
        start = arm.apply(study.experiment)
        chosen = settings.get(overrides.kind(type(start.method)), {})
        kept = {path: value for path, value in written.items() if overrides.has_path(start, path)}
        beside.append(replace(arm, changes={**kept, **arm.changes} if arm.as_written else {**arm.changes, **chosen}))
    made = replace(study, experiment=overrides.override(study.experiment, own), beside=tuple(beside), tuned=settings)
    for arm in made.beside:
        arm.apply(made.experiment)  # It raises now where a setting does not fit.
    return made
