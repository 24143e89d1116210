"""Both networks: shapes, conditions, and what they refuse."""

from dataclasses import replace

import pytest
import torch

from raydiff.models.ddpm import DDPM
from raydiff.models.networks import MLP, UNet
from raydiff.models.training import Training, fit
from raydiff.seeding import generator

AS_IT_IS = DDPM(prediction="epsilon", levels="uniform", timesteps=20, shape=(1, 8, 8))  # the network's own output
MODELS = {
    "mlp": replace(AS_IT_IS, network=MLP(width=16, depth=2), labels=(3, 2, 4)),
    "unet grey": replace(AS_IT_IS, network=UNet(widths=(8, 16)), labels=(3, 2, 4)),
    "unet colour": replace(AS_IT_IS, network=UNet(widths=(8, 8, 8)), shape=(3, 32, 32), labels=(10,)),
    "unet plain": replace(AS_IT_IS, network=UNet(widths=(4, 4), attention=(), layers=2), labels=()),
}


def arguments(model: DDPM, n: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = generator(0)
    x = torch.randn(n, *model.shape, generator=rng)
    return x, torch.randint(1, 21, (n,), generator=rng), torch.zeros(n, len(model.labels), dtype=torch.long)


@pytest.mark.parametrize("name", MODELS)
def test_noise_out_has_the_shape_of_the_image_in(name: str) -> None:
    model = MODELS[name]
    params = model.init(generator(0))
    out = model.predict(params, *arguments(model))
    assert out.shape == (4, *model.shape) and out.isfinite().all()


@pytest.mark.parametrize("name", MODELS)
def test_training_moves_every_parameter(name: str) -> None:
    model = MODELS[name]
    params, (x, _, labels) = model.init(generator(0)), arguments(model, 6)
    labels = torch.stack([torch.arange(6) % count for count in model.labels], dim=1) if model.labels else labels
    after, _, loss = fit(model, params, x, labels, training=Training(steps=2, batch=16), rng=generator(1))
    assert 0 < loss < 10
    assert [k for k in params if torch.equal(after[k], params[k])] == []


@pytest.mark.parametrize("model", [model for model in MODELS.values() if model.labels])
def test_time_and_every_label_column_matter(model: DDPM) -> None:
    params, (x, t, labels) = model.init(generator(0)), arguments(model)
    plain = model.predict(params, x, t, labels)
    changed = {"time": model.predict(params, x, t % 20 + 1, labels)}
    for column in range(len(model.labels)):
        other = labels.clone()
        other[:, column] = 1
        changed[f"column {column}"] = model.predict(params, x, t, other)
    for name, out in changed.items():  # rounding alone is about 1e-6
        assert float(((out - plain).flatten(1).norm(dim=1) / plain.flatten(1).norm(dim=1)).min()) > 1e-3, name


def test_attention_is_at_the_scales_that_are_named() -> None:
    """SPIRE's UNet for MNIST: the second and third of three scales."""
    network = DDPM(network=UNet(widths=(8, 16, 16), attention=(1, -1)), labels=()).build().unet
    assert [hasattr(block, "attentions") for block in network.down_blocks] == [False, True, True]
    assert [hasattr(block, "attentions") for block in network.up_blocks] == [True, True, False]
    for scales in ((2,), (0,)):
        with pytest.raises(ValueError, match=r"^attention must name scales of widths with 8 channels or more, got "):
            UNet(widths=(4, 8), attention=scales)


@pytest.mark.parametrize("name", ["mlp", "unet grey"])
def test_a_missing_label_column_is_refused(name: str) -> None:
    model = MODELS[name]
    x, t, labels = arguments(model)
    with pytest.raises(ValueError, match="the model has 3 conditions, the labels have 2 columns"):
        model.predict(model.init(generator(0)), x, t, labels[:, :2])


def test_with_a_skip_more_pixels_than_hidden_units_are_predicted() -> None:
    """Pure noise is its own prediction at T: a narrow network needs the skip for it."""
    losses = []
    for skip in (False, True):
        model = replace(AS_IT_IS, network=MLP(width=16, depth=1, skip=skip), labels=(1,))
        blank, labels = torch.zeros(64, 1, 8, 8), torch.zeros(64, 1, dtype=torch.int64)
        training = Training(steps=200, batch=64, learning_rate=1e-2)
        params, _, _ = fit(model, model.init(generator(0)), blank, labels, training=training, rng=generator(1))
        losses.append(float(model.loss(params, (blank, labels), model.draws(64, generator(2)), {})))
    assert losses[0] > 1 - 16 / 64 - 0.1 and losses[1] < 0.35


def test_a_picture_that_cannot_be_halved_often_enough_is_refused() -> None:
    with pytest.raises(ValueError, match=r"network.widths has 3 scales, so images must be divisible by 4, got 14x14"):
        DDPM(network=UNet(widths=(8, 8, 8))).for_data((1, 14, 14), (10,))
