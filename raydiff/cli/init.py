"""Write an experiment file for a data set: network, steps, clip and splits by its size and shape, and the time.

    raydiff init path/to/pictures                  # writes pictures.toml
    raydiff init hub:owner/name --data.size 32
    raydiff init customers.csv --data.labels churned
    raydiff run pictures.toml                      # or raydiff sweep pictures.toml; options override the file

DATA is what `--data.name` takes: see `raydiff preview`. Overrides are those of `raydiff run`, and stand in the file.
The rules are in docs/how-to/init.md. The time is that of a trial with a few steps, evaluation and all, on this machine.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from raydiff.cli import arguments as command
from raydiff.cli.parser import Parser
from raydiff.data import datasets
from raydiff.data.splits import SPLITS
from raydiff.data.tables.read import is_table
from raydiff.experiment import overrides as settings
from raydiff.experiment import suggested, trial
from raydiff.experiment import toml_file as file
from raydiff.experiment.config import Experiment
from raydiff.experiment.presets import PRESETS
from raydiff.runtime import estimate
from raydiff.runtime.eta import duration

NAMED = 10  # classes that are named; of more, how many there are


def main(argv: Sequence[str]) -> int:
    """Look, choose, try, write."""
    subject, rest = (argv[0], argv[1:]) if argv and not argv[0].startswith("-") else ("", argv)
    parser = _options()
    options, overrides = parser.parse_known_args(command.shorthand(rest))
    start: Experiment = PRESETS["tabular-german" if is_table(subject) else "digits"]().experiment
    if options.help:
        print(command.help_text(__doc__, parser.format_help(), start))
        return 0
    if not subject:
        raise ValueError("raydiff init needs a data set: a folder, a .csv or .parquet file, hub:owner/name, or a name")
    out = options.out or Path(re.sub(r"[^\w.-]", "-", Path(subject.rpartition(":")[2]).absolute().stem) + file.SUFFIX)
    if out.exists():
        raise ValueError(f"{out} exists already: take it away, or give another --out")
    print(f"reading {subject} ...", flush=True)
    start = replace(start, data=datasets.Data(name=subject))
    given = settings.parse_overrides(start, overrides)
    start = settings.override(start, given)
    sizes: dict[str, Any] = {}
    if not any(f"data.{split}" in given for split in SPLITS):
        sizes = {f"data.{split}": n for split, n in suggested.splits(start.data).items()}
    dataset = datasets.load(settings.override(start.data, {k.removeprefix("data."): n for k, n in sizes.items()}))
    found = suggested.suggested(dataset)
    values = {"data.name": subject, **sizes, **_fields(start, {**found.values, **_as_written(given)})}
    text = suggested.written("", found, values)
    experiment = file.parse(text, str(out), PRESETS).experiment
    trial.resolve(experiment)
    print("trying it with a few steps, evaluation and all ...", flush=True)
    train = f"raydiff run {out}    # about {duration(estimate.alone(experiment))} on the machine that wrote this"
    about = f"{subject}: {dataset.says}, {_classes(dataset.label_names[0])}"
    head = [
        about,
        f"written by: raydiff init {shlex.join(argv)}",
        train,
        *filter(None, [_public(dataset, experiment), found.warns]),
    ]
    out.write_text(suggested.written("\n".join(head), found, values))
    print("\n".join([about, *head[3:], f"wrote {out}", f"next: {train}"]))
    return 0


def _public(dataset: datasets.Dataset, experiment: Experiment) -> str:
    """How many of the user's own rows nothing protects, and the ways out; "" where there are none."""
    count, rows = len(dataset.splits["public"]), sum(map(len, dataset.splits.values()))
    says = f"{count / rows:.0%} of your own rows ({count} of {rows}) are declared public, and nothing protects them: "
    says += "--data.public-from NAME takes pictures of another data set, --data.public 0 none"
    return "" if experiment.data.public_from or not count else says


def _classes(names: Sequence[str]) -> str:
    """Few by name: of a table one of them may be that of values which no public row has."""
    named = f": {', '.join(map(str, names))}" if len(names) <= NAMED else ""
    return f"{len(names)} classes{named}"


def _options() -> Parser:
    p = Parser("init DATA", __doc__, fields=True)
    p.add_argument("--out", type=Path, default=None, help="the file (default: the data set's name and .toml)")
    return p


def _as_written(given: Mapping[str, Any]) -> dict[str, Any]:
    """Values as an experiment file has them."""
    kinds = {f"{path}.kind": settings.kind(value) for path, value in given.items() if isinstance(value, type)}
    return kinds | {path: value for path, value in given.items() if not isinstance(value, type)}


def _fields(start: Experiment, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values whose fields the experiment has: another method than the suggested one lacks some."""
    found = {}
    for path, value in values.items():
        field = path.removesuffix(".kind")
        if settings.has_path(start, field):
            words = list(map(str, value)) if isinstance(value, list | tuple) else [str(value)]
            start = settings.override(start, {field: settings.convert(start, field, words)})
            found[path] = value
    return found
