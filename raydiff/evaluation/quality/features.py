"""A small feature network, for images unlike Inception's and for runs without its weights.

Distances in its features (`fd_cnn`, `kd_cnn`) compare only under the same parameters. Train it on records that no
client holds, or the distances favour members.

Shapes: N images, C channels (1 or 3), H x W pixels (8 to 64 a side), K label columns.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from raydiff.data.datasets import Records
from raydiff.lookup import Door, takes
from raydiff.models.compute import with_progress
from raydiff.models.optimizers import ADAM
from raydiff.seeding import generator
from raydiff.tree import Params

BATCH = 64
LEARNING_RATE = 3e-3
NOISE_STD = 0.1
WIDTHS = (16, 16, 16, 32, 64)
"""Channels at 64, 32, 16, 8 and 4 pixels a side; smaller images enter later, all end at about 4."""
ROWS_PER_FEATURE = 5  # records per feature for a usable covariance


def train_cnn(records: Records, *, classes: int, dim: int, seed: int = 0, steps: int = 400) -> Params:
    """Train the classifier whose penultimate layer gives the features; equal arguments give equal parameters.

    The `dim` features are standardised on `records`. Raises ValueError for fewer than 2 records, and for images that
    are not 8 to 64 pixels a side with 1 or 3 channels.
    """
    images = records.images
    labels = records.labels[:, 0]
    n, channels, height, width = images.shape
    if n < 2 or channels not in (1, 3) or min(height, width) < 8 or max(height, width) > 64:
        raise ValueError(
            "records must be at least 2 images with 1 or 3 channels and 8 to 64 pixels a side, got (N, C, H, W) = "
            f"{tuple(images.shape)}"
        )
    rng = generator(seed, "evaluation", "cnn")
    params = _init(images.shape, classes, dim, rng)
    leaves = [p.requires_grad_() for p in params.values()]
    means, squares = ([torch.zeros_like(p) for p in leaves] for _ in range(2))
    taken = [torch.zeros(()) for _ in leaves]
    for step in with_progress(range(steps)):
        index = torch.randint(n, (BATCH,), generator=rng)
        loss = F.cross_entropy(_head(params, _trunk(params, _augment(images[index], rng))), labels[index])
        gradients = list(torch.autograd.grad(loss, leaves))
        with torch.no_grad():
            ADAM(leaves, gradients, means, squares, [], taken, lr=LEARNING_RATE * (1 - step / steps))
    return _standardise({k: p.detach() for k, p in params.items()}, images)


def cnn(images: Tensor, weights: Params) -> Tensor:
    """Return penultimate features of images (N, C, H, W): (N, dim) float32 on the parameters' device."""
    return _run_in_batches(lambda x: _trunk(weights, x), weights, images)


FEATURES: Door[Callable[[Tensor, Any], Tensor]] = Door(
    "feature network",
    {"cnn": cnn, "inception": "raydiff.evaluation.quality.inception:inception"},
    check=takes("images", "weights"),
)
"""Name -> function of images (N, C, H, W) on [-1, 1] and `evaluation.weights` that gives features (N, dim) float32. Of
cnn the weights are the trained network's parameters."""


def cnn_logits(params: Params, images: Tensor) -> Tensor:
    """Return class scores of images (N, C, H, W): (N, classes) float32 on the parameters' device."""
    return _run_in_batches(lambda x: _head(params, _trunk(params, x)), params, images)


def _trunk(params: Params, x: Tensor) -> Tensor:
    for i in range(sum(k.startswith("conv") for k in params) // 2):
        x = F.relu(
            F.conv2d(x, params[f"conv{i}.weight"], params[f"conv{i}.bias"], stride=1 if i == 0 else 2, padding=1)
        )
    # no activation: features cannot die, and are closer to the Frechet distance's Gaussian
    return F.linear(x.flatten(1), params["features.weight"], params["features.bias"])


def _head(params: Params, features: Tensor) -> Tensor:
    return F.linear(features, params["head.weight"], params["head.bias"])


def _init(shape: torch.Size, classes: int, dim: int, rng: torch.Generator) -> Params:
    _, channels, height, width = shape
    params: Params = {}

    def layer(name: str, *weight: int) -> None:
        # He et al. 2015
        params[f"{name}.weight"] = torch.randn(*weight, generator=rng) * math.sqrt(2 / math.prod(weight[1:]))
        params[f"{name}.bias"] = torch.zeros(weight[0])

    halvings = math.ceil(math.log2(max(height, width) / 4))
    widths = WIDTHS[-halvings - 1 :]
    layer("conv0", widths[0], channels, 3, 3)
    for i in range(1, halvings + 1):
        layer(f"conv{i}", widths[i], widths[i - 1], 3, 3)
        height = (height + 1) // 2
        width = (width + 1) // 2
    layer("features", dim, widths[-1] * height * width)
    layer("head", classes, dim)
    return params


def _augment(x: Tensor, rng: torch.Generator) -> Tensor:
    """Shift the batch by up to an eighth of its side, repeating borders, and add pixel noise."""
    height, width = x.shape[2:]
    reach = max(1, min(height, width) // 8)
    top, left = torch.randint(2 * reach + 1, (2,), generator=rng).tolist()
    shifted = F.pad(x, (reach, reach, reach, reach), mode="replicate")[:, :, top : top + height, left : left + width]
    return shifted + NOISE_STD * torch.randn(x.shape, generator=rng)


def _standardise(params: Params, images: Tensor) -> Params:
    """The same classifier, with the features' mean and scale on `images` moved into the head."""
    features = cnn(images, params)
    mean = features.mean(0)
    std = features.std(0).clamp_min(1e-6)
    return {
        **params,
        "features.weight": params["features.weight"] / std[:, None],
        "features.bias": (params["features.bias"] - mean) / std,
        "head.weight": params["head.weight"] * std,
        "head.bias": params["head.bias"] + params["head.weight"] @ mean,
    }


@torch.no_grad()
def _run_in_batches(function: Callable[[Tensor], Tensor], params: Params, images: Tensor) -> Tensor:
    device = params["head.weight"].device
    return torch.cat([function(x.to(device)) for x in with_progress(torch.split(images, 256))])
