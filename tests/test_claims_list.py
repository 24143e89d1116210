"""The lists of docs/claims.md and docs/security.md: every claim has a test or a command, and every test that they name
is there."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = "\n".join((ROOT / "docs" / name).read_text() for name in ("claims.md", "security.md"))
NAMED = re.compile(r"\b(tests/[\w/]+\.py)(?:::(\w+))?")


@functools.cache
def found_in(file: str) -> set[str]:
    """Names of the tests of a file; empty where it is not there. Nothing is imported."""
    if not (ROOT / file).is_file():
        return set()
    nodes = ast.walk(ast.parse((ROOT / file).read_text()))
    return {n.name for n in nodes if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")}


def rows(text: str) -> list[list[str]]:
    """The cells of the rows of every table `claim | test or command`."""
    found: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        inside = line.startswith("|") and (inside or line == "| claim | test or command |")
        if inside and line not in ("| claim | test or command |", "|---|---|"):
            found.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return found


def missing(text: str) -> list[str]:
    """What it names and is not there."""
    named = NAMED.findall(text)
    return [f"{file}::{name}" for file, name in named if not (name in found_in(file) or (not name and found_in(file)))]


def test_every_test_that_is_named_exists() -> None:
    assert len(NAMED.findall(TEXT)) > 100
    assert missing(TEXT) == []


@pytest.mark.parametrize("gone", ["tests/storage/test_checkpoint.py::test_nothing_of_the_kind", "tests/test_gone.py"])
def test_the_check_can_fail(gone: str) -> None:
    assert missing(f"| a claim | {gone} |") == [gone if "::" in gone else f"{gone}::"]


def test_every_claim_has_a_test_or_a_command() -> None:
    listed = rows(TEXT)
    assert len(listed) > 50
    assert [row for row in listed if len(row) != 2 or not re.search(r"::test_|`python |`pytest ", row[1])] == []
