"""Fields that settings were given later: names and digests leave them out where they are at their default, so that what
was written before there were any is found again. It stands on the lowest floor, for models, methods and experiments
alike have such fields."""

from __future__ import annotations

import dataclasses
from typing import Any

LATER = "later"
_DEFAULT = object()


def later(default: Any, *, before: Any = _DEFAULT) -> Any:
    """A field that is left out at this default; where the default is not how it was before there was the field, at
    `before`, which is what a file that lacks it means."""
    return dataclasses.field(default=default, metadata={LATER: default if before is _DEFAULT else before})


def unsaid(cls: Any) -> dict[str, Any]:
    """What a file that lacks these fields of a dataclass means by it."""
    return {f.name: f.metadata[LATER] for f in dataclasses.fields(cls) if LATER in f.metadata}


def counted(settings: Any) -> list[dataclasses.Field[Any]]:
    """The fields of a dataclass that say something."""
    said = unsaid(settings)
    return [f for f in dataclasses.fields(settings) if f.name not in said or getattr(settings, f.name) != said[f.name]]


def spelled(value: Any) -> str:
    """`repr` of values, tuples and dataclasses of them, with the fields that are counted."""
    if isinstance(value, tuple):
        return f"({', '.join(map(spelled, value))}{',' * (len(value) == 1)})"
    if dataclasses.is_dataclass(value):
        shown = (f.name for f in counted(value) if f.repr)
        return f"{type(value).__name__}({', '.join(f'{name}={spelled(getattr(value, name))}' for name in shown)})"
    return repr(value)
