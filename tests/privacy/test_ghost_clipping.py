"""Gradients that are never built are those that are, by torch.func record by record; and the same clip bounds them."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from reference.gaussians import length
from torch import Tensor
from torch.nn import functional as F

from raydiff.data.records import Records
from raydiff.methods import dpsgd
from raydiff.methods.dpsgd import DPSGD
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP, UNet
from raydiff.models.training import Training
from raydiff.privacy import ghost_clipping as layers, private_gradient
from raydiff.privacy.ghost_clipping import Outer
from raydiff.privacy.private_gradient import Mechanism, PrivateGradient, sum_clipped
from raydiff.seeding import NoiseStream, generator
from raydiff.tree import Params

NETWORK = MLP(width=12, depth=2, skip=True)
MODELS = [
    DDPM(network=NETWORK, timesteps=20, shape=(1, 4, 4), labels=(3, 2)),
    DDPM(network=NETWORK, timesteps=20, shape=(1, 4, 4), labels=(3, 2), prediction="v"),
    DDPM(network=MLP(width=12, depth=1), timesteps=20, shape=(2, 4, 4), labels=(), conditional=False, prediction="edm"),
]
COUNT = 7


def inputs(model: DDPM, count: int = COUNT) -> tuple[Params, tuple[Tensor, Tensor], Params]:
    """Weights none of which are 0, a batch, and a draw for each of its records."""
    rng = generator(3)
    params = {k: v + 0.3 * torch.randn(v.shape, generator=rng) for k, v in model.init(rng).items()}
    labels = [torch.randint(n, (count, 1), generator=rng) for n in model.labels]
    images = torch.rand(count, *model.shape, generator=rng) * 2 - 1
    drawn = {k: v[:, None] for k, v in model.draws(count, rng).items()}
    return params, (images, torch.cat([torch.zeros(count, 0, dtype=torch.long), *labels], 1)), drawn


def norms(gradients: Any) -> Tensor:
    each = [v.norms() if isinstance(v, Outer) else v.flatten(1).double().norm(dim=1) for v in gradients.values()]
    return torch.stack(each).norm(dim=0)


@pytest.mark.parametrize("model", MODELS, ids=["epsilon", "v", "unconditional"])
def test_norms_and_clipped_sums_are_those_of_gradients_that_are_built(model: DDPM) -> None:
    params, batch, draws = inputs(model)
    built, losses = private_gradient.per_record(model.loss, params, batch, draws)
    ghosts, loss = layers.gradient_factors(model.loss, params, batch, draws)
    assert ghosts.keys() == built.keys() and any(isinstance(v, Outer) for v in ghosts.values())
    torch.testing.assert_close(loss, losses.sum(), rtol=1e-5, atol=0)
    lengths = norms(built)
    torch.testing.assert_close(norms(ghosts), lengths, rtol=1e-5, atol=0)
    for clip in (float(lengths.min()) / 2, float(lengths.median()), 2 * float(lengths.max())):
        torch.testing.assert_close(sum_clipped(ghosts, clip), sum_clipped(built, clip), rtol=1e-4, atol=1e-6 * clip)


def of_record(i: int, model: DDPM, params: Params, batch: tuple[Tensor, Tensor], draws: Params, clip: float) -> Params:
    """What record i adds to the sum by itself."""
    one, drawn = tuple(v[i : i + 1] for v in batch), {k: v[i : i + 1] for k, v in draws.items()}
    return sum_clipped(layers.gradient_factors(model.loss, params, one, drawn)[0], clip)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", MODELS, ids=["epsilon", "v", "unconditional"])
def test_no_record_changes_another_s_gradient(model: DDPM) -> None:
    """The sum over all is that of each alone, though one of them is a hundred times as large."""
    params, (images, labels), draws = inputs(model)
    batch = torch.cat([100 * images[:1], images[1:]]), labels
    whole = sum_clipped(layers.gradient_factors(model.loss, params, batch, draws)[0], 0.1)
    alone = [of_record(i, model, params, batch, draws, 0.1) for i in range(COUNT)]
    for name, v in whole.items():
        torch.testing.assert_close(v, torch.stack([one[name] for one in alone]).sum(0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e6, 1e15])
def test_no_record_adds_more_than_the_clip_norm(size: float) -> None:
    params, (images, labels), draws = inputs(MODELS[0], 20)
    for i in range(20):
        sent = of_record(i, MODELS[0], params, (size * images, labels), draws, 0.05)
        assert 0 < length(sent) <= 0.05


def test_a_factor_that_is_not_finite_counts_as_none() -> None:
    left, right = torch.tensor([[1.0, 0.0], [math.inf, 1.0], [0.0, 1.0]]), torch.tensor([[2.0], [0.0], [math.nan]])
    sent = sum_clipped({"w": Outer(left, right), "b": torch.ones(3, 1)}, 100.0)
    expected = {"w": torch.tensor([[2.0], [0.0]]), "b": torch.tensor([1.0])}
    torch.testing.assert_close(sent, {k: v.double() for k, v in expected.items()})


def small(by_layers: bool, **mechanism: Any) -> tuple[Params, PrivateGradient]:
    params, (images, labels), _ = inputs(MODELS[0], 30)
    gradient = PrivateGradient(
        MODELS[0].loss,
        images,
        labels,
        draws=MODELS[0].draws,
        mechanism=Mechanism(**mechanism),
        batch=10,
        rng=generator(0),
        noise=NoiseStream(b"secret", ("digest",)),
        by_layers=by_layers,
    )
    return params, gradient


@pytest.mark.parametrize("sigma", [0.0, 0.7])
@pytest.mark.parametrize("pieces", [256, 3])
def test_a_private_step_is_the_same_either_way(sigma: float, pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sample, draws and noise are bit for bit: only the sum is another one's rounding."""
    (params, built), (_, ghost) = small(False, noise_multiplier=sigma), small(True, noise_multiplier=sigma)
    monkeypatch.setattr(private_gradient, "EXAMPLES", pieces)
    for _ in range(2):
        torch.testing.assert_close(ghost(params), built(params), rtol=1e-4, atol=1e-7)
    assert built.event == ghost.event


