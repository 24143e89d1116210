"""DP-MERF (Harder et al. 2021): the upload by hand, the kernel, and the generator's loss."""

import math
from typing import Any

import pytest
import torch
from toys import KEYS, records, run

from raydiff import tree
from raydiff.data.records import Records
from raydiff.federated.client import Client
from raydiff.federated.method import Round
from raydiff.federated.rounds import LocalExecutor, run_rounds
from raydiff.methods.dpmerf import DPMERF, phi
from raydiff.models.generator import Generator
from raydiff.models.training import Training
from raydiff.privacy import accountants
from raydiff.seeding import NoiseStream, generator
from raydiff.tree import Params

pytestmark = pytest.mark.usefixtures("fine_grid")

NOISE = NoiseStream(b"0123456789abcdef", ("x",))
PUBLIC = records(9, 30)
SHORT = Training(steps=8, batch=20)


def small(**fields: Any) -> DPMERF:
    return DPMERF(**{"features": 60, "length": 3.0, "training": SHORT, **fields})


def kernel(server: Params, method: DPMERF) -> torch.Tensor:
    """The frequencies (D / 2, d)."""
    return method._frequencies(server)


def test_features_have_norm_1_and_products_near_the_kernel() -> None:
    x = torch.randn(40, 1, 8, 8, generator=generator(0)) * 0.5
    method = small(features=20_000)
    made = phi(x, kernel(method.init_server(None, generator(0)), method))
    torch.testing.assert_close(made.norm(dim=1), torch.ones(40))
    expected = (-torch.cdist(x.flatten(1), x.flatten(1)).square() / (2 * 3.0**2)).exp()
    torch.testing.assert_close(made @ made.T, expected, rtol=0, atol=0.03)


def test_the_length_is_the_median_distance_of_public_records_of_a_label_and_the_waves_are_everybodys() -> None:
    method = small(length=None)
    one, again, other = (method.init_server(PUBLIC, generator(i)) for i in (0, 0, 1))
    x, labels = PUBLIC.images.flatten(1), PUBLIC.labels[:, 0].tolist()
    pairs = [(i, j) for i in range(30) for j in range(i) if labels[i] == labels[j]]
    apart = torch.stack([(x[i] - x[j]).norm() for i, j in pairs])
    assert float(one["kernel/length"]) == pytest.approx(float(apart.median()))
    assert torch.equal(kernel(one, method), kernel(again, method))
    assert not torch.equal(kernel(one, method), kernel(other, method))
    with pytest.raises(ValueError, match="length must be given where there are no public records"):
        method.init_server(None, generator(0))
    with pytest.raises(ValueError, match="no two public records have the same labels"):
        method.init_server(PUBLIC.select(torch.arange(1)), generator(0))


def test_the_upload_by_hand() -> None:
    """Record by record."""
    method = small(epsilon=3.0)
    server, data = method.init_server(PUBLIC, generator(0)), records(0)
    w = kernel(server, method).double()

    def features(x: torch.Tensor) -> torch.Tensor:
        angles = w @ x.flatten().double()
        return torch.cat([angles.cos(), angles.sin()]) / math.sqrt(30)

    sums = torch.zeros(10, 60).double()
    for x, label in zip(data.images, data.labels[:, 0], strict=True):
        sums[label] += features(x)
    sent = method.local_update(server, {}, data, Round(0, generator(0), NOISE)).release
    sigma = 2 / accountants.mu_for(3.0, 1e-5)
    noisy = sums + sigma * NOISE.normal([0], (10, 60))[0]
    torch.testing.assert_close(sent.value["embedding"], noisy.float(), rtol=1e-4, atol=1e-4)
    assert sent.value["counts"].tolist() == data.labels[:, 0].bincount(minlength=10).tolist()
    assert sorted(sent.value) == ["counts", "embedding"]


def test_the_server_s_target_is_the_mean_of_all_records() -> None:
    parts = [records(i, 20 + i) for i in range(3)]
    x, y = torch.cat([p.images for p in parts]), torch.cat([p.labels[:, 0] for p in parts])
    method = small(epsilon=None, length=None)
    clients = [Client(i, method, own, keys=KEYS, public=PUBLIC) for i, own in enumerate(parts)]
    first = next(run_rounds(method, LocalExecutor(clients), keys=KEYS, public=PUBLIC))
    every = phi(x, kernel(first.server, method))
    means = torch.stack([every[y == k].mean(0) for k in range(10)])
    torch.testing.assert_close(first.server["server_only/target/mean"], means, rtol=1e-3, atol=1e-4)
    assert first.server["server_only/target/counts"].tolist() == y.bincount().tolist()
    assert not [k for k in first.sent if k.startswith("server_only")]


def test_the_loss_is_the_squared_distance_without_bias() -> None:
    """Over many batches its mean is that of the generator's true mean features, of rows weighed by their records."""
    method = small(training=Training(steps=1, batch=4))
    server = method.init_server(None, generator(0))
    target = 0.02 * torch.randn(10, 60, generator=generator(1))
    counts = torch.tensor([30.0, 10.0, *[0.0] * 8]).double()
    server |= {"server_only/target/mean": target, "server_only/target/counts": counts}
    theta = {k: v.requires_grad_() for k, v in tree.under("model", server).items()}
    gradient, losses = method._gradient(server, generator(2)), []
    for _ in range(400):
        losses.append(float(gradient(theta)[1]))
    rows = torch.arange(2).repeat_interleave(3000)
    z = torch.randn(6000, 5, generator=generator(3))
    with torch.no_grad():
        mean = phi(method.model.pictures(theta, z, rows), kernel(server, method)).view(2, 3000, -1).mean(1)
    shares = 2 * torch.tensor([0.75, 0.25]).square()
    expected = float((shares * ((mean - target[:2]).square().sum(1) - target[:2].square().sum(1))).sum())
    spread = torch.tensor(losses).std() / math.sqrt(400)
    assert float(torch.tensor(losses).mean()) == pytest.approx(expected, abs=5 * float(spread))
    biased = float((shares * (1 - mean.square().sum(1)) / 2).sum())  # what the square of a mean of two is too large by
    assert biased > 10 * float(spread)


@pytest.mark.slow
def test_without_noise_the_generator_learns_each_class() -> None:
    """Two classes, one dark and one light, of which a stripe's place varies."""
    rng, n = generator(5), 200
    labels = torch.arange(n)[:, None] % 2
    images = torch.full((n, 1, 8, 8), -0.8) + 1.2 * labels[:, :, None, None]
    images[range(n), 0, torch.randint(8, (n,), generator=rng)] += 0.4
    data = Records(images, labels, torch.arange(n))
    training = Training(steps=300, batch=40, learning_rate=1e-2)
    method = DPMERF(model=Generator(labels=(2,)), epsilon=None, features=500, length=3.0, training=training)
    first, *_, last = run(method, [data])
    wanted = torch.arange(2).repeat(200)[:, None]

    def apart(server: Params) -> float:
        w = kernel(server, method)
        made = phi(method.deploy(server).sample(wanted, generator(0)), w)
        means = [(made[wanted[:, 0] == k].mean(0) - phi(images[labels[:, 0] == k], w).mean(0)).norm() for k in (0, 1)]
        return float(max(means))

    assert apart(last.server) < 0.1 < 0.4 < apart(first.server)
