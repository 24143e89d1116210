"""Settings: frozen dataclasses whose annotations say type, range and choices, checked by one function.

The same checks hold for Python, files and command lines:

    @settings(frozen=True, kw_only=True)
    class Training:
        steps: Annotated[int, Ge(1)] = 100

`pydantic` checks the fields before `__post_init__`, which is left for what concerns several fields. It is strict: no
text is taken for a number. `parse_words` reads the words of a command line or of a TOML file.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic.dataclasses
from annotated_types import Ge, Gt, Le, Lt, MinLen, MultipleOf, Unit
from pydantic import AllowInfNan, ConfigDict, TypeAdapter, ValidationError

from raydiff.lookup import Door, nearest, plain_name

__all__ = ["settings"]  # mypy sees it as dataclasses.dataclass

Positive = Annotated[float, Gt(0), AllowInfNan(False)]
NonNegative = Annotated[float, Ge(0), AllowInfNan(False)]
Fraction = Annotated[float, Ge(0), Le(1)]
Count = Annotated[int, Ge(1)]
Natural = Annotated[int, Ge(0)]

CONFIG = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True)
LONGEST = 80  # characters shown of a value
NAMES: dict[Any, str] = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
NAMES |= {Path: "a path on this machine", type(None): "none"}
RANGES: dict[type, str] = {
    Ge: "at least {0.ge:g}",
    Gt: "above {0.gt:g}",
    Le: "at most {0.le:g}",
    Lt: "below {0.lt:g}",
    MultipleOf: "a multiple of {0.multiple_of}",
    MinLen: "at least {0.min_length} of them",
}
RANGE_ERRORS = {"greater_than_equal", "greater_than", "less_than_equal", "less_than", "multiple_of", "too_short"}
RANGE_ERRORS |= {"finite_number"}
"""Pydantic's names of the errors of a range, as opposed to those of a type."""
HINTS: dict[type, dict[str, Any]] = {}  # of `hints`
SECRET_FIELDS = ("noise_secret",)
"""Fields whose value no message prints."""


class SettingsError(ValueError):
    """Fields that do not fit: `problems` maps a field's path to "must be ..., got ..."."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__(dict(problems))
        self.problems = dict(problems)

    def __str__(self) -> str:
        return "; also ".join(f"{path} {text}" for path, text in self.problems.items())


if TYPE_CHECKING:
    from dataclasses import dataclass as settings
else:

    def settings(**flags: bool) -> Callable[[type], type]:
        """Return the decorator of a settings class; `flags` are those of a dataclass.

        The class raises SettingsError, with all fields that do not fit, and whatever its `__post_init__` raises.
        """

        def decorate(cls: type) -> type:
            checked = pydantic.dataclasses.dataclass(cls, config=CONFIG, **flags)
            assert checked.__pydantic_complete__, f"{cls.__name__}: define the types of its fields above it"
            validate = checked.__init__

            @functools.wraps(validate)
            def __init__(self: Any, **values: Any) -> None:
                values = {name: _without_numpy(value) for name, value in values.items()}
                try:
                    validate(self, **values)
                except ValidationError as e:
                    raise _translated(cls, e, values) from None

            checked.__init__ = __init__
            return checked

        return decorate


def _without_numpy(value: Any) -> Any:
    """A NumPy scalar as Python's number."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def _translated(cls: type, error: ValidationError, values: Mapping[str, Any]) -> Exception:
    """What the class raises in place of pydantic's error."""
    problems: dict[str, str] = {}
    for details in error.errors(include_url=False):
        if not details["loc"]:  # raised by __post_init__
            return typing.cast(Exception, details["ctx"]["error"])
        name = str(details["loc"][0])
        if name not in hints(cls):
            problems[name] = f"is no field of {cls.__name__}{nearest(name, hints(cls))}"
        elif name not in values:
            problems[name] = "is missing"
        else:
            problems.setdefault(name, _problem(name, hints(cls)[name], values[name], details))
    return SettingsError(problems)


def _problem(name: str, declared: Any, value: Any, details: Any) -> str:
    """ "must be ..., got ..." of one field."""
    if "error" in details.get("ctx", {}):  # of a Door
        return str(details["ctx"]["error"])
    wanted = _wanted(declared, details)
    classes = [c.__name__ for c in classes_of(declared)]
    if classes:
        wanted = f"an instance of {' or '.join(classes)}" + " or none" * (type(None) in alternatives(declared))
    if name in SECRET_FIELDS:
        return f"must be {wanted}"
    if isinstance(value, type):
        return f"must be {wanted}, got the class {value.__name__}: write {value.__name__}()"
    return f"must be {wanted}, got {' '.join(repr(value).split())[:LONGEST]}"


def _wanted(declared: Any, details: Any) -> str:
    """What a value must be: its range, where its type is right."""
    return (describe_range(declared) if details["type"] in RANGE_ERRORS else "") or readable(declared)


def check_tree(obj: Any, prefix: str = "") -> None:
    """Check the plain dataclasses in a tree of settings: those of other packages, which check nothing by themselves.

    Raises SettingsError naming the paths.
    """
    cls = type(obj)
    values = {f.name: getattr(obj, f.name) for f in dataclasses.fields(obj) if f.init}
    if "__pydantic_validator__" not in vars(cls):
        problems: dict[str, str] = {}
        for name, value in values.items():
            declared = hints(cls)[name]
            try:
                adapter(declared).validate_python(value, strict=True)
            except ValidationError as e:
                problems[prefix + name] = _problem(name, declared, value, e.errors(include_url=False)[0])
        if problems:
            raise SettingsError(problems)
    for name, value in values.items():
        if dataclasses.is_dataclass(value):
            check_tree(value, f"{prefix}{name}.")


