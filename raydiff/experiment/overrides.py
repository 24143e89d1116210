"""Settings: trees of frozen dataclasses as JSON, as flat paths, and with fields overridden by path.

A field of several dataclasses takes a class name (`--method fedavg`): fields of both classes are kept, and those never
set take the new class's default where it refuses the old one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from raydiff.lookup import name_on_disk, nearest
from raydiff.settings import SettingsError, adapter, alternatives, class_named, classes_of, hints, parse_words
from raydiff.storage.staging import SECRET


def to_dict(obj: Any, *, locations: bool = True) -> Any:
    """JSON-ready tree with class names under "kind".

    Without `locations` it omits fields whose metadata `location` is "value", and of "folder" all but the last part of
    the path.
    """
    if not dataclasses.is_dataclass(obj):
        return list(obj) if isinstance(obj, tuple) else obj
    tree = {"kind": name_on_disk(type(obj))}
    for f in dataclasses.fields(obj):
        value = getattr(obj, f.name)
        location = f.metadata.get("location")
        if locations or location is None:
            tree[f.name] = to_dict(value, locations=locations)
        elif location == "folder" and value is not None:
            tree[f.name] = Path(value).name
    return tree


def from_dict(data: Mapping[str, Any], declared: Any) -> Any:
    """The inverse of `to_dict`; a missing field has its default. Raises ValueError on unknown names."""
    cls = class_named(declared, str(data.get("kind")))
    assert cls is not None
    values: dict[str, Any] = {}
    for name, value in data.items():
        if name == "kind":
            continue
        if name not in hints(cls):
            raise ValueError(f"{cls.__name__} has no field {name!r}{nearest(name, hints(cls))}")
        if isinstance(value, Mapping):
            try:
                value = from_dict(value, hints(cls)[name])
            except ValueError as e:
                raise ValueError(f"{name}: {e}" if str(e).startswith("must be") else str(e)) from None
        elif value == "inf" and float in alternatives(hints(cls)[name]):
            value = float(value)
        values[name] = tuple(value) if isinstance(value, list) else value
    return cls(**values)


def walk(obj: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, value, the dataclass that has the field) of every field, a dataclass before its own fields."""
    for f in dataclasses.fields(obj):
        value = getattr(obj, f.name)
        yield prefix + f.name, value, obj
        if dataclasses.is_dataclass(value):
            yield from walk(value, f"{prefix}{f.name}.")


def flatten_settings(obj: Any) -> dict[str, Any]:
    """{"method": "PFDM", "method.epsilon": 10.0, ...}: what is printed and logged. The noise secret is left out."""
    out: dict[str, Any] = {}
    for path, value, parent in walk(obj):
        name = path.rpartition(".")[2]
        if name == "noise_secret":
            out[path] = "given" if value else "random"
        elif not dataclasses.is_dataclass(value):
            out[path] = value
        elif len(classes_of(hints(type(parent))[name])) > 1:
            out[path] = name_on_disk(type(value))
    return out


def override(obj: Any, values: Mapping[str, Any], prefix: str = "") -> Any:
    """`obj` with these fields replaced at once, or switched to a class. Raises ValueError naming the paths."""
    changes: dict[str, Any] = {}
    below: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        name, dot, rest = path.partition(".")
        if name not in hints(type(obj)):
            raise ValueError(f"unknown field --{prefix}{name}{nearest(name, hints(type(obj)))}")
        if dot:
            below.setdefault(name, {})[rest] = value
        else:
            if isinstance(value, str) and classes_of(hints(type(obj))[name]):
                value = _read(f"--{prefix}{name}", hints(type(obj))[name], [value])
            changes[name] = switch_class(getattr(obj, name), value) if isinstance(value, type) else value
    problems: dict[str, str] = {}
    for name, deeper in below.items():
        try:
            changes[name] = override(changes.get(name, getattr(obj, name)), deeper, f"{prefix}{name}.")
        except SettingsError as e:
            problems |= e.problems
    try:
        changed = dataclasses.replace(obj, **changes)
    except SettingsError as e:
        problems |= {prefix + path: text for path, text in e.problems.items()}
    except ValueError as e:
        names_a_path = str(e).startswith("--") or not prefix
        raise ValueError(str(e) if names_a_path else f"--{prefix.rstrip('.')}: {e}") from None
    if problems:
        raise SettingsError(problems)
    return changed


