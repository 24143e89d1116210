"""Names to objects: an entry of a table, or `module:name`, which is imported. The lowest layer: it imports nothing."""

from __future__ import annotations

import difflib
import math
import re
import traceback
from collections import UserDict
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T")
PACKAGES = set[str]()
"""Top-level packages of `module:name`s that this process has imported."""
MOST_KINDS = 8  # of problems that one message tells
LONGEST = 300  # characters shown of an error of outside code
OUTSIDE = re.compile(r"\w+(\.\w+)*:\w+")
"""`module:name`, such as mylab.ditto:Ditto."""


def nearest(name: str, names: Iterable[str]) -> str:
    """`; did you mean x?`, or "" where none of the names is similar."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def is_outside(name: str) -> bool:
    """Whether the name is `module:name`."""
    return OUTSIDE.fullmatch(name) is not None


def bare_name(name: str) -> str:
    """The part after the module: `vendi` of `mylab.metrics:vendi`."""
    return name.rpartition(":")[2]


def imported(name: str) -> Any:
    """Import `module:name`. Raises ValueError, in one sentence, where that fails."""
    path, _, attribute = name.partition(":")
    PACKAGES.add(path.partition(".")[0])
    try:
        module = import_module(path)
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # A user's module may fail in any way, and may exit.
        raise ValueError(f"{name} cannot be imported: {_described(e)}") from e
    if not hasattr(module, attribute):
        raise ValueError(f"{name} cannot be imported: {path} has no {attribute}{nearest(attribute, vars(module))}")
    return getattr(module, attribute)


def plug_in_error(error: BaseException, *modules: str) -> str:
    """The first function of outside code (`imported`, or of these modules) that the error passed through, with its type
    and message in one line; "" where there is none, and for errors of raydiff and Ray."""
    packages = (PACKAGES | {module.partition(".")[0] for module in modules}) - {"raydiff"}
    if type(error).__module__.startswith(("raydiff.", "ray.")):
        return ""
    for e in filter(None, (error, error.__cause__)):  # Generators raise RuntimeError from StopIteration.
        for frame, _ in traceback.walk_tb(e.__traceback__):
            module = str(frame.f_globals.get("__name__"))
            if module.partition(".")[0] in packages:
                return f"{module}.{frame.f_code.co_qualname} raised {_described(e)}"
    return ""


def _described(error: BaseException) -> str:
    """Type and message in one printable line of at most LONGEST characters."""
    text = traceback.format_exception_only(error)[-1][:LONGEST]
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


class Registry(UserDict[str, T]):
    """Entries by name: values, or `module:name`s imported on access, so that the core lists what it does not import."""

    def __init__(self, entries: Mapping[str, T | str]) -> None:
        super().__init__()
        self.data = {**entries}  # type: ignore[dict-item]  # an entry not imported yet is a str

    def __getitem__(self, name: str) -> T:
        entry = self.data[name]
        return imported(entry) if isinstance(entry, str) else entry


def refuse(problems: Mapping[str, Sequence[str]]) -> None:
    """Raises ValueError if there are problems, by kind: the first of each kind, and how many more it has."""
    texts = [first + (f" (and {len(more)} more)" if more else "") for first, *more in problems.values()]
    if len(texts) > MOST_KINDS:
        texts[MOST_KINDS:] = [f"{len(texts) - MOST_KINDS} other problems"]
    if texts:
        raise ValueError("; also ".join(texts))


def check_one_of(field: str, value: object, allowed: Iterable[str]) -> None:
    """Raises ValueError naming the field unless its value is one of these."""
    if value not in (allowed := tuple(allowed)):
        raise ValueError(f"{field} must be one of {', '.join(allowed)}, got {value!r}")


def check_least(config: object, least: int, *fields: str) -> None:
    """Raises ValueError naming a field of `config` that is below `least` or not finite; None passes."""
    for field in fields:
        if (value := getattr(config, field)) is not None and not least <= value < math.inf:
            raise ValueError(f"{field} must be at least {least}, got {value}")


def check_value(field: str, value: object, ok: bool, wanted: str) -> None:
    """Raises ValueError naming the field, what it takes and its value, unless `ok`."""
    if not ok:
        raise ValueError(f"{field} must be {wanted}, got {value}")


def check_positive(config: object, *fields: str) -> None:
    """Raises ValueError naming a field of `config` that is no finite number above 0; None passes."""
    for field in fields:
        if (value := getattr(config, field)) is not None and not 0 < value < math.inf:
            raise ValueError(f"{field} must be a positive number, got {value}")


def entries(field: str, table: Mapping[str, T], names: Iterable[str]) -> dict[str, T]:
    """The functions of these names by `bare_name`, each an entry of the table or a `module:name`. Raises ValueError
    naming the field where a name is neither, and where two functions have the same name."""
    functions: dict[str, T] = {}
    for name in names:
        short = bare_name(name)
        if name not in table and not is_outside(name):
            allowed = f"{', '.join(table)}, or module:name of another"
            raise ValueError(f"{field} must be some of {allowed}, got {name!r}{nearest(name, table)}")
        if short in functions or (short in table and name not in table):
            raise ValueError(f"{field} must have different names, and {name} is called {short} like another")
        functions[short] = table[name] if name in table else imported(name)
        if not callable(functions[short]):
            raise ValueError(f"{field} must be functions, and {name} is none")
    return functions


def distinguishing_fields(settings: Sequence[Mapping[str, Any]], fields: Iterable[str]) -> list[str]:
    """The fields, from the first on, that are needed to tell the settings apart."""
    chosen, groups = list[str](), 1
    for name in fields:
        more = len({repr([setting.get(k) for k in (*chosen, name)]) for setting in settings})
        if more > groups:
            chosen, groups = [*chosen, name], more
    return chosen
