"""Sketch: the upload by hand, and what the server makes of it."""

import math
from dataclasses import replace

import pytest
import torch
from toys import KEYS, records, run

from raydiff import tree
from raydiff.data.records import Center, Records, label_rows
from raydiff.experiment.config import Experiment
from raydiff.federated.client import Client
from raydiff.federated.method import Round
from raydiff.federated.rounds import LocalExecutor, run_rounds
from raydiff.methods.sketch import Sketch
from raydiff.models.moments import Gaussians
from raydiff.models.samplers import Sampling, denoise
from raydiff.models.training import with_clipped_flag
from raydiff.papers.pfdm.method import PFDM
from raydiff.privacy import accountants
from raydiff.seeding import NoiseStream, generator

pytestmark = pytest.mark.usefixtures("fine_grid")

NOISE = NoiseStream(b"0123456789abcdef", ("x",))
PUBLIC = records(9, 30)


@pytest.mark.parametrize("center", ["grey", "black", "public"])
def test_the_upload_by_hand(center: Center) -> None:
    """Record by record, entry by entry; leaves are noised in the order of their names."""
    clip = 9.0 if center == "black" else 4.6
    method = Sketch(clip=clip, center=center, moment=1.2, epsilon=3.0)
    data, server = records(0), method.init_server(PUBLIC, generator(0))
    middle = {"grey": torch.tensor(0.0), "black": torch.tensor(-1.0), "public": PUBLIC.images.mean(0)}[center]
    result = method.local_update(server, {}, data, Round(0, generator(0), NOISE))
    sums, matrix, lengths = torch.zeros(10, 64).double(), torch.zeros(64, 64).double(), []
    for x, label in zip(data.images, data.labels[:, 0], strict=True):
        u = (x - middle).flatten().double()
        lengths.append(float(u.norm()))
        u *= min(1.0, clip / lengths[-1])
        sums[label] += u
        matrix += torch.outer(u, u)
    assert any(n > clip for n in lengths) and any(n < clip for n in lengths)
    packed = [matrix[i, j] * (1.0 if i == j else math.sqrt(2)) for i in range(64) for j in range(i, 64)]
    sigma = clip * math.sqrt(2 + 2 * 1.44 + 1 / 2.88) / accountants.mu_for(3.0, 1e-5)
    sent = result.release.value
    assert sorted(sent) == ["counts", "second", "sums"]
    expected = {"second": 1.2 / clip * torch.stack(packed), "sums": sums}
    for i, (name, signal) in enumerate(expected.items()):
        noisy = signal + sigma * NOISE.normal([i], signal.shape)[0]
        torch.testing.assert_close(sent[name], noisy.float(), rtol=1e-4, atol=1e-3)
    assert sent["counts"].tolist() == data.labels[:, 0].bincount(minlength=10).tolist()
    assert result.metrics["upload/clipped_fraction"] == pytest.approx(sum(n > clip for n in lengths) / 12)


def test_labels_of_several_columns_have_a_row_for_each_combination() -> None:
    labels = torch.tensor([[0, 0], [1, 2], [3, 1]])
    assert label_rows(labels, (4, 3)).tolist() == [0, 5, 10]
    data = replace(records(0, 3), labels=labels)
    method = Sketch(model=Gaussians(labels=(4, 3)), epsilon=None)
    server = method.init_server(None, generator(0))
    sent = method.local_update(server, {}, data, Round(0, generator(0))).release.value
    assert sent["counts"].nonzero()[:, 0].tolist() == [0, 5, 10] and sent["sums"].shape == (12, 64)
    torch.testing.assert_close(sent["sums"][5], data.images[1].flatten())


