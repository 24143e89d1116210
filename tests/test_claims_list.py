"""docs/data/claims.csv and the pages that show parts of it: every claim has a test or a command, and every named test
exists."""

import ast
import csv
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "docs" / "data" / "claims.csv"
COLUMN = "test or command"
TEXT = "\n".join(path.read_text() for path in (LIST, ROOT / "docs" / "claims.md", ROOT / "docs" / "security.md"))
NAMED = re.compile(r"\b(tests/[\w/]+\.py)(?:::(\w+))?")


@functools.cache
def names_in(file: str) -> set[str]:
    """Names of the tests in a file, empty where the file does not exist. Nothing is imported."""
    if not (ROOT / file).is_file():
        return set()
    nodes = ast.walk(ast.parse((ROOT / file).read_text()))
    return {n.name for n in nodes if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")}


def claims() -> list[dict[str, str]]:
    """Rows of the list: area, claim, test or command."""
    with LIST.open(newline="") as lines:
        return list(csv.DictReader(lines))


def missing(text: str) -> list[str]:
    """Tests that a text names and that do not exist."""
    named = NAMED.findall(text)
    return [f"{file}::{name}" for file, name in named if not (name in names_in(file) or (not name and names_in(file)))]


def untested(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Claims that name neither a test nor a command."""
    return [
        row for row in rows if not (row["claim"] and re.search(r"::test_|`python |`raydiff |`pytest ", row[COLUMN]))
    ]


def test_every_test_that_is_named_exists() -> None:
    assert len(NAMED.findall(TEXT)) > 200
    assert missing(TEXT) == []


@pytest.mark.parametrize("gone", ["tests/federated/test_store.py::test_nothing_of_the_kind", "tests/test_gone.py"])
def test_a_missing_test_is_found(gone: str) -> None:
    assert missing(f"a,claim,{gone}") == [gone if "::" in gone else f"{gone}::"]


def test_every_claim_has_a_test_or_a_command() -> None:
    assert len(claims()) > 150
    assert untested(claims()) == []


def test_an_untested_claim_is_found() -> None:
    row = {"area": "a", "claim": "it is private", COLUMN: "tests/test_gone.py"}
    assert untested([row]) == [row]


def test_the_page_shows_only_claims_of_the_list() -> None:
    page = (ROOT / "docs" / "claims.md").read_text()
    shown = set(re.findall(r"^\| (.*?) \| (tests/.*?) \|$", page, re.MULTILINE))
    listed = {(row["claim"], re.split("[,;]", row[COLUMN])[0]) for row in claims()}
    assert len(shown) == 10
    assert shown - listed == set()
