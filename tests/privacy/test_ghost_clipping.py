"""Gradients that are never built are those that are, by torch.func record by record; and the same clip bounds them."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from raydiff.data.records import Records
from raydiff.methods import dpsgd
from raydiff.methods.dpsgd import DPSGD
from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP, UNet
from raydiff.models.training import Training
from raydiff.privacy import ghost_clipping as layers
from raydiff.privacy import private_gradient
from raydiff.privacy.ghost_clipping import Outer
from raydiff.privacy.private_gradient import Mechanism, PrivateGradient, clipped_sum
from raydiff.seeding import NoiseStream, generator
from raydiff.tree import Params

NETWORK = MLP(width=12, depth=2, skip=True)
MODELS = [
    DDPM(network=NETWORK, timesteps=20, shape=(1, 4, 4), labels=(3, 2)),
    DDPM(network=NETWORK, timesteps=20, shape=(1, 4, 4), labels=(3, 2), prediction="v"),
    DDPM(network=MLP(width=12, depth=1), timesteps=20, shape=(2, 4, 4), labels=(), conditional=False, prediction="edm"),
]
COUNT = 7


def given(model: DDPM, count: int = COUNT) -> tuple[Params, tuple[Tensor, Tensor], Params]:
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
    params, batch, draws = given(model)
    built, losses = private_gradient.per_record(model.loss, params, batch, draws)
    found, loss = layers.per_record(model.loss, params, batch, draws)
    assert found.keys() == built.keys() and any(isinstance(v, Outer) for v in found.values())
    torch.testing.assert_close(loss, losses.sum(), rtol=1e-5, atol=0)
    torch.testing.assert_close(norms(found), norms(built), rtol=1e-5, atol=0)
    lengths = norms(built)
    for clip in (float(lengths.min()) / 2, float(lengths.median()), 2 * float(lengths.max())):
        expected, own = clipped_sum(built, clip), clipped_sum(found, clip)
        for name, v in expected.items():
            torch.testing.assert_close(own[name], v, rtol=1e-4, atol=1e-6 * clip, msg=name)


@pytest.mark.parametrize("model", MODELS, ids=["epsilon", "v", "unconditional"])
def test_no_record_changes_another_s_gradient(model: DDPM) -> None:
    """The sum over all is that of each alone, though one of them is a hundred times as large."""
    params, (images, labels), draws = given(model)
    images = torch.cat([100 * images[:1], images[1:]])
    whole = clipped_sum(layers.per_record(model.loss, params, (images, labels), draws)[0], 0.1)
    alone = [
        clipped_sum(
            layers.per_record(
                model.loss, params, (images[i : i + 1], labels[i : i + 1]), {k: v[i : i + 1] for k, v in draws.items()}
            )[0],
            0.1,
        )
        for i in range(COUNT)
    ]
    for name, v in whole.items():
        torch.testing.assert_close(v, torch.stack([one[name] for one in alone]).sum(0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e6, 1e15])
def test_no_record_adds_more_than_the_clip_norm(size: float) -> None:
    model = MODELS[0]
    params, (images, labels), draws = given(model, 40)
    for i in range(40):
        one = (size * images[i : i + 1], labels[i : i + 1]), {k: v[i : i + 1] for k, v in draws.items()}
        sent = clipped_sum(layers.per_record(model.loss, params, *one)[0], 0.05)
        length = math.sqrt(sum(float(v.double().square().sum()) for v in sent.values()))
        assert 0 < length <= 0.05


def test_a_factor_that_is_not_finite_counts_as_none() -> None:
    left, right = torch.tensor([[1.0, 0.0], [math.inf, 1.0], [0.0, 1.0]]), torch.tensor([[2.0], [0.0], [math.nan]])
    sent = clipped_sum({"w": Outer(left, right), "b": torch.ones(3, 1)}, 100.0)
    torch.testing.assert_close(sent, {"w": torch.tensor([[2.0], [0.0]]), "b": torch.tensor([1.0])})


def small(by_layers: bool, **mechanism: Any) -> tuple[Params, PrivateGradient]:
    params, (images, labels), _ = given(MODELS[0], 30)
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
    (params, built), (_, own) = small(False, noise_multiplier=sigma), small(True, noise_multiplier=sigma)
    monkeypatch.setattr(private_gradient, "EXAMPLES", pieces)
    for _ in range(3):
        (expected, loss), (found, its) = built(params), own(params)
        torch.testing.assert_close(its, loss, rtol=1e-5, atol=0)
        for name, v in expected.items():
            torch.testing.assert_close(found[name], v, rtol=1e-4, atol=1e-7, msg=name)
    assert built.event == own.event


def test_what_is_no_such_layer_is_refused_by_name() -> None:
    model = DDPM(network=UNet(widths=(8, 8), attention=False), timesteps=20, shape=(1, 8, 8), labels=(3,))
    params, batch, draws = given(model, 3)
    with pytest.raises(TypeError, match="unet"):
        layers.per_record(model.loss, params, batch, draws)


def test_a_layer_that_is_used_twice_is_refused() -> None:
    def twice(theta: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        once = torch.nn.functional.linear(batch[0].flatten(1), theta["w"])
        return torch.nn.functional.linear(once, theta["w"]).mean()

    with pytest.raises(TypeError, match="w is not taken once"):
        layers.per_record(twice, {"w": torch.eye(4)}, (torch.ones(2, 4), torch.ones(2, 0)), {"t": torch.ones(2, 1)})


def test_weights_that_are_made_of_parameters_are_refused_and_a_norm_without_any_is_none_of_them() -> None:
    theta = {"w": torch.ones(2, 3, requires_grad=True)}
    batch = (torch.arange(6.0).view(2, 3), torch.zeros(2, 0))

    def loss(scale: float) -> Any:
        def of(theta: Params, batch: Any, draws: Params, extras: Params) -> Tensor:
            x = torch.nn.functional.layer_norm(batch[0], (3,))
            return torch.nn.functional.linear(x, theta["w"] if scale == 1 else scale * theta["w"]).square().mean()

        return of

    found, _ = layers.per_record(loss(1), theta, batch, {})
    assert found["w"].norms().shape == (2,)
    with pytest.raises(TypeError, match="weights that are no parameters as they are"):
        layers.per_record(loss(2), theta, batch, {})


@pytest.mark.parametrize(("network", "by_layers"), [(NETWORK, True), (UNet(widths=(8, 8)), False)])
def test_dpsgd_names_the_networks_that_mix_no_records(
    network: Any, by_layers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Told(Exception):
        pass

    def told(*args: Any, **options: Any) -> None:
        raise Told(options["by_layers"])

    monkeypatch.setattr(dpsgd, "PrivateGradient", told)
    method = DPSGD(model=DDPM(network=network, shape=(1, 8, 8), labels=(3,)), local=Training(steps=4, batch=2))
    data = Records(torch.zeros(5, 1, 8, 8), torch.zeros(5, 1, dtype=torch.long), torch.arange(5))
    rnd: Any = SimpleNamespace(number=0, noise=NoiseStream(b"secret", ("digest",)), rng=generator(0))
    with pytest.raises(Told, match=str(by_layers)):
        replace(method, rounds=1).local_update({}, {}, data, rnd)
