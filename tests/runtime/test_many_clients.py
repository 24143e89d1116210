"""What the coordinator does for each client does not grow with how many clients there are. No Ray is started."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from raydiff.runtime import actors
from raydiff.runtime.actors import RayExecutor


class Number(int):
    """A client's number, which counts how often it is looked at."""

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


class Worker:
    """Gives the clients that it was asked for, one at a time."""

    def __init__(self) -> None:
        self.left: list[int] = []
        self.more = SimpleNamespace(remote=lambda _: object())

    def asked(self, part: list[int]) -> object:
        self.left = list(reversed(part))
        return object()


@pytest.fixture
def pool_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Any]:
    """A pool of so many workers, whose answers are there at once."""

    def make(count: int) -> Any:
        pool = RayExecutor.__new__(RayExecutor)
        pool.workers, pool._digest = [Worker() for _ in range(count)], ""
        answers: list[Worker] = []

        class HeartbeatMonitor:
            def first(self, asked: dict[Any, int], *_: Any) -> Any:
                ready = next(iter(asked))
                answers.append(pool.workers[asked[ready]])
                return ready

        pool._monitor = HeartbeatMonitor()
        monkeypatch.setattr(
            actors.ray, "get", lambda _: SimpleNamespace(sent=[SimpleNamespace(client=answers.pop().left.pop())])
        )
        return pool

    return make


def arrivals(pool: Any, clients: int) -> list[int]:
    ids = [Number(client) for client in range(clients)]
    messages = pool._arrivals(ids, lambda worker, part, _: worker.asked(part))
    return sorted(int(sent.client) for message in messages for sent in message.sent)


@pytest.mark.parametrize("workers", [1, 7])
def test_taking_what_arrives_one_by_one_is_linear_in_clients(pool_of: Callable[[int], Any], workers: int) -> None:
    looks = []
    for clients in (200, 400):
        Number.looks = 0
        assert arrivals(pool_of(workers), clients) == list(range(clients))
        looks.append(Number.looks)
    assert looks[1] <= 2.1 * looks[0]


@pytest.mark.parametrize("workers", [20, 40])
def test_dealing_is_one_pass_however_many_workers_there_are(pool_of: Callable[[int], Any], workers: int) -> None:
    Number.looks = 0
    dealt = pool_of(workers)._dealt([Number(client) for client in range(400)])
    assert Number.looks <= 3 * 400
    assert {i: [*part] for i, part in dealt.items()} == {i: [*range(i, 400, workers)] for i in range(workers)}


def test_workers_without_a_client_are_not_asked(pool_of: Callable[[int], Any]) -> None:
    assert {i: [*part] for i, part in pool_of(3)._dealt([4, 1, 3]).items()} == {0: [3], 1: [4, 1]}


def test_each_worker_hosts_its_share_of_everyone(pool_of: Callable[[int], Any]) -> None:
    pool = pool_of(3)
    pool.trial = SimpleNamespace(experiment=SimpleNamespace(everyone=range(8)))
    assert [pool._ids_of(i) for i in range(3)] == [[0, 3, 6], [1, 4, 7], [2, 5]]
