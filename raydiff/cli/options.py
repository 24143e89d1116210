"""Command-line options: one frozen dataclass a command.

A field is an option (`out` is --out) of the annotated type; the docstring beneath it in the source is the help text.
`positional()` marks an argument without a name; a bool is a flag; a tuple takes several values.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import textwrap
import typing
from collections.abc import Container, Iterator, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from raydiff.experiment import overrides
from raydiff.experiment.config import Experiment, Runtime
from raydiff.lookup import check_value, nearest
from raydiff.settings import SettingsError, alternatives, describe_choices, hints as hints_of, parse_words

if TYPE_CHECKING:
    from raydiff.results.finished import Finished

T = TypeVar("T")
COMMON = "method method.epsilon method.clip method.rounds method.model.network method.local.steps data.name clients"
COMMON += " partition seed runtime.workers runtime.storage"
"""The fields that are set most often, shown first."""
WIDTH = 118
Fields = list[tuple[str, list[str]]]
"""(path, words) of each option of a command line."""
SHORT = {
    "model": "method.model.network",
    "epsilon": "method.epsilon",
    "schedule": "method.model.schedule",
    "budget": "runtime.budget.epsilon",
    "storage": "runtime.storage",
}
"""What is short for a field, where the command has no option of this name."""
ALIASES = {"runtime.storage": "storage"}  # options that both an experiment and a command that reads one have


def positional(default: Any = MISSING) -> Any:
    """An argument without a name; required unless it has a default."""
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
    """An MLflow run, a digest (its first digits suffice), SWEEP/DIGEST, a folder, or a sweep of one trial."""

    def open(self) -> Finished:
        """The run with its data and the server's state. Raises ValueError where there is none."""
        from raydiff.results.finished import open_finished
        from raydiff.runtime import sweep_folder

        return open_finished(sweep_folder.trial_named(self.run, self.storage))


def check_option(options: Any, name: str, ok: bool, wanted: str) -> None:
    """Raises ValueError, naming the option and what it takes, unless `ok`."""
    check_value(f"--{name.replace('_', '-')}", getattr(options, name), ok, wanted)


def subset(options: Any, cls: type[T], **values: Any) -> T:
    """The base class `cls` of the options, with their values and these."""
    return cls(**{f.name: values.get(f.name, getattr(options, f.name)) for f in dataclasses.fields(cls)})  # type: ignore[arg-type]


def is_vacant(folder: Path) -> bool:
    """Whether a folder is missing or empty, so that a command may write there."""
    return not folder.is_dir() or not any(folder.iterdir())


def parse_options(cls: type[T], argv: Sequence[str], doc: str | None) -> T:
    """The options of a command; --help prints `doc` and the options, and exits.

    Raises ValueError naming the option, what it takes, and the nearest name.
    """
    return parse_command(cls, argv, doc, None)[0]


def parse_command(cls: type[T], argv: Sequence[str], doc: str | None, start: Any) -> tuple[T, Fields]:
    """(options, the other options as (path, words)), which override fields of the tree `start`.

    --help shows its common fields too, --help-all all of them.
    """
    if {"--help", "-h", "--help-all"} & {*argv}:
        print(_help(cls, doc, start, whole="--help-all" in argv), flush=True)
        sys.exit(0)
    own = {f.name for f in labels(cls).values()}
    groups = split(argv, flags=["protocol_only", *(name for name in own if hints_of(cls)[name] is bool)])
    options, rest = take(cls, _expand(groups, own) if isinstance(start, Experiment) else groups)
    paths = [] if start is None else [path for path, _, _ in overrides.walk(start)]
    for path, _ in rest:
        if path not in paths and not (paths and "." in path):
            option = f"--{path.replace('_', '-')}"
            raise ValueError(f"unknown option {option}{nearest(option, [*labels(cls), *(f'--{p}' for p in paths)])}")
    return options, rest


def split(argv: Sequence[str], flags: Container[str] = ()) -> Fields:
    """[(path, words)] of `--a.b word ...` and `--a.b=word`; the path of words that belong to no option is "".

    No word that follows one of the `flags` belongs to it.
    """
    groups: Fields = [("", [])]
    for token in argv:
        option, equals, value = token.partition("=")
        if not token.startswith("--"):
            groups[-1][1].append(token)
            continue
        path = option[2:].replace("-", "_")
        groups.append((path, [value] if equals else []))
        if equals or path in flags:
            groups.append(("", []))
    return [(path, words) for path, words in groups if path or words]


def _expand(groups: Fields, own: Container[str]) -> Fields:
    """The options, with fields in place of what is short for them, unless it is an option of the command itself."""
    out: Fields = []
    for path, words in groups:
        if path == "protocol_only":
            out.append(("evaluation", ["none"]))
        elif path in own:
            out.append((path, words))
        else:
            out += [("runtime.budget", ["budget"])] if path == "budget" else []
            out.append((SHORT.get(path, path), words))
    return out