def hints(cls: type) -> dict[str, Any]:
    """Annotation of each field, with its range and its door."""
    if cls not in HINTS:
        HINTS[cls] = typing.get_type_hints(cls, include_extras=True)
    return HINTS[cls]


@functools.cache
def adapter(declared: Any) -> TypeAdapter[Any]:
    """Return what checks a value of this annotation."""
    return TypeAdapter(declared)


def alternatives(declared: Any) -> tuple[Any, ...]:
    """The types of a union, each without its range; else the one type."""
    if typing.get_origin(declared) is Annotated:
        return alternatives(typing.get_args(declared)[0])
    if typing.get_origin(declared) not in (types.UnionType, typing.Union):
        return (declared,)
    return tuple(itertools.chain.from_iterable(map(alternatives, typing.get_args(declared))))


def constraints(declared: Any) -> list[Any]:
    """The metadata of an annotation, of the members of a union and of the values of a tuple."""
    if typing.get_origin(declared) is Literal:
        return []
    found = list(getattr(declared, "__metadata__", ()))
    parts = [declared.__origin__] if found else typing.get_args(declared)
    return found + list(itertools.chain.from_iterable(map(constraints, parts)))


def door_of(declared: Any) -> Door[Any] | None:
    """The door that the annotation names."""
    return next((c for c in constraints(declared) if isinstance(c, Door)), None)


def classes_of(declared: Any) -> list[type]:
    """The settings classes of a field: those of its door, or the dataclasses of its union."""
    door = door_of(declared)
    if door is not None and door.base is not None:
        return list(door.values())
    return [o for o in alternatives(declared) if isinstance(o, type) and dataclasses.is_dataclass(o)]


def class_named(declared: Any, name: str) -> type | None:
    """Return the class of this name that the field takes, or None for "none" where it takes none. Raises ValueError."""
    if plain_name(name) == "none" and type(None) in alternatives(declared):
        return None
    door = door_of(declared)
    if door is not None:
        cls: type = door.resolve(name)
        return cls
    names = {plain_name(c.__name__): c for c in classes_of(declared)}
    if plain_name(name) not in names:
        raise ValueError(f"must be one of {', '.join(names)}, got {name!r}{nearest(plain_name(name), names)}")
    return names[plain_name(name)]


def parse_words(declared: Any, words: Sequence[str]) -> Any:
    """Return the value that the words of a command line or of a TOML file stand for.

    Raises ValueError: "must be ..., got ...".
    """
    text = " ".join(words)
    if Path in alternatives(declared) and "://" in text:
        raise ValueError(f"must be {readable(declared)}, got {text!r}")
    try:
        return adapter(declared).validate_python(_raw(declared, words), strict=False)
    except ValidationError as e:
        details = e.errors(include_url=False)[0]
    if "error" in details.get("ctx", {}):
        raise ValueError(str(details["ctx"]["error"]))
    wanted = _wanted(declared, details)
    shown = text if wanted == describe_range(declared) else repr(text)
    literals = itertools.chain.from_iterable(map(typing.get_args, alternatives(declared)))
    raise ValueError(f"must be {wanted}, got {shown}{nearest(text, map(str, literals))}")


def _raw(declared: Any, words: Sequence[str]) -> Any:
    """The words as pydantic reads them: a list for a tuple, None for none, else one text."""
    options = alternatives(declared)
    text = " ".join(words)
    if text.lower() == "none" and type(None) in options:
        return None
    for option in options:
        if typing.get_origin(option) is tuple:
            is_numeric = {int, float} & {*alternatives(typing.get_args(option)[0])}
            return ",".join(words).split(",") if is_numeric and words else list(words)
    if Path in options:
        return Path(text).expanduser().absolute()
    return text if len(words) == 1 else list(words)


def readable(declared: Any) -> str:
    """What a value of this type is, in words: "an integer or none"."""
    door = door_of(declared)
    if door is not None:
        return f"{door.choices} or none" if type(None) in alternatives(declared) else door.choices
    names = [plain_name(c.__name__) for c in classes_of(declared)]
    texts = [f"one of {', '.join(names)}"] if names else []
    for plain in alternatives(declared):
        options = typing.get_args(plain)
        if typing.get_origin(plain) is Literal:
            texts.append(f"one of {', '.join(map(str, options))}")
        elif typing.get_origin(plain) is tuple:
            texts.append(f"some values, each {readable(options[0])}")
        elif not dataclasses.is_dataclass(plain):
            texts.append(NAMES.get(plain, str(plain)))
    return " or ".join(texts)


def describe_choices(declared: Any) -> str:
    """What a field of several values, classes or names takes, or its range; "" where its type says it all."""
    literals = [o for o in alternatives(declared) if typing.get_origin(o) is Literal]
    if literals or door_of(declared) is not None or len(classes_of(declared)) > 1:
        return readable(declared)
    return describe_range(declared)


def describe_range(declared: Any) -> str:
    """ "at least 1", "above 0 and at most 1" of an annotation; "" where it has no range."""
    found = constraints(declared)
    text = " and ".join(RANGES[type(c)].format(c) for c in found if type(c) in RANGES)
    return text + "".join(f" {c.unit}" for c in found if isinstance(c, Unit))
