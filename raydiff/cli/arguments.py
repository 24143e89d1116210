"""Command lines of `raydiff sweep`, `run`, `tune`, `init`, `preview` and `canary`: a preset, fields by path, axes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydiff.experiment import overrides as paths
from raydiff.experiment import presets
from raydiff.experiment.config import Experiment
from raydiff.experiment.searchers import DISTRIBUTIONS, Space
from raydiff.experiment.study import Study
from raydiff.lookup import bare_name, is_outside
from raydiff.storage.staging import SECRET

SHORT = {
    "--model": "--method.model.network",
    "--epsilon": "--method.epsilon",
    "--schedule": "--method.model.schedule",
    "--budget": "--runtime.budget.epsilon",
    "--storage": "--runtime.storage",
}


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


def preset(argv: Sequence[str], default: str = "digits") -> tuple[str, Study, list[str]]:
    """(name, study, the other arguments): the first argument is a preset or an experiment file, unless an option."""
    name, rest = first(argv, default)
    label = bare_name(name) if is_outside(name) else Path(name).stem
    return re.sub(r"[^\w.-]", "-", label), presets.study(name), rest


def first(argv: Sequence[str], default: str) -> tuple[str, list[str]]:
    """(the first argument, or the default where it is an option; the others)."""
    return (argv[0], [*argv[1:]]) if argv and not argv[0].startswith("-") else (default, [*argv])


def shorthand(argv: Sequence[str]) -> list[str]:
    """Expand options that are short for fields: `--model unet` becomes `--method.model.network unet`.

    `--protocol-only` becomes `--evaluation none`, `--budget 10` `--runtime.budget budget --runtime.budget.epsilon 10`.
    """
    out: list[str] = []
    for token in argv:
        name, equals, value = token.partition("=")
        out += ["--runtime.budget", "budget"] if name == "--budget" else []
        out += ["--evaluation", "none"] if token == "--protocol-only" else [SHORT.get(name, name) + equals + value]
    return out


def overrides(start: Experiment, argv: Sequence[str]) -> dict[str, Any]:
    """{path: value} of the command line, with the noise secret from the environment."""
    secret = {"runtime.noise_secret": os.environ[SECRET]} if SECRET in os.environ else {}
    return {**paths.parse_overrides(start, argv), **secret}


def axes(start: Experiment, texts: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """{"seed": (0, 1)} from ["seed=0,1"]. Raises ValueError for a text that is no axis of this experiment."""
    return dict(_values(start, text, "an axis looks like method.epsilon=1,5,10") for text in texts)


def distributions(start: Experiment, texts: Sequence[str]) -> Space:
    """{"path": ("loguniform", (1e-4, 1e-2))} from ["path=loguniform:1e-4,1e-2"].

    Raises ValueError for a text that is no distribution of a field's values.
    """
    form = f"a sampled field looks like method.clip=loguniform:1,10 ({', '.join(DISTRIBUTIONS)})"
    space = {}
    for text in texts:
        kind = text.partition("=")[2].partition(":")[0]
        if kind not in DISTRIBUTIONS:
            raise ValueError(f"{form}, got {text!r}")
        path, values = _values(start, text.replace(f"{kind}:", "", 1), form)
        space[path] = (kind, values)
    return space


def keywords(argv: Sequence[str], *options: str) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """({option: keyword arguments} of `--option.name value`, the other arguments). A value is JSON, else a text."""
    rest: list[str] = []
    found: dict[str, dict[str, Any]] = {option: {} for option in options}
    tokens = iter(argv)
    for token in tokens:
        option, _, keyword = token.partition("=")[0].removeprefix("--").partition(".")
        if not (token.startswith("--") and option in found and keyword):
            rest.append(token)
            continue
        text = token.partition("=")[2] or next(tokens, "")
        try:
            found[option][keyword] = json.loads(text)
        except ValueError:
            found[option][keyword] = text
    return found, rest


def _values(start: Experiment, text: str, form: str) -> tuple[str, tuple[Any, ...]]:
    path, _, values = text.partition("=")
    if not values:
        raise ValueError(f"{form}, got {text!r}")
    path = path.replace("-", "_")
    return path, tuple(paths.convert(start, path, value) for value in values.split(","))
