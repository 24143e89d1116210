"""SPIRE (arXiv 2506.12303) against what it reduces to, and what it must never send."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from toys import KEYS, records

from raydiff import tree
from raydiff.experiment.config import Experiment
from raydiff.federated.client import Client
from raydiff.federated.method import Method, Metrics, Round, Upload
from raydiff.federated.rounds import LocalPool, Progress, rounds
from raydiff.methods import SPIRE, FedAvg
from raydiff.methods._averaging import Averaging
from raydiff.models.networks import CLIENT, MLP, UNet
from raydiff.models.training import Training, fit_personal
from raydiff.seeding import generator
from raydiff.tree import Params

UNIFORM = Averaging(weights="uniform")


@pytest.fixture(scope="module")
def method(tiny: Experiment) -> SPIRE:
    model = replace(tiny.method.model, conditional=False, labels=())
    return SPIRE(model=model, local=tiny.method.local, rounds=3, joining=Training(steps=4, batch=4, decay="constant"))


class Watching(LocalPool):
    """A pool that remembers what its clients sent."""

    def __init__(self, clients: list[Client]) -> None:
        super().__init__(clients)
        self.sent: list[Upload] = []

    def state(self, client: int, number: int) -> Params:
        return self._clients[client].state(number)

    def run(self, ids: Sequence[int], server: Params, number: int) -> Iterator[tuple[Upload, Metrics]]:
        for upload, metrics in super().run(ids, server, number):
            self.sent.append(upload)
            yield upload, metrics


def pool(method: Method) -> Watching:
    return Watching([Client(i, method, records(i, 8 + 4 * i), keys=KEYS) for i in range(3)])


def run(method: Method) -> list[Progress]:
    return list(rounds(method, pool(method), keys=KEYS))


def test_with_frozen_zero_embeddings_it_is_fedavg(method: SPIRE) -> None:
    frozen = replace(method, embedding_std=0.0, train_embedding=False)
    fedavg = FedAvg(model=method.model, local=method.local, rounds=3, averaging=UNIFORM)
    assert tree.digest(run(frozen)[-1].server) == tree.digest(run(fedavg)[-1].server)
    assert tree.digest(run(method)[-1].server) != tree.digest(run(fedavg)[-1].server)


@pytest.mark.parametrize("network", [MLP(width=24, depth=1), UNet(widths=(8, 8))], ids=["mlp", "unet"])
def test_no_release_of_a_whole_run_holds_an_embedding(method: SPIRE, network: MLP | UNet) -> None:
    method = replace(method, model=replace(method.model, network=network))
    clients, whole = pool(method), method.trained_model.init(generator(0))
    states = []
    for progress in rounds(method, clients, keys=KEYS):
        states.append([clients.state(i, progress.number) for i in range(3)])
        assert progress.server.keys() == whole.keys() - {CLIENT}
    assert len(clients.sent) == 9
    for upload in clients.sent:
        shapes = {k: v.shape for k, v in upload.release.value.items()}
        assert shapes == {k: v.shape for k, v in whole.items() if k != CLIENT}
    values = [state[CLIENT] for own in states for state in own if state.keys() == {CLIENT}]
    assert len(values) == 9 and {v.shape for v in values} == {(network.embedding_width,)}
    assert all(not torch.equal(a, b) for i, a in enumerate(values) for b in values[:i])  # each client's, and trained


def test_both_parts_follow_one_gradient(method: SPIRE) -> None:
    """Algorithm 1: each local step moves the whole theta_j, the embedding with the backbone."""
    server, own = method.init_server(None, generator(0)), {CLIENT: torch.ones(method.model.network.embedding_width)}
    data, sgd = records(0), Training(steps=1, batch=6, learning_rate=0.1, optimizer="sgd", decay="constant")
    one = replace(method, rounds=1, local=sgd)
    result = one.local_update(server, own, data, Round(0, generator(5)))
    rng = generator(5)
    rows = torch.randint(len(data), (6,), generator=rng)
    model = one.trained_model
    draws = model.draws(6, rng)
    params = {k: v.clone().requires_grad_() for k, v in {**server, **own}.items()}
    loss = model.loss(params, (data.images[rows], data.labels[rows]), draws, {})
    gradient = dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))
    torch.testing.assert_close(result.state[CLIENT], own[CLIENT] - 0.1 * gradient[CLIENT])
    for name, sent in result.release.value.items():
        torch.testing.assert_close(sent, -0.1 * gradient[name])
    assert float(gradient[CLIENT].norm()) > 1e-4


def test_a_client_that_joins_trains_an_embedding_alone(method: SPIRE) -> None:
    server = run(method)[-1].sent
    newcomer = Client(7, method, records(7), keys=KEYS, newcomer=True)
    personal, fixed = method.join(server, generator(1))
    assert personal.keys() == {CLIENT} and fixed is server
    data = (records(7).images, records(7).labels)
    rng = generator(KEYS.seed, "client", 7, "join")
    personal, fixed = method.join(server, rng)
    trained, _, _ = fit_personal(method.trained_model, personal, fixed, data, training=method.joining, rng=rng)
    assert trained.keys() == {CLIENT} and not torch.equal(trained[CLIENT], personal[CLIENT])
    by_hand = method.deploy(server, trained)
    labels = torch.zeros(5, 1, dtype=torch.int64)
    drawn = newcomer.deploy(server, 2).sample(labels, generator(2))
    assert torch.equal(drawn, by_hand.sample(labels, generator(2)))
    untrained = method.deploy(server, personal)
    assert not torch.equal(drawn, untrained.sample(labels, generator(2)))


def test_without_labels_what_is_asked_for_changes_nothing(method: SPIRE) -> None:
    server = run(method)[-1].sent
    deployed = Client(0, method, records(0), keys=KEYS).deploy(server, 2)
    assert not deployed.conditional
    drawn = [deployed.sample(torch.full((4, 1), c), generator(2)) for c in (0, 7)]
    assert torch.equal(*drawn)


def test_the_shared_model_has_embedding_zero(method: SPIRE) -> None:
    server, labels = run(method)[-1].sent, torch.zeros(3, 1, dtype=torch.int64)
    zero = {CLIENT: torch.zeros(method.model.network.embedding_width)}
    expected = method.deploy(server, zero).sample(labels, generator(2))
    alone = method.deploy(server)
    assert torch.equal(alone.sample(labels, generator(2)), expected)
    assert alone.about == "images of the backbone with embedding 0"


def test_bad_values_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^embedding_std must be >= 0, got -1$"):
        SPIRE(embedding_std=-1)
    with pytest.raises(ValueError, match=r"^rounds must be at least 1, got 0$"):
        SPIRE(rounds=0)
