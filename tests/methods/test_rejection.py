"""Clients that send what the server cannot use: left out by name, counted, and in the ledger all the same."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import KEYS, Quadratic, values

from raydiff import tree
from raydiff.federated.client import Client, Failed
from raydiff.federated.method import LocalResult, Metrics, Round, Upload
from raydiff.federated.rounds import LocalExecutor, Progress, run_rounds
from raydiff.methods.fedavg import FedAvg
from raydiff.models.training import Training
from raydiff.privacy.ledger import Ledger
from raydiff.privacy.release import UNACCOUNTED, Gaussian, NonPrivate, already_private, disclose
from raydiff.storage.checkpoint import Checkpoint
from raydiff.tree import Params

BAD = 1000.0  # the records of a bad client
SENT = Gaussian(1.0, "client", "replace_one", "local")
Send = Callable[[Params], Any]


@dataclass(frozen=True)
class FromOne(Quadratic):
    """w starts from 1."""

    def init(self, rng: torch.Generator) -> Params:
        return {"w": torch.ones(1)}


@dataclass(frozen=True, kw_only=True)
class Betrayed(FedAvg):
    """FedAvg among clients of which some send something else."""

    model: Any = FromOne()
    local: Training = Training(steps=4, batch=4, optimizer="sgd", learning_rate=0.25, decay="constant")
    rounds: int = 2
    sends: Send | None = None
    """What a bad client makes of its update; None: it is honest."""

    def local_update(self, server: Params, state: Params, data: Any, rnd: Round) -> LocalResult:
        result = super().local_update(server, state, data, rnd)
        if self.sends is None or float(data.images[0, 0]) != BAD:
            return result
        return replace(result, release=self.sends(result.release.value))


def pool(method: FedAvg, *x: float, store: Checkpoint | None = None) -> LocalExecutor:
    return LocalExecutor([Client(i, method, values(v), keys=KEYS, store=store) for i, v in enumerate(x)])


def run(method: FedAvg, *x: float, store: Checkpoint | None = None, min_clients: int = 1) -> list[Progress]:
    return list(run_rounds(method, pool(method, *x, store=store), keys=KEYS, min_clients=min_clients, store=store))


def disclosed(change: Callable[[Params], Params]) -> Send:
    return lambda update: disclose(change(update), "it")


def forged(update: Params) -> Any:
    """An event as only the server may publish."""
    return already_private(update, replace(SENT, trust="central"))


EXPECTED = "in place of torch.float32 (1,)"
KINDS: dict[str, tuple[Send, str]] = {
    "nan": (disclosed(lambda u: {"w": u["w"] * math.nan}), "it is not finite"),
    "inf": (disclosed(lambda u: {"w": u["w"] + math.inf}), "it is not finite"),
    "noised nan": (lambda u: already_private({"w": u["w"] * math.nan}, SENT), "it is not finite"),
    "missing": (disclosed(lambda u: {}), "its leaf 'w' is missing"),
    "extra": (disclosed(lambda u: {**u, "more": torch.ones(3)}), "it has a leaf 'more' that nobody asked for"),
    "shape": (disclosed(lambda u: {"w": u["w"].expand(1, 1)}), f"its leaf 'w' is torch.float32 (1, 1) {EXPECTED}"),
    "type": (disclosed(lambda u: {"w": u["w"].double()}), f"its leaf 'w' is torch.float64 (1,) {EXPECTED}"),
    "raw tensors": (lambda u: u, "it sent what is no release of local trust"),
    "forged event": (forged, "it sent what is no release of local trust"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_upload_is_left_out_by_name(kind: str) -> None:
    send, why = KINDS[kind]
    progress = run(Betrayed(sends=send), 2.0, BAD, 4.0)
    without = run(Betrayed(), 2.0, 4.0)
    for p, q in zip(progress, without, strict=True):
        assert tree.digest(p.server) == tree.digest(q.server)
        assert p.rejected == {1: why} and q.rejected == {}
        assert p.metrics["clients/rejected"] == 1.0 and "clients/rejected" not in q.metrics
        assert set(p.client_metrics) == {0, 2} and set(q.client_metrics) == {0, 1}
        assert p.metrics["train/loss"] == q.metrics["train/loss"]  # the mean of those that count


def test_a_rejected_upload_was_sent_all_the_same() -> None:
    noised = run(Betrayed(sends=KINDS["noised nan"][0]), 2.0, BAD)[-1].ledger
    assert [(e.round, e.client, e.bytes) for e in noised.entries] == [(n, c, 4) for n in range(2) for c in range(2)]
    assert [e.event for e in noised.entries if e.client == 1] == [SENT] * 2
    for kind in ("raw tensors", "forged event"):
        ledger = run(Betrayed(sends=KINDS[kind][0]), 2.0, BAD)[-1].ledger
        assert [e.event for e in ledger.entries if e.client == 1] == [UNACCOUNTED] * 2


def test_a_pool_cannot_bring_in_what_is_no_release() -> None:
    """Nor a number of records that weighs less than nothing."""

    class Careless(LocalExecutor):
        change: dict[str, Any]

        def run(self, ids: Sequence[int], server: Params, number: int) -> Iterator[tuple[Upload, Metrics]]:
            for upload, metrics in super().run(ids, server, number):
                yield (replace(upload, **self.change) if upload.client == 1 else upload), metrics

    method = Betrayed()
    raw: dict[str, Any] = {"release": {"w": torch.ones(1)}}
    for change, why in (
        (raw, "it sent what is no release of local trust"),
        ({"examples": -3}, "its number of records is -3"),
        ({"examples": math.nan}, "its number of records is nan"),
    ):
        careless = Careless([Client(i, method, values(v), keys=KEYS) for i, v in enumerate([2.0, 3.0, 4.0])])
        careless.change = change
        last = list(run_rounds(method, careless, keys=KEYS))[-1]
        assert last.rejected == {1: why}
        assert tree.digest(last.server) == tree.digest(run(method, 2.0, 4.0)[-1].server)


def test_too_few_good_clients_end_the_run_in_a_sentence() -> None:
    method = Betrayed(sends=KINDS["nan"][0])
    assert len(run(method, 2.0, BAD, 4.0, min_clients=2)) == 2
    with pytest.raises(Failed) as failure:
        run(method, 2.0, BAD, 4.0, min_clients=3)
    assert str(failure.value) == (
        "the server, in round 0: 2 of 3 uploads can be used, fewer than min_clients = 3 (client 1: it is not finite)"
    )


def test_a_resumed_run_says_again_whom_it_rejected(tmp_path: Path) -> None:
    method, store = Betrayed(sends=KINDS["noised nan"][0]), Checkpoint(tmp_path)
    running = run_rounds(method, pool(method, 2.0, BAD, store=store), keys=KEYS, store=store)
    first = next(running)
    running.close()  # type: ignore[attr-defined]
    again, last = run(method, 2.0, BAD, store=Checkpoint(tmp_path))
    assert again.resumed and again.rejected == first.rejected == last.rejected == {1: "it is not finite"}
    whole = run(method, 2.0, BAD)[-1]
    assert (tree.digest(last.server), last.ledger) == (tree.digest(whole.server), whole.ledger)


@pytest.mark.parametrize("kind", ["noised nan", "raw tensors", "forged event"])
def test_a_round_that_failed_for_too_few_is_paid_for(tmp_path: Path, kind: str) -> None:
    with pytest.raises(Failed, match="fewer than min_clients = 2"):
        run(Betrayed(sends=KINDS[kind][0]), 2.0, BAD, store=Checkpoint(tmp_path), min_clients=2)
    ledger = Ledger()
    for number, *sent in Checkpoint(tmp_path).sent_after(-1):
        ledger = ledger.with_uploads(number, [tuple(sent)])
    bad = SENT if kind == "noised nan" else UNACCOUNTED
    assert [(e.client, e.event) for e in ledger.entries] == [(0, NonPrivate("weights sent as they are")), (1, bad)]