def test_without_noise_samples_have_the_records_two_moments() -> None:
    """Means of each class, and one covariance within classes, of two clients' records together."""
    rng = generator(4)
    shape = torch.randn(9, 9, generator=rng) * 0.04

    def client(n: int) -> Records:
        labels = torch.randint(3, (n, 1), generator=rng)
        images = (labels.float() - 1) * 0.2 + torch.randn(n, 9, generator=rng) @ shape
        return Records(images.view(n, 1, 3, 3), labels, torch.arange(n))

    parts = [client(300), client(200)]
    method = Sketch(model=Gaussians(shape=(1, 3, 3), labels=(3,)), epsilon=None, clip=100.0)
    server = run(method, parts)[-1].server
    x, y = torch.cat([p.images.flatten(1) for p in parts]), torch.cat([p.labels[:, 0] for p in parts])
    means = torch.stack([x[y == k].mean(0) for k in range(3)])
    within = x - means[y]
    torch.testing.assert_close(server["gaussians/mean"].flatten(1), means, rtol=1e-4, atol=1e-5)
    wanted = torch.arange(3).repeat(20_000)[:, None]
    drawn = method.deploy(server).sample(wanted, generator(0)).flatten(1)
    assert float(drawn.abs().max()) < 1  # nothing was clamped
    torch.testing.assert_close(drawn[wanted[:, 0] == 2].mean(0), means[2], rtol=0, atol=0.01)
    drawn -= means[wanted[:, 0]]
    torch.testing.assert_close(drawn.T @ drawn / len(drawn), within.T @ within / 500, rtol=0.03, atol=1e-3)


def test_without_a_moment_the_sums_alone_are_sent_and_a_sample_is_the_mean_of_its_class() -> None:
    method, parts = Sketch(moment=0.0, center="black", epsilon=None, clip=100.0), [records(0, 30), records(1, 20)]
    last = run(method, parts)[-1]
    x, y = torch.cat([p.images for p in parts]), torch.cat([p.labels[:, 0] for p in parts])
    drawn = method.deploy(last.server).sample(torch.arange(10)[:, None], generator(0))
    torch.testing.assert_close(drawn, torch.stack([x[y == k].mean(0) for k in range(10)]).clamp(-1, 1))
    assert sorted(method.shapes) == ["sums"]
    for bad in ({"moment": -1.0}, {"center": "white"}, {"relation": "x"}):
        with pytest.raises(ValueError, match=f"{next(iter(bad))} must be"):
            Sketch(**bad)  # type: ignore[arg-type]


def test_refined_pictures_are_drawn_noised_and_taken_back_by_pfdms_own_denoiser(tiny: Experiment) -> None:
    """By hand; the client's model is the one that PFDM trains, bit for bit, so that a sweep trains it once."""
    pfdm = replace(tiny.method, clip=5.0, center="public")
    assert isinstance(pfdm, PFDM)
    own = {"denoiser": pfdm.model, "local": pfdm.local, "client_sampling": Sampling(sampler="ddim", steps=5)}
    method = Sketch(clip=5.0, center="public", refine=0.4, **own)
    data = records(0)
    assert method.init_key == pfdm.init_key and replace(method, refine=0.0).init_key is None
    state, theirs = (m.init_client({}, data, PUBLIC, Round(0, generator(1))) for m in (method, pfdm))
    assert tree.digest(state) == tree.digest(theirs)
    client = Client(0, method, data, keys=KEYS, public=PUBLIC)
    *_, last = run_rounds(method, LocalExecutor([client]), keys=KEYS, public=PUBLIC)
    labels, rng = torch.arange(10)[:, None], generator(7)
    deployed = method.deploy(last.sent, state)
    found = deployed.sample(labels, generator(7))
    drawn = method.deploy(last.sent).sample(labels, rng)
    abar = float(pfdm.model.abar[8])  # 0.4 of T = 20
    x = math.sqrt(abar) * drawn + math.sqrt(1 - abar) * torch.randn(drawn.shape, generator=rng)
    z = with_clipped_flag(pfdm.model).denoiser(state, fixed=(0,))
    times = {"start": 8, "sampler": "ddim", "steps": 2, "bound": 1.0}  # its share of 5 steps
    by_hand = denoise(z, x, labels=labels, abar=pfdm.model.abar, rng=rng, **times)  # type: ignore[arg-type]
    torch.testing.assert_close(found, by_hand, rtol=1e-4, atol=1e-5)
    assert list(deployed.samplers) == ["ddim", "ancestral"] and set(deployed.targets) == {"global", "client"}
    assert not deployed.of_server
