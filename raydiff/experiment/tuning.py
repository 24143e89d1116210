"""Hyperparameter search, equal for every arm of a study.

It uses the validation split, as many draws from each arm's space, and seeds apart from those that are reported.
`study_of` makes a sweep of the draws; `chosen` reads its results. The settings chosen for a preset are stored as
PRESET.json beside the presets, the search as PRESET.csv; `apply_tuned` puts them into the preset when it is built.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydiff import lookup
from raydiff.experiment import overrides
from raydiff.experiment.config import Experiment
from raydiff.experiment.searchers import RandomSearch, Settings, propose_all
from raydiff.experiment.study import Arm, Choices, Study
from raydiff.formats.csv_files import write_csv
from raydiff.formats.json_files import dumps, read_json
from raydiff.formats.metric_records import columns, read_metrics

if TYPE_CHECKING:
    import pandas as pd

FOLDER = Path(__file__).parents[1] / "papers" / "tuned"


@dataclass(frozen=True)
class Candidates:
    """The settings drawn for one method."""

    start: Experiment
    """The arm by which they are compared, measured on the validation split."""
    axes: Mapping[str, Sequence[Any]]
    """The cells of the study, in all of which a setting is tried."""
    settings: tuple[Settings, ...]


def candidates(study: Study, *, trials: int) -> dict[str, Candidates]:
    """Method -> so many settings drawn from its space; more trials extend the list.

    Raises ValueError without a space or validation records, and for a space that is too small or names an unknown
    field.
    """
    drawn: dict[str, Candidates] = {}
    for arm in (Arm(space=study.space), *study.beside):
        if not arm.space:
            continue
        start = arm.apply(study.experiment)
        name = lookup.name_on_disk(type(start.method))
        if name in drawn:
            raise ValueError(f"two arms of {name} declare a space: its settings can be chosen by one alone")
        if start.evaluation is None:
            raise ValueError("settings are chosen by the evaluation, which --protocol-only switches off")
        if not start.data.validation:
            raise ValueError("settings are chosen on validation records, and data.validation is 0")
        start = overrides.override(start, {"evaluation.split": "validation"})
        drawn[name] = Candidates(start, arm.axes(start, study.grid), _draw(name, arm.space, trials))
    if not drawn:
        raise ValueError("the preset declares no space to choose settings from (Study.space, Arm.space)")
    return drawn


def _paths(space: Choices) -> set[str]:
    return set(itertools.chain.from_iterable((key,) if isinstance(key, str) else key for key in space))


def _draw(name: str, space: Choices, count: int) -> tuple[Settings, ...]:
    """So many different combinations, at random."""
    total = math.prod(len(values) for values in space.values())
    if not 1 <= count <= total:
        raise ValueError(f"--trials must be in 1..{total}, the settings that the space of {name} has, got {count}")
    drawn = propose_all(
        RandomSearch({key: ("choice", values) for key, values in space.items()}, seed=0, stream=("tune", name))
    )
    return tuple(_settings_of(combination) for combination in itertools.islice(drawn, count))


def _settings_of(combination: Mapping[Any, Any]) -> Settings:
    """Field path -> value, where a key may be several paths with a value each."""
    settings: dict[str, Any] = {}
    for key, value in combination.items():
        settings |= {key: value} if isinstance(key, str) else dict(zip(key, value, strict=True))
    return settings


def study_of(candidates: Mapping[str, Candidates], *, seeds: Sequence[int]) -> Study:
    """Every setting in every cell, with every seed. Raises ValueError where a setting does not fit its arm."""
    parts = []
    for in_turn in zip(*(its.settings for its in candidates.values()), strict=True):
        for its, settings in zip(candidates.values(), in_turn, strict=True):
            parts.append(Study(experiment=overrides.override(its.start, settings), grid={**its.axes, "seed": seeds}))
    return replace(parts[0], also=tuple(parts[1:]))


def tabulate_trials(
    candidates: Mapping[str, Candidates], trials: Sequence[Experiment], sweep: Path, metric: str
) -> pd.DataFrame:
    """A row per trial: method, setting, its fields, cell, seed, outcome, the metric and its mean."""
    import pandas as pd

    from raydiff.experiment.trial import Trial  # Presets are built where trials are not run.

    rows = []
    for experiment in trials:
        flat = overrides.flatten_settings(experiment)
        name = lookup.name_on_disk(type(experiment.method))
        its = candidates[name]
        number = next(i for i, settings in enumerate(its.settings) if all(flat[p] == v for p, v in settings.items()))
        outcome = Trial(experiment, sweep).outcome() or {"outcome": "unfinished"}
        final = read_metrics(outcome.get("final", [])) if outcome["outcome"] == "finished" else []
        value = columns(final).get(metric, math.nan)
        cell = {path: flat[path] for path in (*its.axes, "seed")}
        row = {"method": name, "setting": number, **its.settings[number], **cell}
        rows.append({**row, "outcome": outcome["outcome"], metric: value})
    frame = pd.DataFrame(rows).sort_values(["method", "setting"], kind="stable")
    values = frame.groupby(["method", "setting"])[metric]
    return frame.assign(mean=values.transform(lambda values: values.mean(skipna=False)))


def chosen(candidates: Mapping[str, Candidates], rows: pd.DataFrame, *, lower_is_better: bool) -> dict[str, Settings]:
    """The best setting of each method by its mean. Raises ValueError where none of a method's finished everywhere."""
    best = {}
    for name, its in candidates.items():
        means = rows[rows["method"] == name].groupby("setting")["mean"].first().dropna()
        if not len(means):
            raise ValueError(f"no setting of {name} finished in every cell and with every seed")
        place = int(means.argmin() if lower_is_better else means.argmax())
        best[name] = its.settings[means.index[place]]
    return best


