"""The uploads of averaging methods as sums: dealt to workers in any way, in any order, the same bits."""

import math
import pickle
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from cases import slow_but
from toys import KEYS, QUADRATIC, values

from raydiff import tree
from raydiff.data.records import Records
from raydiff.federated.client import Client, Failed, run_clients
from raydiff.federated.method import LocalResult, Round
from raydiff.federated.rounds import LocalExecutor, Progress, run_rounds
from raydiff.federated.upload_validator import Partial, UploadValidator, partial_sum
from raydiff.methods._averaging import MAX_UPDATE_RATIO, MAX_WEIGHT, Averaging
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.scaffold import Scaffold
from raydiff.models.training import Training
from raydiff.privacy.client_level import ClientPrivacy
from raydiff.privacy.release import disclose
from raydiff.seeding import generator
from raydiff.tree import Params

LOCAL = Training(steps=12, batch=4, optimizer="sgd", learning_rate=0.1, decay="constant")


def private(**privacy: Any) -> FedAvg:
    averaging = Averaging(weights="uniform", privacy=ClientPrivacy(clip=0.5, **privacy))
    return FedAvg(model=QUADRATIC, local=LOCAL, rounds=3, averaging=averaging)


METHODS: dict[str, Any] = {
    "fedavg": FedAvg(model=QUADRATIC, local=LOCAL, rounds=3),
    "uniform": FedAvg(model=QUADRATIC, local=LOCAL, rounds=3, averaging=Averaging(weights="uniform", update="adam")),
    "scaffold": Scaffold(model=QUADRATIC, local=LOCAL, rounds=3),
    "local noise": private(trust="local"),
    "server noise": private(trust="central"),
    "shared noise": private(trust="aggregate", shares=4),
}
CLIENTS = 9


class Dealt(LocalExecutor):
    """Clients dealt to so many workers anew in every round; their sums come as they come, and travel."""

    def __init__(self, clients: Sequence[Client], workers: int, seed: int) -> None:
        super().__init__(clients)
        self.workers, self.rng = workers, random.Random(seed)

    def sums(self, ids: Sequence[int], validator: UploadValidator) -> Iterator[Partial]:
        mixed = self.rng.sample(list(ids), len(ids))
        for i in range(self.workers):
            own = mixed[i :: self.workers]
            there = UploadValidator(
                validator.method, validator.server, validator.round_number, validator.clients
            )  # A worker has its own.
            hosted = [self._clients[client] for client in own]
            results, seconds = (
                run_clients(hosted, validator.server, validator.round_number),
                0.0 if i == 0 else math.inf,
            )
            while (part := partial_sum(there, results, seconds=seconds)).sent:
                yield pickle.loads(pickle.dumps(part))


def clients(method: Any) -> list[Client]:
    """Client i has 4 + i records."""
    rng = generator(5, "records")
    data = [Records(torch.randn(n, 1, generator=rng), torch.ones(n, 1), torch.arange(n)) for n in range(4, 4 + CLIENTS)]
    return [Client(i, method, records, keys=KEYS) for i, records in enumerate(data)]


@pytest.mark.parametrize("workers", slow_but([4], [1, 2, 4]))
@pytest.mark.parametrize("name", METHODS)
def test_however_clients_are_dealt_the_bits_are_the_same(name: str, workers: int) -> None:
    method = METHODS[name]
    expected = list(run_rounds(method, LocalExecutor(clients(method)), keys=KEYS))
    found = list(run_rounds(method, Dealt(clients(method), workers, seed=workers), keys=KEYS))
    for a, b in zip(expected, found, strict=True):
        assert tree.digest(a.server) == tree.digest(b.server)
        assert a.ledger == b.ledger and len(b.ledger.server.entries) == CLIENTS * (b.number + 1)
        assert a.metrics == b.metrics


@dataclass(frozen=True, kw_only=True)
class Huge(FedAvg):
    """Its client with a record of 100 sends something of this size."""

    size: float

    def local_update(self, server: Params, state: Params, data: Any, rnd: Round) -> LocalResult:
        result = super().local_update(server, state, data, rnd)
        if float(data.images.max()) < 100:
            return result
        return replace(result, release=disclose({"w": torch.full((1,), self.size)}, "it"))


def run(method: FedAvg, *x: float, **options: Any) -> Progress:
    pool = LocalExecutor([Client(i, method, values(v), keys=KEYS) for i, v in enumerate(x)])
    return next(run_rounds(method, pool, keys=KEYS, **options))


def test_an_update_beyond_the_range_is_rejected_by_name() -> None:
    room = MAX_UPDATE_RATIO * MAX_WEIGHT / 4  # Each client has four records.
    one = Huge(model=QUADRATIC, local=LOCAL, rounds=3, size=room)
    assert run(one, 1.0, 100.0).rejected == {}
    more = replace(one, size=2 * room)
    after = run(more, 1.0, 100.0)
    assert "not within the sum's range" in after.rejected[1]
    assert tree.digest(after.server) == tree.digest(run(METHODS["fedavg"], 1.0).server)
    assert {e.client for e in after.ledger.entries} == {0, 1}  # It was sent all the same.
    with pytest.raises(Failed, match="client 1: an entry times its weight"):
        run(more, 1.0, 100.0, min_clients=2)


@pytest.mark.parametrize("trust", ["local", "central", "aggregate"])
@pytest.mark.parametrize("clip", [1e-3, 1.0, 1e5])
def test_who_is_in_a_private_mean_does_not_depend_on_the_update(trust: Any, clip: float) -> None:
    """No update is too large once it is clipped, however far the clip is beyond what weights are like."""
    shares = 2 if trust == "aggregate" else None
    privacy = ClientPrivacy(clip=clip, epsilon=0.1, trust=trust, shares=shares)
    averaging = Averaging(weights="uniform", privacy=privacy)
    far = replace(LOCAL, learning_rate=1.9)
    method = FedAvg(model=QUADRATIC, local=far, averaging=averaging)
    for x in (0.0, 1.0, 1e7):
        assert run(method, x, -x).rejected == {}
