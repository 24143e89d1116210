"""Fields that settings were given later: names and digests leave them out where they are at their default, so that what
was written before there were any is found again. It stands on the lowest floor, for models, methods and experiments
alike have such fields."""

from __future__ import annotations

import dataclasses
from typing import Any

LATER = "later"


def later(default: Any) -> Any:
    """A field that is left out at this default."""
    return dataclasses.field(default=default, metadata={LATER: True})


def counted(settings: Any) -> list[dataclasses.Field[Any]]:
    """The fields of a dataclass that say something."""
    return [
        f
        for f in dataclasses.fields(settings)
        if not (f.metadata.get(LATER) and getattr(settings, f.name) == f.default)
    ]


def spelled(value: Any) -> str:
    """`repr` of values, tuples and dataclasses of them, with the fields that are counted."""
    if isinstance(value, tuple):
        return f"({', '.join(map(spelled, value))}{',' * (len(value) == 1)})"
    if dataclasses.is_dataclass(value):
        shown = (f.name for f in counted(value) if f.repr)
        return f"{type(value).__name__}({', '.join(f'{name}={spelled(getattr(value, name))}' for name in shown)})"
    return repr(value)
