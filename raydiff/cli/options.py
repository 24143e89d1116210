"""Command-line options: one frozen dataclass a command.

A field is an option: `out` is --out. Its annotation types the value, its default is the option's, and the docstring
beneath it is the help text. `positional()` marks an argument without a name; a bool is a flag; a tuple takes several
values.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from raydiff.experiment import fields, overrides
from raydiff.experiment.config import Runtime
from raydiff.lookup import nearest

if TYPE_CHECKING:
    from raydiff.results.finished import Finished

T = TypeVar("T")


def positional(default: Any = MISSING) -> Any:
    """A field that is given without its name; required unless it has a default."""
    return dataclasses.field(default=default, metadata={"positional": True})


@dataclass(frozen=True, kw_only=True)
class StorageOptions:
    """Options of a command that looks sweeps up."""

    storage: Path = Path(Runtime.storage).expanduser()
    """Folder of the sweeps and of the default MLflow store."""


@dataclass(frozen=True, kw_only=True)
class RunOptions(StorageOptions):
    """Options of a command on a finished run."""

    run: str = positional()
    """An MLflow run, a digest (its first digits suffice), SWEEP/DIGEST, or a trial's folder."""

    def open(self) -> Finished:
        """The run with its data and the server's state. Raises ValueError where there is none."""
        from raydiff.results.finished import open_finished
        from raydiff.runtime import sweep_folder

        return open_finished(sweep_folder.trial_folder(self.run, self.storage))


def parse(cls: type[T], argv: Sequence[str], doc: str | None) -> T:
    """The options that the arguments give; --help prints `doc` and the options, and exits.

    Raises ValueError naming the option, what it takes, and the nearest name.
    """
    return parse_known(cls, argv, doc, None)[0]


def parse_known(cls: type[T], argv: Sequence[str], doc: str | None, start: Any) -> tuple[T, list[str]]:
    """(options, the other arguments), which override fields of the tree `start`; --help shows these fields too."""
    if {"--help", "-h"} & {*argv}:
        print(_help(cls, doc, start), flush=True)
        sys.exit(0)
    named, unnamed, rest = split(cls, argv)
    known = [
        *map(_label, _fields(cls)),
        *(f"--{path}" for path in (overrides.flat(start) if start is not None else ())),
    ]
    for token in rest:
        option = token.partition("=")[0]
        path = option[2:].replace("-", "_")
        if token.startswith("--") and (start is None or not ("." in path or overrides.has_path(start, path))):
            raise ValueError(f"unknown option {option}{nearest(option, known)}")
    return build(cls, named, unnamed), rest


def split(cls: type[Any], argv: Sequence[str]) -> tuple[dict[str, list[str]], list[str], list[str]]:
    """(field -> its words, words that belong to no option, options that the class has not, with their words)."""
    hints, labels = typing.get_type_hints(cls), {_label(f): f.name for f in _fields(cls)}
    named, unnamed, rest = dict[str, list[str]](), list[str](), list[str]()
    taking, room = unnamed, math.inf
    for token in argv:
        option, equals, value = token.partition("=")
        name = labels.get(option.replace("_", "-"))
        if not token.startswith("--"):
            if not room:
                taking, room = unnamed, math.inf
            taking.append(token)
            room -= 1
        elif name is None:
            rest.append(token)
            taking, room = rest, math.inf
        else:
            room = _most_words(hints[name])
            if room <= 1:  # The last one counts; values of a tuple add up.
                named[name] = []
            taking = named.setdefault(name, [])
            if equals:
                taking.append(value)
                room = 0
    return named, unnamed, rest


def build(cls: type[T], named: Mapping[str, list[str]], unnamed: Sequence[str]) -> T:
    """The options from their words. Raises ValueError for a value of another type, and for one that is missing."""
    hints, left, values = typing.get_type_hints(cls), list(unnamed), dict[str, Any]()
    for f in _fields(cls):
        words = named.get(f.name)
        if "positional" in f.metadata:
            words = [left.pop(0)] if left else None
        if words is not None:
            flag = hints[f.name] is bool and not words
            values[f.name] = overrides.parse_value(hints[f.name], _label(f), ["true"] if flag else words)
        elif f.default is MISSING:
            raise ValueError(f"{_label(f)} is missing: {fields.sentences(cls)[f.name]}")
    if left:
        raise ValueError(f"unexpected argument {left[0]!r}")
    return cls(**values)


def _fields(cls: type[Any]) -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(cls) if f.init]


def _most_words(declared: Any) -> float:
    """How many words an option of this type takes at most."""
    if declared is bool:
        return 0
    return math.inf if any(typing.get_origin(o) is tuple for o in overrides.alternatives(declared)) else 1


def _label(f: dataclasses.Field[Any]) -> str:
    return f.name.upper() if "positional" in f.metadata else f"--{f.name.replace('_', '-')}"


def _help(cls: type[Any], doc: str | None, start: Any) -> str:
    hints, texts = typing.get_type_hints(cls), fields.sentences(cls)
    entries = [fields.entry("--help", "Show this text.")]
    for f in sorted(_fields(cls), key=lambda f: "positional" not in f.metadata):
        value = "" if f.default is MISSING or hints[f.name] is bool else f" {overrides.short(f.default)}"
        literals = [o for o in overrides.alternatives(hints[f.name]) if typing.get_origin(o) is Literal]
        allowed = "".join(f"    {overrides.readable(literal)}" for literal in literals)
        entries.append(fields.entry(f"{_label(f)}{value}{allowed}", texts[f.name]))
    below = [] if start is None else [f"fields, with their values here:\n\n{fields.described(start)}"]
    return "\n\n".join([(doc or "").strip(), "options:\n" + "\n".join(entries), *below])
