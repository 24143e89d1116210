"""What the command lines of `raydiff sweep`, `run`, `preview` and `canary` share: a preset, overrides by path, axes."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from raydiff.cli.parser import Parser
from raydiff.experiment import fields
from raydiff.experiment import overrides as paths
from raydiff.experiment import presets as names
from raydiff.experiment.config import Experiment
from raydiff.experiment.study import Study
from raydiff.storage.staging import SECRET

REPRODUCE = "reproduce"
"""A preset that takes two options: `reproduce`."""
EXPERIMENT = "MLflow's experiment of the runs (default: raydiff- and the name of the data set)"


def preset(argv: Sequence[str]) -> tuple[str, Study, list[str]]:
    """(name, study, the other arguments): a first argument that is no option is a preset or an experiment file."""
    name, rest = (argv[0], list(argv[1:])) if argv and not argv[0].startswith("-") else ("digits", list(argv))
    if name == REPRODUCE:
        return _reproduced(rest)
    return re.sub(r"[^\w.-]", "-", Path(name).stem), names.study(name), rest


def _reproduced(argv: Sequence[str]) -> tuple[str, Study, list[str]]:
    papers = import_module(names.REPRODUCE)
    parser = Parser(f"sweep {REPRODUCE}", None, fields=True)
    for name, choices in (("paper", papers.PAPERS), ("scale", papers.SCALES)):
        parser.add_argument(f"--{name}", choices=choices, required=name == "paper", default=choices[0])
    given, rest = parser.parse_known_args(argv)
    rest += ["--help"] * given.help
    return f"{REPRODUCE}-{given.paper}-{given.scale}", papers.study(given.paper, given.scale), rest


def shorthand(argv: Sequence[str]) -> list[str]:
    """`--model unet` is short for `--method.model.network unet`, `--protocol-only` for `--evaluation none`, and
    `--budget 10` for `--runtime.budget budget --runtime.budget.epsilon 10`.

    Under `--protocol-only` nothing leaves a client but releases; the ledger of them (epsilon, the ceiling of attacks);
    costs: bytes, seconds, the numbers of uploads that were rejected or sent again and of clients that trained in
    lock-step; and the outcome, with its reason. No loss, clipped share, count of records, distance, attack, picture,
    table or bound is recorded, and no sampler logged.
    """
    long = {
        "--model": "--method.model.network",
        "--epsilon": "--method.epsilon",
        "--schedule": "--method.model.schedule",
        "--budget": "--runtime.budget.epsilon",
    }
    out: list[str] = []
    for token in argv:
        name, equals, value = token.partition("=")
        out += ["--runtime.budget", "budget"] if name == "--budget" else []
        out += ["--evaluation", "none"] if token == "--protocol-only" else [long.get(name, name) + equals + value]
    return out


def overrides(start: Experiment, argv: Sequence[str]) -> dict[str, Any]:
    """{path: value} of the command line, with the noise secret that the environment may hold."""
    secret = {"runtime.noise_secret": os.environ[SECRET]} if SECRET in os.environ else {}
    return {**paths.parse_overrides(start, argv), **secret}


def axes(start: Experiment, texts: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """{"seed": (0, 1)} from ["seed=0,1"]. Raises ValueError for what is no axis of this experiment."""
    out = {}
    for text in texts:
        path, equals, values = text.partition("=")
        if not equals or not values:
            raise ValueError(f"an axis looks like method.epsilon=1,5,10, got {text!r}")
        path = path.replace("-", "_")
        out[path] = tuple(paths.convert(start, path, value) for value in values.split(","))
    return out


def distributions(base: Experiment, texts: Sequence[str]) -> dict[str, tuple[str, tuple[float, ...]]]:
    """{"path": ("loguniform", (1e-4, 1e-2))} from ["path=loguniform:1e-4,1e-2"]."""
    known = {"uniform": 2, "loguniform": 2, "randint": 2, "choice": 0}
    out: dict[str, tuple[str, tuple[Any, ...]]] = {}
    for text in texts:
        path, _, rule = text.partition("=")
        kind, _, values = rule.partition(":")
        if kind not in known or not values:
            raise ValueError(
                "a sampled field looks like method.clip=loguniform:1,10 (uniform, loguniform, randint, choice), "
                f"got {text!r}"
            )
        path = path.replace("-", "_")
        arguments = values.split(",")
        if known[kind] and len(arguments) != known[kind]:
            raise ValueError(f"{kind} takes {known[kind]} numbers, got {values!r} for {path}")
        typed = tuple(paths.convert(base, path, v) for v in arguments)
        if kind != "choice" and not all(type(v) in (int, float) for v in typed):
            raise ValueError(f"{kind} needs numbers for {path}, got {values!r}")
        if kind in ("uniform", "loguniform") and any(type(v) is int for v in typed):
            raise ValueError(f"{path} takes integers: use randint or choice, not {kind}")
        if kind != "choice" and not typed[0] < typed[1]:
            raise ValueError(f"the range of {path} must go upwards, got {values!r}")
        if kind == "loguniform" and not typed[0] > 0:
            raise ValueError(f"the range of {path} must be positive for loguniform, got {values!r}")
        out[path] = (kind, typed)
    return out


def help_text(doc: str | None, options: str, start: Any) -> str:
    """The command's docstring, its own options, and every field that can be set, with its value and what it means."""
    return f"{doc}\n{options}\nFIELDS, with their values here:\n\n{fields.described(start)}"
