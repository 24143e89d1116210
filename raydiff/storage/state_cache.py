"""Which state of a client is its latest, asked for one client after the other: the folder is listed once a round, and a
commit is read once. Looked for each by itself, both would grow with the square of the number of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

NEVER = -2  # before every round, and before the state that a client may have from before its first
UNKNOWN = (NEVER, None)


class StateIndex:
    """What a process knows of the states of a trial's clients, as it goes from round to round."""

    def __init__(self) -> None:
        self._before = NEVER
        self._files: dict[int, list[int]] = {}  # client -> rounds of which there is a state
        self._unread: list[int] = []  # rounds that count, of those before `_before`, ascending
        self._read: set[int] = set()
        self._said: dict[int, tuple[int, str | None]] = {}  # client -> its latest of the rounds read, its digest

    def kept(self, number: int) -> None:
        """This process has kept a state after this round: the list is of no use where it should have that."""
        if number < self._before:
            self._before = NEVER

    def find(
        self,
        client: int,
        *,
        before: int,
        files: Callable[[], Iterable[tuple[int, int]]],
        commits: Callable[[], Iterable[int]],
        said: Callable[[int], Mapping[str, str | None]],
    ) -> tuple[int, str | None] | None:
        """(round, digest) of the client's latest state from before this round; None: there is none. Without a digest it
        is a state of which no commit tells.

        `files` lists (client, round) of all states, `commits` the rounds that count, and `said` reads the digests in
        one of these commits. Commits are read from the last one back, as far as there may be a later state.
        """
        if before != self._before:
            self._list(before, files, commits)
        there = max((n for n in self._files.get(client, ()) if n < before), default=NEVER)
        while self._unread and self._unread[-1] >= max(there, self._said.get(client, UNKNOWN)[0]):
            self._take(self._unread[-1], said(self._unread[-1]))
            self._unread.pop()
        number, digest = self._said.get(client, UNKNOWN)
        if number >= there:
            return None if number == NEVER else (number, digest)
        return there, None

    def _list(
        self, before: int, files: Callable[[], Iterable[tuple[int, int]]], commits: Callable[[], Iterable[int]]
    ) -> None:
        if before < self._before or self._before == NEVER:
            self._read, self._said = set(), {}
        self._before, self._files = before, {}
        for client, number in files():
            self._files.setdefault(client, []).append(number)
        self._unread = sorted(number for number in commits() if number < before and number not in self._read)

    def _take(self, number: int, said: Mapping[str, str | None]) -> None:
        self._read.add(number)
        for client, digest in said.items():
            if number > self._said.get(int(client), UNKNOWN)[0]:
                self._said[int(client)] = number, digest
