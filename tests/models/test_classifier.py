"""Classifiers: shapes, sizes, loss, and that they learn."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raydiff.models.classifier import CNN, Classifier, LeNet, ResNet18
from raydiff.models.training import Training, fit
from raydiff.seeding import generator

NETWORKS = {"cnn": CNN(widths=(4, 8), hidden=12), "resnet": ResNet18(width=8)}


def images(shape: tuple[int, int, int], n: int = 5) -> Tensor:
    return torch.rand(n, *shape, generator=generator(0, "images")) * 2 - 1


def test_the_parameters_of_a_resnet18_for_cifar() -> None:
    """He et al.'s for CIFAR-100 has 11,220,132 where the 1x1 shortcuts have normalisations of their own, 2 * (128 + 256
    + 512) numbers, which these have not."""
    norm = 2  # weight and bias of each channel
    stem = 3 * 64 * 9 + norm * 64
    total = stem + 2 * (2 * 64 * 64 * 9 + 2 * norm * 64)  # first stage: two blocks of two convolutions
    for before, out in ((64, 128), (128, 256), (256, 512)):
        total += before * out * 9 + out * out * 9 + before * out + 2 * norm * out  # halves the resolution; shortcut
        total += 2 * out * out * 9 + 2 * norm * out
    total += 512 * 100 + 100
    assert total == 11_220_132 - 2 * (128 + 256 + 512)
    params = ResNet18(width=64).build((3, 32, 32), 100).state_dict()
    assert sum(v.numel() for v in params.values()) == total


def test_lenet_is_niid_benchs_by_hand() -> None:
    """6 and 16 channels of 5x5, 120 and 84 units: 44,426 numbers for MNIST; pixels from 0 to 1."""
    model = Classifier(network=LeNet()).for_data((1, 28, 28), (10,))
    params, x = model.init(generator(0)), images((1, 28, 28))
    sizes = 6 * 25 + 6, 16 * 6 * 25 + 16, 120 * 16 * 4 * 4 + 120, 84 * 120 + 84, 10 * 84 + 10
    assert sum(v.numel() for v in params.values()) == sum(sizes) == 44_426
    w = list(params.values())
    h = F.max_pool2d(F.relu(F.conv2d((x + 1) / 2, w[0], w[1])), 2)
    h = F.max_pool2d(F.relu(F.conv2d(h, w[2], w[3])), 2).flatten(1)
    h = F.relu(F.linear(F.relu(F.linear(h, w[4], w[5])), w[6], w[7]))
    torch.testing.assert_close(model.classify(params)(x), F.linear(h, w[8], w[9]))
    assert model.features(params, (x, x), {}).shape == (5, 84)
    with pytest.raises(ValueError, match=r"^shape must be larger for 2 convolutions of 5x5, got \(1, 15, 28\)$"):
        Classifier(network=LeNet()).for_data((1, 15, 28), (10,)).init(generator(0))


@pytest.mark.parametrize("network", NETWORKS)
def test_the_loss_is_the_cross_entropy_of_column_0(network: str) -> None:
    model = Classifier(network=NETWORKS[network], labels=(10, 4))
    params, x = model.init(generator(1)), images((1, 8, 8))
    labels = torch.tensor([[3, 0], [9, 1], [0, 2], [3, 3], [7, 0]])
    loss = model.loss(params, (x, labels), model.draws(5, generator(0)), {})
    logits = model.classify(params)(x).double()
    by_hand = -(logits.exp() / logits.exp().sum(1, keepdim=True))[range(5), labels[:, 0]].log().mean()
    assert float(loss) == pytest.approx(float(by_hand), rel=1e-5)


@pytest.mark.parametrize("network", NETWORKS)
def test_features_are_what_the_last_layer_sees(network: str) -> None:
    model = Classifier(network=NETWORKS[network])
    params, x = model.init(generator(1)), images((1, 8, 8))
    features = model.features(params, (x, torch.zeros(5, 1).long()), {})
    assert features.shape == (5, {"cnn": 12, "resnet": 64}[network])
    logits = features @ params["head.weight"].T + params["head.bias"]
    assert torch.allclose(logits, model.classify(params)(x), rtol=1e-5, atol=1e-6)


def test_it_learns_what_can_be_told_apart() -> None:
    """Four classes: which quarter of the picture is bright."""
    labels = torch.arange(64)[:, None] % 4
    x = 0.3 * images((1, 8, 8), 64)
    for quarter in range(4):
        i, j = 4 * (quarter // 2), 4 * (quarter % 2)
        x[labels[:, 0] == quarter, :, i : i + 4, j : j + 4] += 0.7
    model = Classifier(network=NETWORKS["cnn"], labels=(4,))
    params = model.init(generator(1))
    training = Training(steps=60, batch=16, learning_rate=1e-2)
    fitted, _, loss = fit(model, params, x, labels, training=training, rng=generator(2))
    assert loss < math.log(4)
    assert torch.equal(model.classify(fitted)(x).argmax(1), labels[:, 0])
    assert not torch.equal(model.classify(params)(x).argmax(1), labels[:, 0])
