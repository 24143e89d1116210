"""SPIRE (arXiv 2506.12303) against what it reduces to, and what it must never send."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from toys import KEYS, records

from raydiff import tree
from raydiff.data.records import Records
from raydiff.experiment.config import Experiment
from raydiff.federated.client import Client
from raydiff.federated.method import Method, Metrics, Round, Upload
from raydiff.federated.rounds import LocalExecutor, Progress, run_rounds
from raydiff.methods._averaging import Averaging
from raydiff.methods.fedavg import FedAvg
from raydiff.models.networks import CLIENT
from raydiff.models.training import Training, fit_personal
from raydiff.papers.spire.method import KINDS, SHARES, SPIRE
from raydiff.seeding import generator
from raydiff.tree import Params


@pytest.fixture(scope="module")
def method(tiny: Experiment) -> SPIRE:
    model = replace(tiny.method.model, conditional=False, labels=())
    return SPIRE(model=model, local=tiny.method.local, rounds=3, joining=Training(steps=4, batch=4, decay="constant"))


class Watching(LocalExecutor):
    """An executor that remembers what its clients sent."""

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


def two_kinds() -> Records:
    """Four dark pictures and eight light ones; their labels say nothing."""
    shade = torch.tensor([-0.8] * 4 + [0.8] * 8).view(-1, 1, 1, 1)
    data = records(7)
    return replace(data, images=(shade + data.images * 0.1).clamp(-1, 1))


def run(method: Method) -> list[Progress]:
    return list(run_rounds(method, pool(method), keys=KEYS))


@pytest.fixture(scope="module")
def server(method: SPIRE) -> Params:
    """The backbone after a run."""
    return run(method)[-1].server


def test_with_frozen_zero_embeddings_it_is_fedavg(method: SPIRE, server: Params) -> None:
    frozen = run(replace(method, embedding_std=0.0, train_embedding=False))[-1].server
    fedavg = run(FedAvg(model=method.model, local=method.local, rounds=3, averaging=Averaging(weights="uniform")))
    assert tree.digest(frozen) == tree.digest(fedavg[-1].server) != tree.digest(server)


def test_no_release_of_a_whole_run_holds_an_embedding(method: SPIRE) -> None:
    clients, whole = pool(method), method.trained_model.init(generator(0))
    states = []
    for progress in run_rounds(method, clients, keys=KEYS):
        states.append([clients.state(i, progress.number) for i in range(3)])
        assert progress.server.keys() == whole.keys() - {CLIENT}
    assert len(clients.sent) == 9
    shapes = {k: v.shape for k, v in whole.items() if k != CLIENT}
    assert all({k: v.shape for k, v in upload.release.value.items()} == shapes for upload in clients.sent)
    values = [state[CLIENT] for each in states for state in each if state.keys() == {CLIENT}]
    assert len(values) == 9 and {v.shape for v in values} == {(method.model.network.width,)}
    assert all(not torch.equal(a, b) for i, a in enumerate(values) for b in values[:i])  # each client's, and trained


def test_both_parts_follow_one_gradient(method: SPIRE) -> None:
    """Algorithm 1: each local step moves the whole theta_j, the embedding with the backbone."""
    server, embedding = (
        method.init_server(None, generator(0)),
        {CLIENT: torch.ones(method.model.network.width)},
    )
    data, sgd = records(0), Training(steps=1, batch=6, learning_rate=0.1, optimizer="sgd", decay="constant")
    one = replace(method, rounds=1, local=sgd)
    result = one.local_update(server, embedding, data, Round(0, generator(5)))
    rng = generator(5)
    rows = torch.randint(len(data), (6,), generator=rng)
    model = one.trained_model
    draws = model.draws(6, rng)
    params = {k: v.clone().requires_grad_() for k, v in {**server, **embedding}.items()}
    loss = model.loss(params, (data.images[rows], data.labels[rows]), draws, {})
    gradient = dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))
    torch.testing.assert_close(result.state[CLIENT], embedding[CLIENT] - 0.1 * gradient[CLIENT])
    for name, sent in result.release.value.items():
        torch.testing.assert_close(sent, -0.1 * gradient[name])
    assert float(gradient[CLIENT].norm()) > 1e-4


def test_a_client_that_joins_trains_an_embedding_alone(method: SPIRE, server: Params) -> None:
    data, rng = records(7), generator(KEYS.seed, "client", 7, "join")
    personal, fixed = method.join(server, rng)
    assert personal.keys() == {CLIENT} and fixed.keys() == server.keys()
    rows = (data.images, data.labels)
    trained, _, _ = fit_personal(method.trained_model, personal, fixed, rows, training=method.joining, rng=rng)
    assert trained.keys() == {CLIENT} and not torch.equal(trained[CLIENT], personal[CLIENT])
    joined = Client(7, method, data, keys=KEYS, unseen=True).personalized(server, 2)
    assert tree.digest(joined) == tree.digest(trained)


def test_a_client_that_joins_with_several_embeddings_trains_one_for_each_cluster(method: SPIRE, server: Params) -> None:
    """By hand: K-means of the pictures, labels unseen; a record's loss reaches the embedding of its cluster alone."""
    several = replace(method, embeddings=3)
    data, rng = two_kinds(), generator(KEYS.seed, "client", 7, "join")
    personal, fixed = several.join(server, rng)
    clustered, fractions = several.kinds(data, rng)
    assert personal.keys() == {KINDS} and personal[KINDS].shape == (3, 32) and fixed.keys() == server.keys()
    kinds = clustered.labels[:, -1]
    assert torch.equal(clustered.labels[:, :-1], data.labels) and torch.equal(clustered.images, data.images)
    assert fractions[SHARES].tolist() == pytest.approx([float((kinds == k).sum()) / 12 for k in range(3)])
    assert not {*kinds[:4].tolist()} & {*kinds[4:].tolist()} and len(kinds.unique()) == 3  # dark and light lie apart
    (again, _), (other, _) = (
        several.kinds(replace(data, labels=labels), generator(1)) for labels in (data.labels, data.labels * 0)
    )
    assert torch.equal(again.labels[:, -1], other.labels[:, -1])
    params = {k: v.clone().requires_grad_() for k, v in personal.items()}
    draws = several.trained_model.draws(4, generator(2))
    several.trained_model.loss({**fixed, **params}, (clustered.images[:4], clustered.labels[:4]), draws, {}).backward()
    gradient = params[KINDS].grad
    assert gradient is not None
    assert {k for k in range(3) if float(gradient[k].norm()) > 0} == {*kinds[:4].tolist()}
    rows = (clustered.images, clustered.labels)
    trained, _, _ = fit_personal(several.trained_model, personal, fixed, rows, training=several.joining, rng=rng)
    state = Client(7, several, data, keys=KEYS, unseen=True).personalized(server, 2)
    assert tree.digest(state) == tree.digest({**trained, **fractions})


