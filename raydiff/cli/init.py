"""Write an experiment file for a data set: network, steps, clip and splits by its size and shape, and the time.

    raydiff init path/to/pictures                  # writes pictures.toml
    raydiff init hub:owner/name --data.size 32
    raydiff init customers.csv --data.labels churned
    raydiff init customers.csv --data.labels churned --release --epsilon 1      # rows that may leave the house

DATA is what --data.name takes. Overrides are those of raydiff run, and stand in the file. The rules are in
docs/how-to/init.md. The time is that of a trial with a few steps, evaluation and all, on this machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raydiff import process
from raydiff.cli import arguments
from raydiff.cli.options import parse_known
from raydiff.data import datasets
from raydiff.data.tables.encode import OTHER
from raydiff.data.tables.read import is_table
from raydiff.experiment import overrides, suggested, toml_file, trial
from raydiff.experiment.config import Experiment
from raydiff.experiment.presets import PRESETS
from raydiff.methods.marginals import Marginals
from raydiff.runtime import estimate
from raydiff.runtime.estimate import duration

NAMED = 10  # Most classes that are named; of more, only their number.


@dataclass(frozen=True, kw_only=True)
class InitOptions:
    out: Path | None = None
    """The file (default: the data set's name and .toml)."""
    release: bool = False
    """Of a table: synthetic rows that may be released at an --epsilon, by counts or by --method dpsgd."""


def main(argv: Sequence[str]) -> int:
    """Load the data, choose settings, try them, write the file."""
    name, rest = arguments.first(argv, "")
    start = _start(name, release="--release" in rest)
    options, fields = parse_known(InitOptions, arguments.shorthand(rest), __doc__, start)
    out = _vacant(name, options.out)
    changes = overrides.parse_overrides(start, fields)
    start = overrides.override(start, changes)
    if options.release:
        _check_release(name, start, changes)
    with _speaking() as say:
        say(f"reading {name}")
        sizes, began = suggested.splits(start.data, changes), time.monotonic()
        dataset = datasets.load(overrides.override(start, sizes).data)
        reading_s = time.monotonic() - began
        release = type(start.method) if options.release else None
        suggestion = suggested.suggested(dataset, clients=start.clients, release=release)
        values = {"data.name": name, **sizes, **_fitting(start, suggestion.values, changes)}
        experiment = toml_file.parse(suggested.written("", suggestion, values), str(out), PRESETS).experiment
        trial.resolve(experiment)
        seconds = estimate.alone(experiment, reading_s=reading_s, say=say)
    train = shlex.join(["raydiff", "run", str(out), *(["--name", out.stem] if options.release else [])])
    train += f"    # about {duration(seconds)} on the machine that wrote this"
    classes = [name for name in dataset.label_names[0] if name != OTHER]
    named = f": {', '.join(map(str, classes))}" if len(classes) <= NAMED else ""
    about = f"{name}: {dataset.says}, {len(classes)} classes{named}"
    notes = [note for note in (*dataset.notes, _public(dataset, experiment), suggestion.warns) if note]
    last = f"raydiff generate {shlex.quote(out.stem)} --source global    # the rows, and a card with their guarantee"
    commands = [train, *([last] if options.release else [])]
    head = [about, f"written by: raydiff init {shlex.join(argv)}", *commands, *notes]
    out.write_text(suggested.written("\n".join(head), suggestion, values))
    print("\n".join([about, *notes, f"wrote {out}", *(f"next: {command}" for command in commands)]))
    return 0


def _start(name: str, *, release: bool) -> Experiment:
    """The preset's experiment on this data set."""
    base: Experiment = PRESETS["tabular-german" if is_table(name) else "digits"]().experiment
    if release and not is_table(name):
        raise ValueError(f"--release is for tables, and {name} is none: the samples' card tells what covers pictures")
    start: Experiment = overrides.override(base, {"method": Marginals} if release else {})
    return replace(start, data=datasets.Data(name=name)) if name else start


def _vacant(name: str, out: Path | None) -> Path:
    """The file to write. Raises ValueError if it exists, or cannot be written."""
    if not name:
        raise ValueError("DATA is missing: a folder, a .csv or .parquet file, hub:owner/name, or a name")
    stem = re.sub(r"[^\w.-]", "-", Path(name.rpartition(":")[2]).absolute().stem)
    out = out or Path(stem + toml_file.SUFFIX)
    if out.suffix != toml_file.SUFFIX:
        raise ValueError(f"--out must end in {toml_file.SUFFIX}, got {out}")
    if out.exists():
        raise ValueError(f"{out} exists already: remove it, or give another --out")
    if not os.access(out.absolute().parent, os.W_OK):
        raise ValueError(f"{out} cannot be written: there is no folder {out.absolute().parent} to write in")
    return out


def _check_release(name: str, start: Experiment, changes: Mapping[str, Any]) -> None:
    """Raises ValueError unless the rows will carry a guarantee that the user has chosen."""
    if type(start.method) not in suggested.RELEASING:
        raise ValueError("--release needs --method marginals (counts) or dpsgd: rows of others carry no guarantee")
    if getattr(start.method, "epsilon", None) is None or "method.epsilon" not in changes:
        raise ValueError(
            f"--release needs the epsilon at which rows may leave: raydiff init {name} --release --epsilon 1"
        )


@contextlib.contextmanager
def _speaking() -> Iterator[Callable[[str], None]]:
    """A function that says what is done now; it is said again every WAIT_S seconds."""
    phase, since = [""], time.monotonic()

    def say(what: str) -> None:
        phase[0] = what
        print(f"{what} ...", flush=True)

    with process.saying(lambda: f"{phase[0]}: {time.monotonic() - since:.0f} s since the start", process.WAIT_S):
        yield say


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
