"""Help texts of dataclass fields: the docstrings beneath them in the source."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from raydiff.experiment.overrides import short

COMMON = (
    "method",
    "method.epsilon",
    "method.clip",
    "method.rounds",
    "method.model.network",
    "method.local.steps",
    "data.name",
    "clients",
    "partition",
    "seed",
    "runtime.workers",
    "runtime.storage",
)
"""The fields that are set most often, shown first."""
WIDTH = 118


def sentences(cls: type[Any]) -> dict[str, str]:
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


def described(obj: Any) -> str:
    """Every field with its value and its meaning, the common ones first, then tree by tree."""
    entries = list(_walk(obj))
    groups = {"common": [found for path in COMMON for found in entries if found[0] == path]}
    for found in entries:
        if found not in groups["common"]:
            groups.setdefault(found[0].rpartition(".")[0] or "experiment", []).append(found)
    return "\n\n".join(
        "\n".join([f"{group}:", *(entry(f"--{path} {value}", text) for path, value, text in members)])
        for group, members in groups.items()
    )


def entry(head: str, text: str) -> str:
    """An option as it is typed, and beneath it what it means."""
    below = textwrap.fill(text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return f"  {head}" + (f"\n{below}" if text else "")


def _walk(obj: Any, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """(path, value, meaning) of every field, a tree before its parts."""
    texts = sentences(type(obj))
    for f in dataclasses.fields(obj):
        path, value = prefix + f.name, getattr(obj, f.name)
        if f.name == "noise_secret" or not f.init:
            continue
        is_tree = dataclasses.is_dataclass(value)
        yield path, type(value).__name__.lower() if is_tree else short(value), texts.get(f.name, "")
        yield from _walk(value, f"{path}.") if is_tree else ()
