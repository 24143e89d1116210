"""MOON (Li, He & Song 2021) against FedAvg, and by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import KEYS, PASSES, QUADRATIC, Quadratic, records, run

from raydiff import tree
from raydiff.experiment.config import Experiment
from raydiff.federated.client import Client
from raydiff.federated.method import Round
from raydiff.federated.rounds import LocalExecutor, rounds
from raydiff.methods.fedavg import FedAvg
from raydiff.methods.moon import Moon
from raydiff.models.training import Training, fit
from raydiff.seeding import generator
from raydiff.storage.checkpoint import Checkpoint
from raydiff.tree import Params


@pytest.fixture(scope="module")
def method(tiny: Experiment) -> Moon:
    return Moon(model=tiny.method.model, local=tiny.method.local, rounds=3)


def fedavg(method: Moon) -> FedAvg:
    return FedAvg(model=method.model, local=method.local, rounds=method.rounds)


# --- identities ---


@pytest.mark.parametrize("local", [None, PASSES])
def test_without_the_term_it_is_fedavg(method: Moon, local: Training | None) -> None:
    method = replace(method, local=local or method.local)
    data = [records(0), records(1, 9)]
    plain, without = run(fedavg(method), data)[-1], run(replace(method, mu=0.0), data)[-1]
    assert tree.digest(without.server) == tree.digest(plain.server)
    assert without.metrics == plain.metrics and without.ledger == plain.ledger


# --- the term ---


@dataclass(frozen=True)
class Fixed(Quadratic):
    """Its parameters are the features; the loss is 0."""

    def features(self, params: Params, batch: tuple[Tensor, Tensor], draws: Params) -> Tensor:
        return params["z"]

    def loss(self, params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        return 0 * params["z"].sum()


def test_the_term_by_hand() -> None:
    """Cosines 1 and 0 to the global and the previous model, then 0 and 1, then 3/5 and 4/5; temperature 1/2."""
    z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [3.0, 4.0]], requires_grad=True)
    z_glob = torch.tensor([[2.0, 0.0], [0.0, 1.0], [5.0, 0.0]])
    z_prev = torch.tensor([[0.0, 3.0], [4.0, 0.0], [0.0, 1.0]])
    model: Any = Fixed()
    method = Moon(model=model, mu=3.0, temperature=0.5)
    batch, extras = (torch.zeros(3, 1), torch.zeros(3, 1)), {"global/z": z_glob, "previous/z": z_prev}
    term = method._contrastive({"z": z}, batch, {}, extras)
    terms = [-math.log(math.exp(2 * g) / (math.exp(2 * g) + math.exp(2 * p))) for g, p in ((1, 0), (0, 1), (0.6, 0.8))]
    assert term.item() == pytest.approx(3 * sum(terms) / 3, rel=1e-6)
    term.backward()
    # row 0: log(1 + e^(2 (cos_p - cos_g))) at z = (1, 0): cos_g is at its height, cos_p rises along (0, 1) by 1
    pull = math.exp(-2) / (1 + math.exp(-2)) * 2
    assert z.grad is not None and z.grad[0].tolist() == pytest.approx([0, 3 / 3 * pull], abs=1e-6)


def test_the_objective_compares_with_the_servers_model_and_the_clients_last(method: Moon) -> None:
    """A round is `fit` of the two terms, written out; the three models see the same noised batch."""
    server, last, data = (method.model.init(generator(i)) for i in (0, 1)), None, records(0)
    (server, last), model = tuple(server), method.model

    def objective(params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        z, g, p = (torch.nn.functional.normalize(model.features(w, batch, draws)) for w in (params, server, last))
        towards, away = ((z * g).sum(1) / 0.5).exp(), ((z * p).sum(1) / 0.5).exp()
        return model.loss(params, batch, draws, {}) - (towards / (towards + away)).log().mean()

    more: Any = {"training": method.local, "rng": generator(2), "steps": range(2, 5), "objective": objective}
    by_hand, _, loss = fit(model, server, data.images, data.labels, **more)
    state = tree.prefixed("scratch/previous", last)
    result = method.local_update(server, state, data, Round(1, generator(2)))
    assert result.metrics["train/loss"] == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(tree.under("scratch/previous", result.state), by_hand, rtol=1e-4, atol=1e-5)


# --- the last model ---


def test_a_client_keeps_its_model_of_the_last_round_that_it_took_part_in(method: Moon, tmp_path: Path) -> None:
    store = Checkpoint(tmp_path / "trial", tmp_path / "cache")
    clients = [Client(i, method, records(i), keys=KEYS, store=store) for i in range(2)]
    seen: dict[int, set[str]] = {0: set(), 1: set()}
    took_part: dict[int, int] = {0: 0, 1: 0}
    for progress in rounds(method, LocalExecutor(clients), keys=KEYS, participation=0.5, store=store):
        (entry,) = (e for e in progress.ledger.entries if e.round == progress.number)
        took_part[entry.client] += 1
        for client in clients:
            state = client.state(progress.number)
            assert set(tree.under("scratch/previous", state)) == (set(progress.server) if state else set())
            seen[client.number] |= {tree.digest(state)} if state else set()
    assert {i: len(digests) for i, digests in seen.items()} == took_part
    assert sum(took_part.values()) == 3


def test_the_last_model_is_the_servers_and_the_update(method: Moon) -> None:
    server = method.init_server(None, generator(0))
    result = method.local_update(server, {}, records(0), Round(0, generator(1)))
    torch.testing.assert_close(tree.under("scratch/previous", result.state), tree.add(server, result.release.value))


def test_a_model_without_features_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"^MOON compares models by their features, and Quadratic has none$"):
        Moon(model=QUADRATIC)
