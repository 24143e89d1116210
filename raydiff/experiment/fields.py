"""Help texts of dataclass fields: the docstrings beneath them in the source."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from raydiff.experiment.overrides import short, walk

COMMON = "method method.epsilon method.clip method.rounds method.model.network method.local.steps data.name clients"
COMMON += " partition seed runtime.workers runtime.storage"
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
    """Every field with its value and its meaning, the common ones first, then dataclass by dataclass."""
    texts = {path: entry(f"--{path} {value}", text) for path, value, text in _fields(obj)}
    groups = {"common": [texts[path] for path in COMMON.split() if path in texts]}
    for path in (path for path in texts if path not in COMMON.split()):
        groups.setdefault(path.rpartition(".")[0] or "experiment", []).append(texts[path])
    return "\n\n".join("\n".join([f"{group}:", *members]) for group, members in groups.items())


def entry(head: str, text: str) -> str:
    """An option as it is typed, and beneath it what it means."""
    below = textwrap.fill(text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return f"  {head}" + (f"\n{below}" if text else "")


def _fields(obj: Any) -> Iterator[tuple[str, str, str]]:
    """(path, value, meaning) of every field but the noise secret, a dataclass before its own fields."""
    entries = list(walk(obj))
    texts = {cls: sentences(cls) for cls in {type(parent) for _, _, parent in entries}}
    for path, value, parent in entries:
        name = path.rpartition(".")[2]
        if name != "noise_secret":
            text = type(value).__name__.lower() if dataclasses.is_dataclass(value) else short(value)
            yield path, text, texts[type(parent)].get(name, "")
