"""Command lines, parsed by the commands' own code and run no further."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from raydiff.__main__ import BUCKETS, COMMANDS, READ_SWEEPS
from raydiff.cli import arguments
from raydiff.cli.options import parse_command
from raydiff.experiment import overrides, searchers
from raydiff.experiment.presets import PRESETS
from raydiff.runtime import sweep_folder

MODULES = {name: f"raydiff.{module}" for group in COMMANDS.values() for name, (module, _) in group.items()}
SWEEP = Path("/storage/sweeps/some")


@dataclass(frozen=True)
class NoOptions:
    """Of a command that has none."""


class Parsed(Exception):
    """Stops a command: (its options, {field: value} of the fields that it overrides, the experiment with these)."""


def parsed(name: str, words: list[str], patch: pytest.MonkeyPatch) -> tuple[Any, dict[str, Any], Any]:
    """What `Parsed` holds of a command line; sweeps need not exist. Raises ValueError as the command does."""
    module = import_module(MODULES[name])

    def stop(parse: Any, *given: Any, **more: Any) -> Any:
        result = parse(*given, **more)
        options, fields = result if isinstance(result, tuple) else (result, [])
        start = given[3] if len(given) > 3 else None
        if getattr(options, "what", None) in PRESETS and name == "canary":
            start = PRESETS[options.what]().experiment
        for option in ("search", "scheduler"):
            _, fields = arguments.keywords(fields, option)
        values = overrides.parse_fields(start, fields)
        base = overrides.override(start, values) if values else start
        arguments.axes(base, getattr(options, "grid", None) or ())
        searchers.parse_space(base, arguments.assignments(getattr(options, "sample", ()), "a=b"))
        raise Parsed(options, values, base)

    if name in READ_SWEEPS:  # As `__main__` does, where the bucket exists.
        words = ["/a/copy" if word.startswith(BUCKETS) else word for word in words]
    with patch.context() as inner:
        inner.setattr(sweep_folder, "sweep_named", lambda *_: SWEEP)
        for owner, attribute in ((module, "parse_options"), (module, "parse_command")):
            if (parse := getattr(owner, attribute, None)) is not None:
                inner.setattr(owner, attribute, lambda *a, _parse=parse, **k: stop(_parse, *a, **k))
        with pytest.raises(Parsed) as end:
            module.main(words)
    return end.value.args  # type: ignore[return-value]


def changes(start: Any, words: list[str]) -> dict[str, Any]:
    """{path: value} of the fields of `start` on a command line."""
    return overrides.parse_fields(start, parse_command(NoOptions, words, None, start)[1])
