"""Settings: any tree of frozen dataclasses as JSON, as flat paths with values, and with fields overridden by path.

The command line overrides any field by its path, `--method.epsilon 5`. A field that holds one of several dataclasses
takes the name of one, `--method fedavg`, `--method.model.network unet`, and keeps the fields that both have; where the
new one refuses them, those below that were never set are its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from raydiff import methods
from raydiff.federated.method import Method
from raydiff.lookup import is_outside, nearest
from raydiff.storage.staging import SECRET

UNIONS = (types.UnionType, typing.Union)
"""The environment variable that may hold the noise secret, as hexadecimal digits."""

# ---------------------------------------------------------------------------------------------- JSON and flat forms


def to_dict(obj: Any) -> Any:
    """JSON-ready tree; each dataclass carries its class name under "kind", of another package `module:Class`."""
    if dataclasses.is_dataclass(obj):
        fields = {f.name: to_dict(getattr(obj, f.name)) for f in dataclasses.fields(obj)}
        return {"kind": kind(type(obj)), **fields}
    return list(obj) if isinstance(obj, tuple) else obj


def kind(cls: type) -> str:
    """What a class is called on disk. Raises ValueError where no other process could import it."""
    if cls.__module__.startswith("raydiff."):
        return cls.__name__
    if cls.__module__ == "__main__" or "." in cls.__qualname__:
        raise ValueError(f"{cls.__name__} must be in a module that workers can import, at its top level")
    return f"{cls.__module__}:{cls.__qualname__}"


def from_dict(data: Mapping[str, Any], declared: Any) -> Any:
    """The inverse of `to_dict`: an object of the declared class, or of one of a declared union.

    A field that is not there has its default. Raises ValueError on names that this version does not know.
    """
    known = {kind(c): c for c in _dataclasses_of(declared)}
    name = str(data.get("kind"))
    if name not in known and not (declared is Method and is_outside(name)):
        raise ValueError(f"unknown kind {data.get('kind')!r}; known here: {', '.join(known)}")
    cls = known.get(name) or methods.imported(name)
    hints, values = typing.get_type_hints(cls), dict[str, Any]()
    for name, value in data.items():
        if name == "kind":
            continue
        if name not in hints:
            raise ValueError(f"{cls.__name__} has no field {name!r}{nearest(name, hints)}")
        if isinstance(value, Mapping):
            value = from_dict(value, hints[name])
        values[name] = tuple(value) if isinstance(value, list) else value
    return cls(**values)


def flat(obj: Any, prefix: str = "") -> dict[str, Any]:
    """{"method": "PFDM", "method.epsilon": 10.0, ...}: what is printed and logged. The noise secret is left out."""
    out: dict[str, Any] = {}
    for f in dataclasses.fields(obj):
        path, value = prefix + f.name, getattr(obj, f.name)
        if f.name == "noise_secret":
            out[path] = "given" if value else "random"
        elif dataclasses.is_dataclass(value):
            if len(_dataclasses_of(typing.get_type_hints(type(obj))[f.name])) > 1:
                out[path] = kind(type(value))
            out.update(flat(value, path + "."))
        else:
            out[path] = value
    return out


# ------------------------------------------------------------------------------------------------------- overrides


def override(obj: Any, values: Mapping[str, Any], prefix: str = "") -> Any:
    """`obj` with the fields at the given paths replaced, all at once. Raises ValueError naming the path.

    A class as a value switches the field to it and keeps what both have; an integer in a field of numbers becomes one.
    """
    changes: dict[str, Any] = {}
    for name, value in ((k, v) for k, v in values.items() if "." not in k):
        declared = _declared(obj, name, prefix)
        changes[name] = (
            switched(getattr(obj, name), value) if isinstance(value, type) else _exact(value, declared, prefix + name)
        )
    deeper: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        head, _, rest = path.partition(".")
        if rest:
            deeper.setdefault(head, {})[rest] = value
    for head, below in deeper.items():
        changes[head] = override(changes.get(head, getattr(obj, head)), below, f"{prefix}{head}.")
    try:
        return dataclasses.replace(obj, **changes)
    except ValueError as e:
        deeper_says = str(e).startswith("--") or not prefix
        raise ValueError(str(e) if deeper_says else f"--{prefix.rstrip('.')}: {e}") from None


def _declared(obj: Any, name: str, prefix: str) -> Any:
    hints = typing.get_type_hints(type(obj))
    if name not in hints:
        raise ValueError(f"unknown field --{prefix}{name}{nearest(name, hints)}")
    return hints[name]


def _exact(value: Any, declared: Any, path: str) -> Any:
    """10 and 10.0 would be two trials: an integer becomes a float where the field takes floats and no integers.

    Raises ValueError for a number or text that the field does not take.
    """
    options = typing.get_args(declared) if typing.get_origin(declared) in UNIONS else (declared,)
    if hasattr(value, "item"):  # It is one of numpy's numbers.
        value = value.item()
    if type(value) is int and float in options and int not in options:
        return float(value)
    literal = {v for o in options if typing.get_origin(o) is Literal for v in typing.get_args(o)}
    plain = type(value) in (int, float, bool, str)
    if plain and Any not in options and type(value) not in options and value not in literal:
        raise ValueError(f"--{path} must be {_readable(declared)}, got {value!r}")
    return value


def exact(obj: Any, prefix: str = "") -> Any:
    """The tree as the command line would have read it: an integer in a field of numbers is one.

    Raises ValueError for a number or text that a field does not take.
    """
    hints, changes = typing.get_type_hints(type(obj)), {}
    for f in dataclasses.fields(obj):
        value, path = getattr(obj, f.name), prefix + f.name
        is_part = dataclasses.is_dataclass(value)
        changes[f.name] = exact(value, f"{path}.") if is_part else _exact(value, hints[f.name], path)
    return dataclasses.replace(obj, **changes)


def has_path(obj: Any, path: str) -> bool:
    """Whether the tree, as it is now, has a field at this path."""
    head, dot, rest = path.partition(".")
    if not dataclasses.is_dataclass(obj) or head not in {f.name for f in dataclasses.fields(obj)}:
        return False
    return not dot or has_path(getattr(obj, head), rest)


def convert(obj: Any, path: str, text: str | Sequence[str]) -> Any:
    """The value of the field at `path` from its text, by the field's type: for one of several dataclasses its class.

    Raises ValueError in one sentence.
    """
    if not has_path(obj, path):
        raise ValueError(f"unknown field --{path}{nearest(path, flat(obj))}")
    *parents, name = path.split(".")
    owner = functools.reduce(getattr, parents, obj)
    declared = typing.get_type_hints(type(owner))[name]
    tokens = text.split() if isinstance(text, str) else list(text)
    choices = _dataclasses_of(declared)
    if choices:
        return _choice(declared, choices, path, " ".join(tokens))
    return _typed(declared, path, tokens)


def parse_overrides(obj: Any, argv: Sequence[str]) -> dict[str, Any]:
    """{path: value} from `--a.b value ...` and `--a.b=value`; switches are applied before the fields below them are
    looked up."""
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
    """{path: value} of (path, words), of which the later ones win. Raises ValueError, in one sentence, for a path that
    does not exist, for words that its field does not take, and for the noise secret, which others could read."""
    if any(path.endswith("noise_secret") for path, _ in pairs):
        raise ValueError(
            f"--runtime.noise_secret must not be on a command line or in a file, which others can read: set {SECRET}"
        )
    values: dict[str, Any] = {}
    for path, words in sorted(pairs, key=lambda pair: pair[0].count(".")):  # --method is read before --method.epsilon.
        value = convert(obj, path, words)
        values[path] = value
        if isinstance(value, type) or value is None:
            obj = override(obj, {path: value})
    return values


def _choice(declared: Any, choices: Sequence[type], path: str, text: str) -> type | None:
    if text.lower() == "none" and type(None) in typing.get_args(declared):
        return None
    if declared is Method and is_outside(text):
        return methods.imported(text)
    names = {c.__name__.lower(): c for c in choices}
    wanted = text.lower().replace("_", "").replace("-", "")
    if wanted not in names:
        raise ValueError(f"--{path} must be one of {', '.join(names)}, got {text!r}{nearest(wanted, names)}")
    return names[wanted]


def switched(current: Any, cls: type) -> Any:
    """`current` as an object of this class: the fields that both have are kept, as far as they fit."""
    if type(current) is cls:
        return current
    hints = typing.get_type_hints(cls)
    shared = {f.name for f in dataclasses.fields(cls) if f.init}
    kept = {}
    if current is not None:
        values = {f.name: getattr(current, f.name) for f in dataclasses.fields(current) if f.name in shared}
        kept = {name: value for name, value in values.items() if _fits(value, hints[name])}
    try:
        return cls(**kept)
    except ValueError:  # The class may refuse a default of the old one, such as AdamW where only SGD will do.
        before, now = _defaults(type(current)), _defaults(cls)
        return cls(**{name: _moved(value, before[name], now[name]) for name, value in kept.items()})


def _fits(value: Any, declared: Any) -> bool:
    """Whether the field may hold it: a denoiser does not go where a classifier must, nor text where a schedule, nor
    another text than those of a `Literal`."""
    if typing.get_origin(declared) is Literal:
        return value in typing.get_args(declared)
    choices = _dataclasses_of(declared)
    return type(value) in choices if dataclasses.is_dataclass(value) else value is None or not choices


def _defaults(cls: type) -> dict[str, Any]:
    return {f.name: f.default for f in dataclasses.fields(cls)}


def _moved(value: Any, before: Any, now: Any) -> Any:
    """A dataclass whose fields that are as in the old default `before` are as in the new one, `now`; else the value."""
    if not (dataclasses.is_dataclass(now) and type(value) is type(before) is type(now)):
        return value
    names = [f.name for f in dataclasses.fields(value) if getattr(value, f.name) != getattr(before, f.name)]
    moved: Any = now
    return dataclasses.replace(moved, **{name: getattr(value, name) for name in names})


def _typed(declared: Any, path: str, tokens: Sequence[str]) -> Any:
    try:
        return _value(declared, tokens)
    except ValueError:
        raise ValueError(f"--{path} must be {_readable(declared)}, got {' '.join(tokens)!r}") from None


def _value(declared: Any, tokens: Sequence[str]) -> Any:
    """The words as this type: a number, a truth value, text, none, one of a `Literal`, a tuple, or the first of a union
    that they can be. Raises ValueError where they cannot."""
    kind, options = typing.get_origin(declared), typing.get_args(declared)
    if kind in (types.UnionType, typing.Union):
        for option in sorted(options, key=lambda option: option is not type(None)):  # Text would take "none" too.
            with contextlib.suppress(ValueError):
                return _value(option, tokens)
        raise ValueError
    if kind is tuple:
        each = [options[0]] * len(tokens) if options[-1] is Ellipsis else options
        return tuple(_value(option, [token]) for option, token in zip(each, tokens, strict=True))
    (word,) = tokens
    if kind is Literal:
        return options[options.index(word)]
    if declared in (int, float, str):
        return declared(word)
    words = {"true": True, "false": False} if declared is bool else {"none": None}
    if word.lower() not in words:
        raise ValueError
    return words[word.lower()]


def _readable(declared: Any) -> str:
    if typing.get_origin(declared) is Literal:
        return "one of " + ", ".join(str(a) for a in typing.get_args(declared))
    if typing.get_origin(declared) in UNIONS:
        return " or ".join(_readable(a) for a in typing.get_args(declared))
    if typing.get_origin(declared) is tuple:
        return f"some values, each {_readable(typing.get_args(declared)[0])}"
    names = {int: "an integer", float: "a number", bool: "true or false", str: "text", type(None): "none"}
    return names.get(declared, str(declared))


def _dataclasses_of(declared: Any) -> list[type]:
    if declared is Method:
        return list(methods.METHODS.values())
    options = typing.get_args(declared) if isinstance(declared, types.UnionType) else (declared,)
    return [o for o in options if dataclasses.is_dataclass(o) and isinstance(o, type)]


def short(value: Any) -> str:
    """A value for people: none, numbers without their tails, tuples with spaces."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return "none" if value is None else str(value)
