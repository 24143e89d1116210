"""MOON (Li, He & Song 2021) against FedAvg, and by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import KEYS, records

from raydiff import tree
from raydiff.experiment.config import Experiment
from raydiff.federated.client import Client
from raydiff.federated.method import Round
from raydiff.federated.rounds import LocalExecutor, rounds
from raydiff.methods.moon import Moon
from raydiff.models.training import fit
from raydiff.seeding import generator
from raydiff.storage.checkpoint import Checkpoint
from raydiff.tree import Params


@pytest.fixture(scope="module")
def method(tiny: Experiment) -> Moon:
    return Moon(model=tiny.method.model, local=tiny.method.local, rounds=3)


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


def test_a_client_keeps_its_model_of_the_last_round_that_it_took_part_in(method: Moon, tmp_path: Path) -> None:
    store = Checkpoint(tmp_path / "trial", tmp_path / "cache")
    clients = [Client(i, method, records(i), keys=KEYS, store=store) for i in range(2)]
    seen: dict[int, set[str]] = {0: set(), 1: set()}
    took_part: dict[int, int] = {0: 0, 1: 0}
    for progress in rounds(method, LocalExecutor(clients), keys=KEYS, participants=len(clients) // 2, store=store):
        (entry,) = (e for e in progress.ledger.entries if e.round == progress.number)
        took_part[entry.client] += 1
        for client in clients:
            state = client.state(progress.number)
            assert set(tree.under("scratch/previous", state)) == (set(progress.server) if state else set())
            seen[client.client_id] |= {tree.digest(state)} if state else set()
    assert {i: len(digests) for i, digests in seen.items()} == took_part
    assert sum(took_part.values()) == 3
