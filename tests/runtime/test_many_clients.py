"""The coordinator's work per client does not grow with the number of clients. No Ray is started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raydiff.runtime import actors
from raydiff.runtime.actors import RayExecutor


class Number(int):
    """A client's number that counts its comparisons, hashes and divisions."""

    looks = 0

    def __hash__(self) -> int:
        Number.looks += 1
        return int(self)

    def __eq__(self, other: object) -> bool:
        Number.looks += 1
        return int(self) == other

    def __mod__(self, other: int) -> int:
        Number.looks += 1
        return int(self) % other


def executor(workers: int) -> Any:
    made = RayExecutor.__new__(RayExecutor)
    made.workers, made._digest = [Worker() for _ in range(workers)], ""
    return made


class Worker:
    """Answers with one of its clients at a time. It is its own reference."""

    def __init__(self) -> None:
        self.left: list[int] = []
        self.more = SimpleNamespace(remote=lambda _: self)

    def ask(self, part: list[int], alone: bool) -> Worker:
        self.left = part[::-1]
        return self


@pytest.mark.parametrize("workers", [1, 40])
def test_dealing_and_receiving_take_constant_time_per_client(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = executor(workers)
    pool._monitor = SimpleNamespace(first=lambda pending, _: next(iter(pending)))
    monkeypatch.setattr(actors.ray, "get", lambda w: SimpleNamespace(sent=[SimpleNamespace(client=w.left.pop())]))
    for clients in (200, 400):
        Number.looks = 0
        messages = list(pool._messages([Number(client) for client in range(clients)], Worker.ask))
        assert sorted(int(sent.client) for _, message in messages for sent in message.sent) == list(range(clients))
        assert Number.looks <= 5 * clients


def test_clients_stay_in_their_order_at_their_worker() -> None:
    pool = executor(3)
    assert {i: [*part] for i, part in pool._dealt([4, 1, 3]).items()} == {0: [3], 1: [4, 1]}
    pool.trial = SimpleNamespace(experiment=SimpleNamespace(everyone=range(8)))
    assert [pool._ids_of(i) for i in range(3)] == [[0, 3, 6], [1, 4, 7], [2, 5]]