def has_path(obj: Any, path: str) -> bool:
    """Whether the tree, as it is now, has a field at this path."""
    return any(path == existing for existing, _, _ in walk(obj))


def parse_field(obj: Any, path: str, text: str | Sequence[str]) -> Any:
    """The value of a field from its text; of one of several dataclasses its class. Raises ValueError for a bad one."""
    parents = {existing: parent for existing, _, parent in walk(obj)}
    if path not in parents:
        raise ValueError(f"unknown field --{path}{nearest(path, flatten_settings(obj))}")
    declared = hints(type(parents[path]))[path.rpartition(".")[2]]
    words = text.split() if isinstance(text, str) else list(text)
    return _read(f"--{path}", declared, words)


def _read(path: str, declared: Any, words: Sequence[str]) -> Any:
    """The class that the words name, where the field has several, else their value."""
    try:
        return class_named(declared, " ".join(words)) if classes_of(declared) else parse_words(declared, words)
    except ValueError as e:
        if not str(e).startswith("must be"):  # It names the outside code that does not fit.
            raise
        raise SettingsError({path: str(e)}) from None


def parse_each(obj: Any, path: str, texts: Sequence[str]) -> tuple[Any, ...]:
    """The values of a field from a text each, as `parse_field` gives them."""
    return tuple(parse_field(obj, path, text) for text in texts)


def parse_fields(obj: Any, pairs: Sequence[tuple[str, Sequence[str]]]) -> dict[str, Any]:
    """{path: value} of (path, words); later ones win. A class such as --method applies before its fields."""
    if any(path.endswith("noise_secret") for path, _ in pairs):
        raise ValueError(f"--runtime.noise_secret must not be where others can read it: set {SECRET} instead")
    values: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for path, words in sorted(pairs, key=lambda pair: pair[0].count(".")):
        if any(f"--{path}".startswith(f"{refused}.") for refused in problems):
            continue
        try:
            values[path] = value = parse_field(obj, path, words)
        except SettingsError as e:
            problems |= e.problems
            continue
        if isinstance(value, type) or value is None:
            obj = override(obj, {path: value})
    if problems:
        raise SettingsError(problems)
    return values


def switch_class(current: Any, cls: type) -> Any:
    """`current` as an object of this class: the fields of both are kept if their values fit."""
    if type(current) is cls:
        return current
    names = {f.name for f in dataclasses.fields(cls) if f.init}
    values = {} if current is None else {f.name: getattr(current, f.name) for f in dataclasses.fields(current)}
    kept = {name: value for name, value in values.items() if name in names and _fits(value, hints(cls)[name])}
    try:
        return cls(**kept)
    except ValueError:  # The class may refuse a default of the old one, such as AdamW where only SGD will do.
        before, now = ({f.name: f.default for f in dataclasses.fields(c)} for c in (type(current), cls))
        return cls(**{name: _rebase_defaults(value, before[name], now[name]) for name, value in kept.items()})


def _fits(value: Any, declared: Any) -> bool:
    """Whether a field takes the value."""
    try:
        adapter(declared).validate_python(value, strict=True)
    except ValueError:
        return False
    return True


def _rebase_defaults(value: Any, before: Any, now: Any) -> Any:
    """A dataclass with the fields that differ from the default `before` kept and the others as in the default `now`."""
    if not (dataclasses.is_dataclass(now) and type(value) is type(before) is type(now)):
        return value
    names = [f.name for f in dataclasses.fields(value) if getattr(value, f.name) != getattr(before, f.name)]
    default: Any = now
    return dataclasses.replace(default, **{name: getattr(value, name) for name in names})


def format_value(value: Any) -> str:
    """A value for people: none, numbers without trailing zeros, tuples with spaces."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (tuple, list)):
        return " ".join(map(str, value))
    return "none" if value is None else str(value)