def take(cls: type[T], groups: Fields) -> tuple[T, Fields]:
    """(the options, those that the class does not have).

    Raises ValueError for a value of another type, for one that is missing, and for a word that belongs to no option.
    """
    named = {f.name: f for f in labels(cls).values() if "positional" not in f.metadata}
    words = dict[str, list[str]]()
    unnamed = list[str]()
    rest: Fields = []
    for path, values in groups:
        field = named.get(ALIASES.get(path, path))
        if not path:
            unnamed += values
        elif field is None:
            rest.append((path, values or ["true"]))
        elif any(typing.get_origin(o) is tuple for o in alternatives(hints_of(cls)[field.name])):
            words.setdefault(field.name, []).extend(values)  # Values of a tuple add up; of others the last one counts.
        else:
            words[field.name] = values[:1]
            unnamed += values[1:]
    return _build(cls, words, unnamed), rest


def _build(cls: type[T], words: dict[str, list[str]], unnamed: list[str]) -> T:
    values: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for label, f in labels(cls).items():
        declared = hints_of(cls)[f.name]
        if "positional" in f.metadata and unnamed:
            count = len(unnamed) if typing.get_origin(declared) is tuple else 1
            words[f.name] = unnamed[:count]
            del unnamed[:count]
        if f.name in words:
            is_flag = declared is bool and not words[f.name]
            try:
                values[f.name] = parse_words(declared, ["true"] if is_flag else words[f.name])
            except ValueError as e:
                problems[label] = str(e)
        elif f.default is MISSING:
            problems[label] = f"is missing: {_sentences(cls)[f.name]}"
    if problems:
        raise SettingsError(problems)
    if unnamed:
        raise ValueError(f"unexpected argument {unnamed[0]!r}")
    return cls(**values)


def labels(cls: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """--name, or NAME of a positional argument -> field."""
    return {
        f.name.upper() if "positional" in f.metadata else f"--{f.name.replace('_', '-')}": f
        for f in dataclasses.fields(cls)
        if f.init
    }


def _help(cls: type[Any], doc: str | None, start: Any, *, whole: bool) -> str:
    hints = hints_of(cls)
    texts = _sentences(cls)
    entries = [_entry("--help", "Show this text; --help-all shows every field.")]
    for label, f in sorted(labels(cls).items(), key=lambda item: "positional" not in item[1].metadata):
        value = "" if f.default is MISSING or hints[f.name] is bool else f" {overrides.format_value(f.default)}"
        entries.append(_entry(f"{label}{value}{_allowed(hints[f.name])}", texts[f.name]))
    below = [] if start is None else [f"fields, with their values here:\n\n{_describe_fields(start, whole=whole)}"]
    return "\n\n".join([(doc or "").strip(), "options:\n" + "\n".join(entries), *below])


def _sentences(cls: type[Any]) -> dict[str, str]:
    """Field -> the first sentence of its docstring, in the class or in a base."""
    texts: dict[str, str] = {}
    for owner in reversed(inspect.getmro(cls)):
        if not dataclasses.is_dataclass(owner):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)
        for node, below in zip(body.body, body.body[1:], strict=False):
            match node, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    head, stop, _ = " ".join(text.split()).partition(". ")
                    texts[name] = head + stop.rstrip()
    return texts


def _allowed(declared: Any) -> str:
    """The choices or the range of a field, behind its value."""
    text = describe_choices(declared)
    return f"    {text}" if text else ""


def _describe_fields(obj: Any, *, whole: bool) -> str:
    """The common fields with their values and meanings, then, of the whole, the others dataclass by dataclass."""
    texts = {p: _entry(f"--{ALIASES.get(p, p)} {value}", text) for p, value, text in _fields(obj)}
    groups = {"common": [texts[path] for path in COMMON.split() if path in texts]}
    for path in (path for path in texts if whole and path not in COMMON.split()):
        groups.setdefault(path.rpartition(".")[0] or "experiment", []).append(texts[path])
    return "\n\n".join("\n".join([f"{group}:", *members]) for group, members in groups.items())


def _entry(head: str, text: str) -> str:
    """An option as it is typed, and beneath it what it means."""
    below = textwrap.fill(text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return f"  {head}" + (f"\n{below}" if text else "")


def _fields(obj: Any) -> Iterator[tuple[str, str, str]]:
    """(path, value, meaning) of every field but the noise secret, a dataclass before its own fields."""
    entries = list(overrides.walk(obj))
    texts = {cls: _sentences(cls) for cls in {type(parent) for _, _, parent in entries}}
    for path, value, parent in entries:
        name = path.rpartition(".")[2]
        if name != "noise_secret":
            text = type(value).__name__.lower() if dataclasses.is_dataclass(value) else overrides.format_value(value)
            yield path, text + _allowed(hints_of(type(parent))[name]), texts[type(parent)].get(name, "")
