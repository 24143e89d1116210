"""Cases of one test, of which some are slow."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(quick: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """All cases; those that are not among the quick ones are slow."""
    marked = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marked.append(pytest.param(*values, marks=[] if case in quick else pytest.mark.slow))
    return marked