@pytest.mark.parametrize(
    ("network", "says"),
    [
        (lambda x, w: F.conv1d(x[:, None], w[:, None]).flatten(1), "no linear layer, .* takes w"),
        (lambda x, w: F.linear(F.linear(x, w), w), "w is not taken once"),
        (lambda x, w: F.linear(x, 2 * w), "weights that are no parameters as they are"),
    ],
)
def test_other_uses_of_a_parameter_are_refused(network: Any, says: str) -> None:
    def loss(theta: Params, batch: Any, draws: Params, extras: Params) -> Tensor:
        out: Tensor = network(batch[0], theta["w"])
        return out.mean()

    with pytest.raises(TypeError, match=says):
        layers.gradient_factors(loss, {"w": torch.eye(4).requires_grad_()}, (torch.ones(2, 4), torch.ones(2, 0)), {})


def test_a_norm_without_parameters_is_no_layer() -> None:
    def loss(theta: Params, batch: Any, draws: Params, extras: Params) -> Tensor:
        return F.linear(F.layer_norm(batch[0], (3,)), theta["w"]).square().mean()

    theta, batch = {"w": torch.ones(2, 3, requires_grad=True)}, (torch.arange(6.0).view(2, 3), torch.zeros(2, 0))
    assert layers.gradient_factors(loss, theta, batch, {})[0]["w"].norms().shape == (2,)  # type: ignore[union-attr]


@pytest.mark.parametrize(("network", "by_layers"), [(NETWORK, True), (UNet(widths=(8, 8)), False)])
def test_dpsgd_names_the_networks_that_mix_no_records(
    network: Any, by_layers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spy(*args: Any, **options: Any) -> None:
        raise InterruptedError(options["by_layers"])

    monkeypatch.setattr(dpsgd, "PrivateGradient", spy)
    method = DPSGD(model=DDPM(network=network, shape=(1, 8, 8), labels=(3,)), local=Training(steps=4, batch=2))
    data = Records(torch.zeros(5, 1, 8, 8), torch.zeros(5, 1, dtype=torch.long), torch.arange(5))
    rnd: Any = SimpleNamespace(number=0, noise=NoiseStream(b"secret", ("digest",)), rng=generator(0))
    with pytest.raises(InterruptedError, match=str(by_layers)):
        replace(method, rounds=1).local_update({}, {}, data, rnd)
