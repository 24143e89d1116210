"""Write an experiment file for a data set: network, steps, clip and splits by its size and shape, and the time.

    raydiff init path/to/pictures                  # writes pictures.toml
    raydiff init hub:owner/name --data.size 32
    raydiff init customers.csv --data.labels churned

DATA is what --data.name takes. Overrides are those of raydiff run, and stand in the file. The rules are in
docs/how-to/init.md. The time is that of a trial with a few steps, evaluation and all, on this machine.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raydiff.cli import arguments
from raydiff.cli.options import parse_known
from raydiff.data import datasets
from raydiff.data.tables.encode import OTHER
from raydiff.data.tables.read import is_table
from raydiff.experiment import overrides, suggested, toml_file, trial
from raydiff.experiment.config import Experiment
from raydiff.experiment.presets import PRESETS
from raydiff.runtime import estimate
from raydiff.runtime.estimate import duration

NAMED = 10  # Most classes that are named; of more, only their number.


@dataclass(frozen=True, kw_only=True)
class InitOptions:
    out: Path | None = None
    """The file (default: the data set's name and .toml)."""


def main(argv: Sequence[str]) -> int:
    """Load the data, choose settings, try them, write the file."""
    name, rest = arguments.first(argv, "")
    base: Experiment = PRESETS["tabular-german" if is_table(name) else "digits"]().experiment
    options, fields = parse_known(InitOptions, arguments.shorthand(rest), __doc__, base)
    if not name:
        raise ValueError("DATA is missing: a folder, a .csv or .parquet file, hub:owner/name, or a name")
    stem = re.sub(r"[^\w.-]", "-", Path(name.rpartition(":")[2]).absolute().stem)
    out = options.out or Path(stem + toml_file.SUFFIX)
    if out.exists():
        raise ValueError(f"{out} exists already: remove it, or give another --out")
    print(f"reading {name} ...", flush=True)
    start = replace(base, data=datasets.Data(name=name))
    changes = overrides.parse_overrides(start, fields)
    start = overrides.override(start, changes)
    sizes = suggested.splits(start.data, changes)
    dataset = datasets.load(overrides.override(start, sizes).data)
    suggestion = suggested.suggested(dataset)
    values = {"data.name": name, **sizes, **_fitting(start, suggestion.values, changes)}
    experiment = toml_file.parse(suggested.written("", suggestion, values), str(out), PRESETS).experiment
    trial.resolve(experiment)
    print("trying it with a few steps, evaluation and all ...", flush=True)
    train = shlex.join(["raydiff", "run", str(out)])
    train += f"    # about {duration(estimate.alone(experiment))} on the machine that wrote this"
    classes = [name for name in dataset.label_names[0] if name != OTHER]
    named = f": {', '.join(map(str, classes))}" if len(classes) <= NAMED else ""
    about = f"{name}: {dataset.says}, {len(classes)} classes{named}"
    notes = [note for note in (*dataset.notes, _public(dataset, experiment), suggestion.warns) if note]
    head = [about, f"written by: raydiff init {shlex.join(argv)}", train, *notes]
    out.write_text(suggested.written("\n".join(head), suggestion, values))
    print("\n".join([about, *notes, f"wrote {out}", f"next: {train}"]))
    return 0


def _public(dataset: datasets.Dataset, experiment: Experiment) -> str:
    """How many of the user's own rows are public, and the alternatives; "" where there are none."""
    count, rows = len(dataset.splits["public"]), sum(map(len, dataset.splits.values()))
    if experiment.data.public_from or not count:
        return ""
    says = f"{count / rows:.0%} of your own rows ({count} of {rows}) are declared public, and nothing protects them"
    other = "--data.public-from NAME takes pictures of another data set, --data.public 0 none"
    return says if dataset.mapping is not None else f"{says}: {other}"


def _fitting(start: Experiment, suggestion: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Suggested values and the user's, as an experiment file has them; without fields that the chosen method lacks."""
    classes = {f"{path}.kind": overrides.kind(value) for path, value in changes.items() if isinstance(value, type)}
    plain = {path: value for path, value in changes.items() if not isinstance(value, type)}
    fitting = {}
    for path, value in {**suggestion, **classes, **plain}.items():
        field = path.removesuffix(".kind")
        if overrides.has_path(start, field):
            words = list(map(str, value)) if isinstance(value, list | tuple) else [str(value)]
            start = overrides.override(start, {field: overrides.convert(start, field, words)})
            fitting[path] = value
    return fitting
