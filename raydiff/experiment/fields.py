"""What every field of an experiment means: the sentences that stand beneath the fields in the code."""

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
"""The fields that people set most, as far as an experiment has them."""
WIDTH = 118


def sentences(cls: type[Any]) -> dict[str, str]:
    """Field -> the first sentence of what stands beneath it, in the class or in one that it inherits from."""
    found: dict[str, str] = {}
    for owner in reversed(inspect.getmro(cls)):
        if not dataclasses.is_dataclass(owner):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)
        for node, below in zip(body.body, body.body[1:], strict=False):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_text(below):
                found[node.target.id] = _first_sentence(below.value.value)  # type: ignore[attr-defined]
    return found


def described(obj: Any) -> str:
    """Every field with its value and its sentence, the common ones first, then part by part."""
    known = list(_walk(obj))
    common = [entry for path in COMMON for entry in known if entry[0] == path]
    groups = {"common": common}
    for entry in known:
        if entry not in common:
            groups.setdefault(entry[0].rpartition(".")[0] or "experiment", []).append(entry)
    return "\n\n".join(f"{name}:\n" + "\n".join(map(_lines, entries)) for name, entries in groups.items())


def _walk(obj: Any, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """(path, value, sentence) of every field, whole before its parts."""
    says = sentences(type(obj))
    for f in dataclasses.fields(obj):
        path, value = prefix + f.name, getattr(obj, f.name)
        if f.name == "noise_secret" or not f.init:
            continue
        if dataclasses.is_dataclass(value):
            yield path, type(value).__name__.lower(), says.get(f.name, "")
            yield from _walk(value, path + ".")
        else:
            yield path, short(value), says.get(f.name, "")


def _lines(entry: tuple[str, str, str]) -> str:
    path, value, says = entry
    head = f"  --{path} {value}"
    return head + (f"\n{textwrap.fill(says, WIDTH, initial_indent=' ' * 6, subsequent_indent=' ' * 6)}" if says else "")


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _first_sentence(text: str) -> str:
    whole = " ".join(text.split())
    head, stop, _ = whole.partition(". ")
    return head + "." if stop else whole
