"""What a name means: an entry of a table, or `module:name`, which is imported; and which one was meant where it is
neither; and what the name of a setting has to say. It stands on the lowest floor and imports nothing, for every room
and the command itself look names up."""

from __future__ import annotations

import difflib
import re
from collections import UserDict
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T")
OUTSIDE = re.compile(r"\w+(\.\w+)*:\w+")
"""`module:name`, such as mylab.ditto:Ditto."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean x?`, or "" where nothing known is like it."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def is_outside(name: str) -> bool:
    """Whether the name says where to import something from."""
    return OUTSIDE.fullmatch(name) is not None


def own_name(name: str) -> str:
    """What people call it: `vendi` of `mylab.metrics:vendi`."""
    return name.rpartition(":")[2]


def imported(name: str) -> Any:
    """What `module:name` names. Raises ValueError, in one sentence, where it cannot be imported."""
    path, _, attribute = name.partition(":")
    try:
        module = import_module(path)
    except Exception as e:  # Somebody else's module may fail in any way.
        why = " ".join(str(e).split())
        raise ValueError(f"{name} cannot be imported: {type(e).__name__}: {why}") from e
    if not hasattr(module, attribute):
        raise ValueError(f"{name} cannot be imported: {path} has no {attribute}{nearest(attribute, vars(module))}")
    return getattr(module, attribute)


class Table(UserDict[str, T]):
    """Entries by name, each a value or the `module:name` of one, which is imported when it is asked for.

    By such a table a room lists what rooms above it hold, such as the papers, which it never imports.
    """

    def __init__(self, entries: Mapping[str, T | str]) -> None:
        super().__init__()
        self.data = {**entries}  # type: ignore[dict-item]  # an entry not imported yet is a str

    def __getitem__(self, name: str) -> T:
        entry = self.data[name]
        return imported(entry) if isinstance(entry, str) else entry


def check_one_of(field: str, value: object, known: Iterable[str]) -> None:
    """Raises ValueError naming the field unless its value is one of these."""
    if value not in (known := tuple(known)):
        raise ValueError(f"{field} must be one of {', '.join(known)}, got {value!r}")


def entries(field: str, table: Mapping[str, T], names: Iterable[str]) -> dict[str, T]:
    """The functions of these names by what people call them, each an entry of the table or a `module:name`.

    Raises ValueError naming the field where a name is neither, and where two functions are called the same.
    """
    found: dict[str, T] = {}
    for name in names:
        own = own_name(name)
        if name not in table and not is_outside(name):
            known = f"{', '.join(table)}, or module:name of another"
            raise ValueError(f"{field} must be some of {known}, got {name!r}{nearest(name, table)}")
        if own in found or (own in table and name not in table):
            raise ValueError(f"{field} must be called differently, each once, and {name} is called {own} like another")
        found[own] = table[name] if name in table else imported(name)
        if not callable(found[own]):
            raise ValueError(f"{field} must be functions, and {name} is none")
    return found


def telling(settings: Sequence[Mapping[str, Any]], fields: Iterable[str]) -> list[str]:
    """Those of these fields, from the first on, that are needed to tell the settings apart."""
    kept: list[str] = []
    told = 1
    for name in (k for k in fields if any(own.get(k) != settings[0].get(k) for own in settings)):
        more = len({repr([own.get(k) for k in (*kept, name)]) for own in settings})
        if more > told:
            kept, told = [*kept, name], more
    return kept
