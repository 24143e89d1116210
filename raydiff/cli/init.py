"""Write an experiment file for a data set: network, steps, clip and splits by its size and shape, and the time.

    raydiff init path/to/pictures                  # writes pictures.toml
    raydiff init hub:owner/name --data.size 32
    raydiff init customers.csv --data.labels churned
    raydiff init customers.csv --data.labels churned --release --epsilon 1      # rows that may leave the house

DATA is what --data.name takes. Overrides are those of raydiff run, and stand in the file. The rules are in
docs/how-to/init.md. The time is that of a trial with a few steps, evaluation and all, on this machine.
"""

import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raydiff import lookup, process
from raydiff.cli import arguments
from raydiff.cli.options import parse_command
from raydiff.data import datasets
from raydiff.data.tables.encode import OTHER
from raydiff.data.tables.read import is_table
from raydiff.experiment import overrides, suggested, toml_file, trial
from raydiff.experiment.config import Experiment
from raydiff.experiment.presets import PRESETS
from raydiff.runtime import estimate
from raydiff.runtime.estimate import format_duration

NAMED = 10  # Most classes that are named; of more, only their number.


@dataclass(frozen=True, kw_only=True)
class InitOptions:
    out: Path | None = None
    """The file (default: the data set's name and .toml)."""
    release: bool = False
    """Of a table: synthetic rows that may be released at an --epsilon, by counts or by --method dpsgd."""


def main(argv: Sequence[str]) -> int:
    """Load the data, choose settings, try them, write the file."""
    name, rest = arguments.split_first(argv, "")
    start: Experiment = PRESETS["tabular-german" if is_table(name) else "digits"]().experiment
    rest = ["--method", "marginals", *rest] if "--release" in rest else rest  # Of two methods the last counts.
    options, fields = parse_command(InitOptions, rest, __doc__, start)
    out = _choose_file(name, options.out)
    start = replace(start, data=datasets.Data(name=name))
    changes = overrides.parse_fields(start, fields)
    start = overrides.override(start, changes)
    released = _check_release(name, start.method, changes) if options.release else {}
    with process.waiting("the measurements"):
        print(f"reading {name} ...", flush=True)
        sizes = suggested.splits(start.data, changes)
        began = time.monotonic()
        dataset = datasets.load_dataset(overrides.override(start, sizes).data)
        reading_s = time.monotonic() - began
        suggestion = suggested.suggested(dataset, clients=start.clients)
        values = {"data.name": name, **sizes, **_fit_to_method(start, {**suggestion.values, **released}, changes)}
        experiment = toml_file.parse_study(suggested.written("", suggestion, values), str(out), PRESETS).experiment
        trial.resolve_on_data(experiment)
        seconds = estimate.estimate_trial_s(experiment, reading_s=reading_s)
    train = shlex.join(["raydiff", "run", str(out), *(["--name", out.stem] if options.release else [])])
    commands = [f"{train}    # about {format_duration(seconds)} on the machine that wrote this"]
    if options.release:
        request = f"--source global --labels public --num {len(dataset.splits['train'])}"
        commands.append(f"raydiff generate {out.stem} {request}    # the rows, and a card with their guarantee")
    classes = [name for name in dataset.label_names[0] if name != OTHER]
    named = f": {', '.join(map(str, classes))}" if len(classes) <= NAMED else ""
    about = f"{name}: {dataset.says}, {len(classes)} classes{named}"
    notes = [note for note in (*dataset.notes, _public(dataset, experiment), suggestion.warns) if note]
    head = [about, f"written by: raydiff init {shlex.join(argv)}", *commands, *notes]
    out.write_text(suggested.written("\n".join(head), suggestion, values))
    print("\n".join([about, *notes, f"wrote {out}", *(f"next: {command}" for command in commands)]))
    return 0


def _choose_file(name: str, out: Path | None) -> Path:
    """The file to write. Raises ValueError if it exists, or cannot be written."""
    if not name:
        raise ValueError("DATA is missing: a folder, a .csv or .parquet file, hub:owner/name, or a name")
    stem = re.sub(r"[^\w.-]", "-", Path(name.rpartition(":")[2]).absolute().stem)
    out = out or Path(stem + toml_file.SUFFIX)
    if out.exists() or not os.access(out.absolute().parent, os.W_OK):
        why = "exists already: remove it" if out.exists() else "cannot be written: its folder is missing or protected"
        raise ValueError(f"{out} {why}, or give another --out")
    return out


def _check_release(name: str, method: Any, changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings of a method whose rows carry a guarantee. Raises ValueError unless the user has chosen its epsilon."""
    if not is_table(name) or (kind := type(method).__name__) not in suggested.RELEASING:
        raise ValueError(
            "--release needs a table, with --method marginals (counts, the default) or dpsgd: rows of others carry "
            "no guarantee"
        )
    if changes.get("method.epsilon") is None:
        raise ValueError("--release needs the epsilon at which rows may be released, such as --release --epsilon 1")
    return suggested.RELEASING[kind]


def _public(dataset: datasets.Dataset, experiment: Experiment) -> str:
    """How many of the user's own rows are public, and the alternatives; "" where there are none."""
    count = len(dataset.splits["public"])
    rows = sum(map(len, dataset.splits.values()))
    if experiment.data.public_from or not count:
        return ""
    return (
        f"{count / rows:.0%} of your own rows ({count} of {rows}) are declared public, and nothing protects them: "
        f"{dataset.modality.fewer_public}"
    )


def _fit_to_method(start: Experiment, suggestion: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Suggested values and the user's, as an experiment file has them; without fields that the chosen method lacks."""
    classes = {f"{path}.kind": lookup.name_on_disk(value) for path, value in changes.items() if isinstance(value, type)}
    plain = {path: value for path, value in changes.items() if not isinstance(value, type)}
    fitting = {}
    for path, value in {**suggestion, **classes, **plain}.items():
        field = path.removesuffix(".kind")
        if overrides.has_path(start, field):
            words = list(map(str, value)) if isinstance(value, list | tuple) else [str(value)]
            start = overrides.override(start, {field: overrides.parse_field(start, field, words)})
            fitting[path] = value
    return fitting
