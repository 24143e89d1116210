"""Command lines of `raydiff sweep`, `run`, `tune`, `init`, `preview` and `canary`: a preset, fields by path, axes."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydiff.cli.options import Fields
from raydiff.experiment import overrides as paths, presets
from raydiff.experiment.config import Experiment
from raydiff.experiment.study import Study
from raydiff.lookup import bare_name, is_outside
from raydiff.storage.staging import SECRET


@dataclass(frozen=True, kw_only=True)
class ExperimentOptions:
    """Options of a command that runs trials."""

    name: str | None = None
    """Its name in the storage folder (default: preset and time)."""
    resume: bool = False
    """Continue the sweep or run of this name, if it exists."""
    experiment: str | None = None
    """MLflow's experiment of the runs (default: raydiff- and the name of the data set)."""

    def __post_init__(self) -> None:
        if self.resume and not self.name:
            raise ValueError("--resume continues a sweep or run by its name: give its --name")


def split_preset(argv: Sequence[str], default: str = "digits") -> tuple[str, Study, list[str]]:
    """(name, study, the other arguments): the first argument is a preset or an experiment file, unless an option."""
    name, rest = split_first(argv, default)
    label = bare_name(name) if is_outside(name) else Path(name).stem
    return re.sub(r"[^\w.-]", "-", label), presets.study(name), rest


def split_first(argv: Sequence[str], default: str) -> tuple[str, list[str]]:
    """(the first argument, or the default where it is an option; the others)."""
    return (argv[0], [*argv[1:]]) if argv and not argv[0].startswith("-") else (default, [*argv])


def overrides(start: Experiment, fields: Fields) -> dict[str, Any]:
    """{path: value} of the command line, with the noise secret from the environment."""
    secret = {"runtime.noise_secret": os.environ[SECRET]} if SECRET in os.environ else {}
    return {**paths.parse_fields(start, fields), **secret}


def axes(start: Experiment, texts: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """{"seed": (0, 1)} from ["seed=0,1"]. Raises ValueError for a text that is no axis of this experiment."""
    given = assignments(texts, "an axis looks like method.epsilon=1,5,10")
    return {path: paths.parse_each(start, path, text.split(",")) for path, text in given.items()}


def assignments(texts: Sequence[str], form: str) -> dict[str, str]:
    """{"a.b": "c"} from ["a.b=c"]. Raises ValueError, with the form that is wanted, for any other text."""
    found = {}
    for text in texts:
        path, _, value = text.partition("=")
        if not value:
            raise ValueError(f"{form}, got {text!r}")
        found[path.replace("-", "_")] = value
    return found


def keywords(fields: Fields, option: str) -> tuple[dict[str, Any], Fields]:
    """({keyword: value} of `--option.keyword value`, the other fields). A value is JSON, else a text."""
    found: dict[str, Any] = {}
    rest: Fields = []
    for path, words in fields:
        if not path.startswith(f"{option}."):
            rest.append((path, words))
            continue
        text = " ".join(words)
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        found[path.removeprefix(f"{option}.")] = value
    return found, rest
