"""Settings: trees of frozen dataclasses as JSON, as flat paths, and with fields overridden by path.

A field of several dataclasses takes a class name (`--method fedavg`): fields of both classes are kept, and those never
set take the new class's default where it refuses the old one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from raydiff import methods as methods  # the door of methods
from raydiff.lookup import DOORS, name_on_disk, nearest, resolve, unfit
from raydiff.storage.staging import SECRET

CONSTANTS = {(bool, "true"): True, (bool, "false"): False, (type(None), "none"): None}
NAMES: dict[Any, str] = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
NAMES |= {Path: "a path on this machine", type(None): "none"}


def to_dict(obj: Any, *, locations: bool = True) -> Any:
    """JSON-ready tree with class names under "kind". Without `locations` it omits fields whose metadata `location` is
    "value", and of "folder" all but the last part of the path."""
    if not dataclasses.is_dataclass(obj):
        return list(obj) if isinstance(obj, tuple) else obj
    tree = {"kind": name_on_disk(type(obj))}
    for f in dataclasses.fields(obj):
        value, location = getattr(obj, f.name), f.metadata.get("location")
        if locations or location is None:
            tree[f.name] = to_dict(value, locations=locations)
        elif location == "folder" and value is not None:
            tree[f.name] = Path(value).name
    return tree


def from_dict(data: Mapping[str, Any], declared: Any) -> Any:
    """The inverse of `to_dict`; a missing field has its default. Raises ValueError on unknown names."""
    cls = _class_on_disk(data.get("kind"), declared)
    hints, values = typing.get_type_hints(cls), dict[str, Any]()
    for name, value in ((k, v) for k, v in data.items() if k != "kind"):
        if name not in hints:
            raise ValueError(f"{cls.__name__} has no field {name!r}{nearest(name, hints)}")
        if isinstance(value, Mapping):
            value = from_dict(value, hints[name])
        elif value == "inf" and float in (hints[name], *typing.get_args(hints[name])):
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


def flat(obj: Any) -> dict[str, Any]:
    """{"method": "PFDM", "method.epsilon": 10.0, ...}: what is printed and logged. The noise secret is left out."""
    out: dict[str, Any] = {}
    for path, value, parent in walk(obj):
        name = path.rpartition(".")[2]
        if name == "noise_secret":
            out[path] = "given" if value else "random"
        elif not dataclasses.is_dataclass(value):
            out[path] = value
        elif len(_dataclasses_of(typing.get_type_hints(type(parent))[name])) > 1:
            out[path] = name_on_disk(type(value))
    return out


def override(obj: Any, values: Mapping[str, Any], prefix: str = "") -> Any:
    """`obj` with these fields replaced at once, or switched to a class. Raises ValueError naming the path."""
    hints, changes = typing.get_type_hints(type(obj)), dict[str, Any]()
    below: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        name, dot, rest = path.partition(".")
        if dot:
            below.setdefault(name, {})[rest] = value
        elif name not in hints:
            raise ValueError(f"unknown field --{prefix}{name}{nearest(name, hints)}")
        elif isinstance(value, type) or (isinstance(value, str) and hints[name] in DOORS):
            cls: Any = value if isinstance(value, type) else _class_named(value, hints[name], (), prefix + name)
            changes[name] = switched(getattr(obj, name), cls)
        else:
            changes[name] = _exact(value, hints[name], prefix + name)
    for name, deeper in below.items():
        changes[name] = override(changes.get(name, getattr(obj, name)), deeper, f"{prefix}{name}.")
    try:
        return dataclasses.replace(obj, **changes)
    except ValueError as e:
        names_a_path = str(e).startswith("--") or not prefix
        raise ValueError(str(e) if names_a_path else f"--{prefix.rstrip('.')}: {e}") from None


def _exact(value: Any, declared: Any, path: str) -> Any:
    """The value as the command line reads it: 10 becomes 10.0 in a float field, else the two would be two trials."""
    options = alternatives(declared)
    value = value.item() if hasattr(value, "item") else value  # a NumPy scalar
    if type(value) is int and float in options and int not in options:
        return float(value)
    literals = {v for o in options if typing.get_origin(o) is Literal for v in typing.get_args(o)}
    plain = type(value) in (int, float, bool, str)
    if plain and Any not in options and type(value) not in options and value not in literals:
        raise ValueError(f"--{path} must be {readable(declared)}, got {value!r}")
    return value


def exact(obj: Any) -> Any:
    """The tree with every value as the command line reads it. Raises ValueError for a value of another type."""
    return override(obj, {path: value for path, value, _ in walk(obj) if not dataclasses.is_dataclass(value)})


def has_path(obj: Any, path: str) -> bool:
    """Whether the tree, as it is now, has a field at this path."""
    return any(path == existing for existing, _, _ in walk(obj))


def convert(obj: Any, path: str, text: str | Sequence[str]) -> Any:
    """The value of a field from its text; of one of several dataclasses its class. Raises ValueError for a bad one."""
    parents = {existing: parent for existing, _, parent in walk(obj)}
    if path not in parents:
        raise ValueError(f"unknown field --{path}{nearest(path, flat(obj))}")
    declared = typing.get_type_hints(type(parents[path]))[path.rpartition(".")[2]]
    words = text.split() if isinstance(text, str) else list(text)
    if classes := _dataclasses_of(declared):
        return _class_named(" ".join(words), declared, classes, path)
    return parse_value(declared, f"--{path}", words)


def parse_overrides(obj: Any, argv: Sequence[str]) -> dict[str, Any]:
    """{path: value} from `--a.b value ...` and `--a.b=value`."""
    pairs: list[tuple[str, list[str]]] = []
    for token in argv:
        if token.startswith("--"):
            name, equals, value = token[2:].partition("=")
            pairs.append((name.replace("-", "_"), [value] if equals else []))
        elif pairs:
            pairs[-1][1].append(token)
        else:
            raise ValueError(f"unexpected argument {token!r}; options look like --method.epsilon 5")
    return typed(obj, [(path, words or ["True"]) for path, words in pairs])


def typed(obj: Any, pairs: Sequence[tuple[str, Sequence[str]]]) -> dict[str, Any]:
    """{path: value} of (path, words); later ones win. A class such as --method applies before its fields."""
    if any(path.endswith("noise_secret") for path, _ in pairs):
        raise ValueError(f"--runtime.noise_secret must not be where others can read it: set {SECRET} instead")
    values: dict[str, Any] = {}
    for path, words in sorted(pairs, key=lambda pair: pair[0].count(".")):
        values[path] = value = convert(obj, path, words)
        if isinstance(value, type) or value is None:
            obj = override(obj, {path: value})
    return values


def _class_named(text: str, declared: Any, classes: Sequence[type], path: str) -> type | None:
    if text.lower() == "none" and type(None) in typing.get_args(declared):
        return None
    if declared in DOORS:
        chosen: type = resolve(f"--{path}", DOORS[declared], text)
        return chosen
    names = {c.__name__.lower(): c for c in classes}
    wanted = text.lower().replace("_", "").replace("-", "")
    if wanted not in names:
        raise ValueError(f"--{path} must be one of {', '.join(names)}, got {text!r}{nearest(wanted, names)}")
    return names[wanted]


def switched(current: Any, cls: type) -> Any:
    """`current` as an object of this class: the fields of both are kept if their values fit."""
    if type(current) is cls:
        return current
    hints, names = typing.get_type_hints(cls), {f.name for f in dataclasses.fields(cls) if f.init}
    values = {} if current is None else {f.name: getattr(current, f.name) for f in dataclasses.fields(current)}
    kept = {name: value for name, value in values.items() if name in names and _fits(value, hints[name])}
    try:
        return cls(**kept)
    except ValueError:  # The class may refuse a default of the old one, such as AdamW where only SGD will do.
        before, now = ({f.name: f.default for f in dataclasses.fields(c)} for c in (type(current), cls))
        return cls(**{name: _rebased(value, before[name], now[name]) for name, value in kept.items()})


def _fits(value: Any, declared: Any) -> bool:
    """Whether a field takes the value: of its dataclasses one of them, of a `Literal` one of its values."""
    if typing.get_origin(declared) is Literal:
        return value in typing.get_args(declared)
    classes = _dataclasses_of(declared)
    if declared in DOORS:
        return not unfit(type(value), declared)
    return type(value) in classes if dataclasses.is_dataclass(value) else value is None or not classes


def _rebased(value: Any, before: Any, now: Any) -> Any:
    """A dataclass with the fields that differ from the default `before` kept and the others as in the default `now`."""
    if not (dataclasses.is_dataclass(now) and type(value) is type(before) is type(now)):
        return value
    names = [f.name for f in dataclasses.fields(value) if getattr(value, f.name) != getattr(before, f.name)]
    default: Any = now
    return dataclasses.replace(default, **{name: getattr(value, name) for name in names})


def parse_value(declared: Any, option: str, words: Sequence[str]) -> Any:
    """The words as this type. Raises ValueError naming the option, its type and the nearest allowed value."""
    try:
        return _value(declared, words)
    except ValueError:
        text = " ".join(words)
        choices = [str(v) for o in alternatives(declared) for v in typing.get_args(o) if isinstance(v, str)]
        raise ValueError(f"{option} must be {readable(declared)}, got {text!r}{nearest(text, choices)}") from None


def _value(declared: Any, words: Sequence[str]) -> Any:
    """A number, truth value, text, path, none, one of a `Literal`, a tuple, or the first type of a union that fits."""
    origin, options = typing.get_origin(declared), typing.get_args(declared)
    if len(alternatives(declared)) > 1:
        for option in sorted(options, key=lambda option: option is not type(None)):  # Text would take "none" too.
            with contextlib.suppress(ValueError):
                return _value(option, words)
        raise ValueError
    if origin is tuple:
        if options[0] in (int, float):  # 1,2,3 and 1 2 3
            words = [part for word in words for part in word.split(",")]
        each = [options[0]] * len(words) if options[-1] is Ellipsis else options
        return tuple(_value(option, [word]) for option, word in zip(each, words, strict=True))
    (word,) = words
    if origin is Literal:
        return options[options.index(word)]
    if (declared, word.lower()) in CONSTANTS:
        return CONSTANTS[declared, word.lower()]
    if declared is Path and "://" not in word:
        return Path(word).expanduser().absolute()
    if declared in (int, float, str):
        return declared(word)
    raise ValueError


def readable(declared: Any) -> str:
    """What a value of this type is, in words."""
    options = typing.get_args(declared)
    if typing.get_origin(declared) is Literal:
        return "one of " + ", ".join(map(str, options))
    if len(alternatives(declared)) > 1:
        return " or ".join(map(readable, options))
    if typing.get_origin(declared) is tuple:
        return f"some values, each {readable(options[0])}"
    return NAMES.get(declared, str(declared))


def alternatives(declared: Any) -> tuple[Any, ...]:
    """The types of a union; else the one type."""
    in_union = typing.get_origin(declared) in (types.UnionType, typing.Union)
    return typing.get_args(declared) if in_union else (declared,)


def _class_on_disk(kind: Any, declared: Any) -> Any:
    if declared in DOORS:
        return resolve("kind", DOORS[declared], str(kind))
    classes = {name_on_disk(c): c for c in _dataclasses_of(declared)}
    if kind not in classes:
        raise ValueError(f"unknown kind {kind!r}; known here: {', '.join(classes)}")
    return classes[kind]


def _dataclasses_of(declared: Any) -> list[type]:
    if declared in DOORS:
        return list(DOORS[declared].values())
    return [o for o in alternatives(declared) if dataclasses.is_dataclass(o) and isinstance(o, type)]


def short(value: Any) -> str:
    """A value for people: none, numbers without trailing zeros, tuples with spaces."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (tuple, list)):
        return " ".join(map(str, value))
    return "none" if value is None else str(value)
