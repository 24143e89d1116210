"""Averaging where the server sees the sum alone: rounds, rejected uploads, crashes, and what the ledger says."""

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from toys import KEYS, QUADRATIC, values

from raydiff.federated.client import Client, Failed
from raydiff.federated.method import LocalResult, Round
from raydiff.federated.rounds import LocalExecutor, Progress, run_rounds
from raydiff.methods._averaging import Averaging
from raydiff.methods.fedavg import FedAvg
from raydiff.models.training import Training
from raydiff.privacy import accountants
from raydiff.privacy.client_level import DELTA, ClientPrivacy
from raydiff.privacy.filters import Budget
from raydiff.privacy.ledger import Ledger
from raydiff.privacy.release import DiscreteGaussian, Gaussian, already_private
from raydiff.storage.checkpoint import Checkpoint
from raydiff.tree import Params

LOCAL = Training(steps=12, batch=4, optimizer="sgd", learning_rate=0.1, decay="constant")
BAD = 100.0


def method(cls: type[FedAvg] = FedAvg, **privacy: Any) -> FedAvg:
    settings: dict[str, Any] = {"epsilon": 3.0, "clip": 0.5, "trust": "aggregate", "shares": 3, **privacy}
    averaging = Averaging(weights="uniform", privacy=ClientPrivacy(**settings))
    return cls(model=QUADRATIC, local=LOCAL, rounds=3, averaging=averaging)


def run(how: FedAvg, *x: float, store: Checkpoint | None = None, **options: Any) -> list[Progress]:
    pool = LocalExecutor([Client(i, how, values(v), keys=KEYS, store=store) for i, v in enumerate(x)])
    return list(run_rounds(how, pool, keys=KEYS, store=store, **options))


@dataclass(frozen=True, kw_only=True)
class Betrayed(FedAvg):
    """Its client with records of BAD sends what has another type."""

    def local_update(self, server: Params, state: Params, data: Any, rnd: Round) -> LocalResult:
        result = super().local_update(server, state, data, rnd)
        if float(data.images.max()) < BAD:
            return result
        sent = result.release
        return replace(result, release=already_private({k: v.double() for k, v in sent.value.items()}, sent.event))


def test_with_next_to_no_noise_it_is_the_clipped_mean() -> None:
    """Of 5 clients, of which 4 are clipped; the server's model keeps its type."""
    plain = run(method(trust="central", shares=None, epsilon=math.inf), 0.0, 1.0, 2.0, -3.0, 4.0)
    hidden = run(method(epsilon=1e8), 0.0, 1.0, 2.0, -3.0, 4.0)
    for p, q in zip(plain, hidden, strict=True):
        assert q.server["w"].dtype == torch.float32 and q.rejected == {}
        assert float(q.server["w"]) == pytest.approx(float(p.server["w"]), abs=2e-3)
    assert abs(float(plain[-1].server["w"])) > 0.1


def test_a_rejected_upload_is_in_no_sum() -> None:
    (first, *_), (without, *_) = run(method(Betrayed, epsilon=1e8), 0.1, BAD, 0.2, 0.3), run(method(), 0.1, 0.2, 0.3)
    assert list(first.rejected) == [1] and without.rejected == {}
    plain = run(method(trust="central", shares=None, epsilon=math.inf), 0.1, 0.2, 0.3)[0]
    assert float(first.server["w"]) == pytest.approx(float(plain.server["w"]), abs=2e-3)
    assert {e.client for e in first.ledger.entries} == {0, 1, 2, 3}  # It was sent all the same.


def test_fewer_than_the_noise_is_for_end_the_round() -> None:
    with pytest.raises(Failed, match="2 of 3 uploads can be used, fewer than min_clients = 3"):
        run(method(Betrayed), 0.1, BAD, 0.2, min_clients=3)
    with pytest.raises(ValueError, match=r"^2 uploads of the round can be used, fewer than privacy.shares = 3"):
        run(method(Betrayed), 0.1, BAD, 0.2)


def test_all_rounds_together_keep_to_the_budget_by_the_accountant_that_has_a_theorem() -> None:
    how = method()
    ledger: Ledger = run(how, *[0.1] * 4)[-1].ledger
    assert how.accountant == "rdp" and FedAvg().accountant == "exact"
    for view in (ledger.server, ledger.outsiders):
        (guarantee,) = view.guarantees(DELTA, how.accountant)
        assert (guarantee.unit, guarantee.relation, guarantee.trust) == ("client", "replace_one", "aggregate")
        assert 3.0 - 1e-6 < guarantee.epsilon <= 3.0 and guarantee.declared == ("examples",)
    event = how.upload_event(4, 0)
    assert {e.event for e in ledger.entries} == {event}
    ratio = math.sqrt(3) / accountants.mu_for(3.0, DELTA, "rdp")
    assert event == DiscreteGaussian(ratio, "client", "replace_one", "aggregate", declared=("examples",))
    (row, *_) = ledger.table(DELTA)
    assert row["epsilon_exact"] is None and row["epsilon_rdp"] == guarantee.epsilon
    assert row["events"].startswith("3 x discrete Gaussian noise") and "aggregate trust" in row["events"]
    assert Ledger.from_json(ledger.to_json()) == ledger


def test_it_is_never_composed_with_another_trust() -> None:
    hidden = run(method(), *[0.1] * 3)[-1].ledger
    local = Gaussian(5.0, "client", "replace_one", "local", declared=("examples",))
    both = hidden.with_uploads(3, [(0, local, 4)])
    assert {g.trust for g in both.guarantees(DELTA, "rdp")} == {"aggregate", "local"}
    assert both.epsilon(DELTA, "rdp") == math.inf
    why = Budget(unit="client").refuses([method().upload_event(4, 0)])
    assert why == (
        "its guarantee is per client, replace-one, aggregate trust, which does not compose with the budget's"
    )
