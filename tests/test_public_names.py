"""The public names of `rd` are documented, each with an example that runs."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raydiff as rd

MAKERS = ("run", "sweep")
"""Their examples leave the trials that the examples of the others open."""
OPENED = ("open", "Run", "Sweep", "Personal")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples(name: str) -> list[doctest.DocTest]:
    """The examples in a name's docstring."""
    found = doctest.DocTestFinder(recurse=False).find(getattr(rd, name), f"rd.{name}", globs={"rd": rd})
    return [test for test in found if test.examples]


def failures(name: str) -> str:
    """What the examples of a name print in place of what they should."""
    text: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for test in examples(name):
        runner.run(test, out=text.append)
    return "".join(text)


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What the examples of `run` and `sweep` fail by; their trials are in a home of their own."""
    home: Path = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home}/mlflow.db")
        patch.chdir(home)
        yield {name: failures(name) for name in MAKERS}


@pytest.mark.parametrize("name", sorted({*rd.__all__} - {*MAKERS, *OPENED}))
def test_an_example_of_a_name_runs(name: str) -> None:
    assert examples(name), f"rd.{name} has no example"
    assert failures(name) == ""


@pytest.mark.parametrize("name", MAKERS + OPENED)
def test_an_example_that_runs_or_opens_a_trial_runs(name: str, trials: dict[str, str]) -> None:
    assert examples(name), f"rd.{name} has no example"
    assert (trials[name] if name in MAKERS else failures(name)) == ""


def sections(documented: Any) -> set[str]:
    """The sections of a docstring."""
    lines = (inspect.getdoc(documented) or "").splitlines()
    return {line.rstrip(":") for line in lines if line in ("Args:", "Attributes:", "Returns:", "Raises:", "Examples:")}


@pytest.mark.parametrize("name", sorted(rd.__all__))
def test_what_a_name_takes_and_returns_is_documented(name: str) -> None:
    """Arguments of functions and of a class's own methods in Args; fields of settings beneath them."""
    documented = getattr(rd, name)
    if inspect.isfunction(documented):
        assert {"Args", "Returns", "Raises", "Examples"} <= sections(documented)
    elif documented.__module__ == "raydiff.api":
        for member in (m for key, m in vars(documented).items() if inspect.isfunction(m) and key[0] != "_"):
            assert "Returns" in sections(member), member
            assert "Args" in sections(member) or len(inspect.signature(member).parameters) == 1, member