def keep(
    folder: Path, preset: str, settings: Mapping[str, Settings], search: Mapping[str, Any], rows: pd.DataFrame
) -> Path:
    """Write PRESET.json and PRESET.csv into the folder; returns the former."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{preset}.json"
    path.write_text(dumps({"settings": settings, "search": search}, indent=1) + "\n")
    write_csv(path.with_suffix(".csv"), rows)
    return path


def apply_tuned(preset: str, build: Callable[[], Study]) -> Study:
    """The preset's study with its stored settings. Raises ValueError if these are damaged or of another space."""
    path = FOLDER / f"{preset}.json"
    study = build()
    if not path.exists():
        return study
    arms = [(arm, arm.apply(study.experiment)) for arm in (Arm(space=study.space), *study.beside) if arm.space]
    spaces = {lookup.name_on_disk(type(start.method)): _paths(arm.space) for arm, start in arms}
    try:
        settings = read_json(path, needs="settings")["settings"]
        if not isinstance(settings, dict) or {name: {*fields} for name, fields in settings.items()} != spaces:
            raise ValueError(f"{path} has not the methods and fields that the preset's spaces name")
        return _apply_settings(study, settings)
    except ValueError as e:
        where = "" if str(path) in str(e) else f"{path} does not fit the preset: "
        raise ValueError(f"{where}{e}; delete it, or make it again by raydiff tune {preset}") from None


def _apply_settings(study: Study, settings: Mapping[str, Settings]) -> Study:
    """The study with these settings in every arm of their method, except in arms that stay as written."""
    main = settings.get(lookup.name_on_disk(type(study.experiment.method)), {})
    written = {path: value for path, value in overrides.flatten_settings(study.experiment).items() if path in main}
    experiment = overrides.override(study.experiment, main)
    beside = []
    for arm in study.beside:
        start = arm.apply(study.experiment)
        kept = {path: value for path, value in written.items() if overrides.has_path(start, path)}
        tuned = settings.get(lookup.name_on_disk(type(start.method)), {})
        arm = replace(arm, changes={**kept, **arm.changes} if arm.as_written else {**arm.changes, **tuned})
        arm.apply(experiment)  # It raises now where a setting does not fit.
        beside.append(arm)
    return replace(study, experiment=experiment, beside=tuple(beside), tuned=settings)