def test_a_picture_is_sampled_with_an_embedding_drawn_by_the_clusters_fractions(method: SPIRE, server: Params) -> None:
    """Equal embeddings sample as one does, from the noise after the draw of kinds; of others each kind is drawn."""
    several = replace(method, embeddings=3)
    same, fractions = torch.randn(32, generator=generator(4)), torch.tensor([0.25, 0.75, 0.0])
    labels = torch.zeros(400, 1, dtype=torch.int64)
    rng = generator(2)
    kinds = torch.multinomial(fractions, 400, replacement=True, generator=rng)
    assert kinds.bincount(minlength=3).tolist()[2] == 0 and 70 < int((kinds == 0).sum()) < 130
    mixed = several.deploy(server, {KINDS: same.expand(3, -1), SHARES: fractions})
    expected = method.deploy(server, {CLIENT: same}).sample(labels, rng)
    torch.testing.assert_close(mixed.sample(labels, generator(2)), expected)
    apart = several.deploy(server, {KINDS: torch.stack([same, -5 * same, same]), SHARES: fractions})
    moved = (apart.sample(labels, generator(2)) - expected).flatten(1).norm(dim=1) > 1e-3
    assert torch.equal(moved, kinds == 1)
    assert set(apart.samplers) == {"ancestral", "ddim"} and not apart.conditional


def test_an_attack_asks_with_every_embedding_that_a_record_has(method: SPIRE, server: Params) -> None:
    several = replace(method, embeddings=3)
    table, fractions = torch.randn(3, 32, generator=generator(4)), torch.tensor([0.5, 0.0, 0.5])
    targets = several.deploy(server, {KINDS: table, SHARES: fractions}).targets
    x, t, labels = torch.randn(5, 1, 8, 8, generator=generator(1)), torch.tensor([1, 3, 7, 11, 20]), torch.zeros(5, 1)
    answers = [z(x, t, labels.long()) for z in targets["client"].denoisers]
    one = [method.deploy(server, {CLIENT: e}).targets["client"].denoisers[0](x, t, labels.long()) for e in table]
    assert len(answers) == 2
    torch.testing.assert_close(answers[0], one[0])
    torch.testing.assert_close(answers[1], one[2])
    shared = method.deploy(server).targets["global"].denoisers[0](x, t, labels.long())
    assert torch.equal(targets["global"].denoisers[0](x, t, labels.long()), shared)
