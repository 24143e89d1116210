"""Experiment files: changes of a preset, as TOML (docs/how-to/init.md).

`raydiff init` writes them; `run`, `sweep` and `rd.preset` take them. Fields and values are those of the command line; a
table's `kind` selects a class.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from raydiff.experiment import overrides
from raydiff.experiment.config import Experiment
from raydiff.experiment.searchers import Search, parse_space
from raydiff.experiment.study import Study
from raydiff.lookup import nearest
from raydiff.settings import SettingsError

SUFFIX = ".toml"


def read_study(path: Path, presets: Mapping[str, Callable[[], Study]]) -> Study:
    """The preset's study with the file's experiment and axes. Raises ValueError naming the file and the field."""
    try:
        return parse_study(path.read_text(), str(path), presets)
    except (OSError, UnicodeDecodeError) as e:
        raise ValueError(f"{path}: {e.strerror if isinstance(e, OSError) else e}") from None


def parse_study(text: str, file: str, presets: Mapping[str, Callable[[], Study]]) -> Study:
    """`read_study`, from the text of a file of this name."""
    try:
        return _study(tomllib.loads(text), presets)
    except ValueError as e:
        raise ValueError(f"{file}: {e}") from None


def _study(tree: dict[str, Any], presets: Mapping[str, Callable[[], Study]]) -> Study:
    name = tree.pop("preset", "digits")
    axes = tree.pop("grid", None)
    search = tree.pop("search", {})
    chosen = dict(_leaves(tree.pop("chosen_by", {})))
    if name not in presets:
        raise ValueError(f"--preset must be one of {', '.join(presets)}, got {name!r}{nearest(str(name), presets)}")
    study = presets[name]()
    values = overrides.parse_fields(study.experiment, list(_leaves(tree)))
    experiment = overrides.override(study.experiment, values)
    grid = {k: v for k, v in study.grid.items() if k not in values and overrides.has_path(experiment, k)}
    if axes is not None:
        grid = {path: overrides.parse_each(experiment, path, words) for path, words in _leaves(axes)}
    return dataclasses.replace(
        study, experiment=experiment, grid=grid, search=_search(study.search, experiment, search), chosen_by=chosen
    )


def _search(search: Search, experiment: Experiment, table: dict[str, Any]) -> Search:
    """`search` with the file's table of its fields; in `searcher` and `scheduler` a table has keyword arguments."""
    if "space" in table:
        texts = {path: ",".join(words) for path, words in _leaves(table["space"])}
        table["space"] = parse_space(experiment, texts)
    for name, value in table.items():
        if isinstance(value, dict) and name != "space":
            table[name] = (value.pop("kind", None), value)
    try:
        return dataclasses.replace(search, **table)
    except SettingsError as e:
        raise SettingsError({f"search.{name}": text for name, text in e.problems.items()}) from None


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, list[str]]]:
    """(path, words as on a command line); a table's `kind` is the value of the field that holds the table."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            path = prefix[:-1] if prefix and key == "kind" else prefix + key
            yield path, [str(v) for v in value] if isinstance(value, list) else [str(value)]
