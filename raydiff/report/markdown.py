"""Tables as markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def grid(header: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table."""
    yield f"| {' | '.join(header)} |"
    yield "|" + "---|" * len(header)
    for line in lines:
        yield f"| {' | '.join(line)} |"
