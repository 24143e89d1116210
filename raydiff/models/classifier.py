"""Classifiers of pictures, x (B, C, H, W) to logits (B, K). `build` makes a module from the global generator.

No network has batch statistics, so that its parameters can be averaged and noised like a denoiser's.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import torch
from annotated_types import Ge, MinLen, MultipleOf
from torch import Tensor, nn
from torch.nn import functional as F

from raydiff.models.compute import frozen
from raydiff.models.functional import call, fresh
from raydiff.settings import Count, settings
from raydiff.tree import Params


@settings(frozen=True, kw_only=True)
class CNN:
    """Convolutions of 3x3, each but the first at half the resolution, and a hidden layer: for 8x8 to 32x32 pictures."""

    widths: Annotated[tuple[Count, ...], MinLen(1)] = (16, 32)
    """Channels of each convolution."""
    hidden: Count = 64
    """Units of the hidden layer."""

    def build(self, shape: tuple[int, int, int], classes: int) -> nn.Module:
        layers: list[nn.Module] = []
        channels, height, width = shape
        for i, out in enumerate(self.widths):
            stride = 1 if i == 0 else 2
            layers += [nn.Conv2d(channels, out, 3, stride=stride, padding=1), nn.ReLU()]
            channels = out
            height = math.ceil(height / stride)
            width = math.ceil(width / stride)
        return _dense(layers, channels * height * width, (self.hidden,), classes)


@settings(frozen=True, kw_only=True)
class LeNet:
    """Convolutions of 5x5 without padding, each with pooling of 2x2, then hidden layers, on pixels from 0 to 1.

    For pictures of 16x16 or more. By default NIID-Bench's (arXiv 2102.02079), after LeCun et al. 1998.
    """

    widths: Annotated[tuple[Count, ...], MinLen(1)] = (6, 16)
    """Channels of each convolution."""
    hidden: Annotated[tuple[Count, ...], MinLen(1)] = (120, 84)
    """Units of each hidden layer."""

    def build(self, shape: tuple[int, int, int], classes: int) -> nn.Module:
        """Raises ValueError where a picture is too small."""
        layers: list[nn.Module] = [_FromZero()]
        channels, height, width = shape
        for out in self.widths:
            # Pooling before ReLU has the same bits and is 1.5 times faster.
            layers += [nn.Conv2d(channels, out, 5), nn.MaxPool2d(2), nn.ReLU()]
            channels = out
            height = (height - 4) // 2
            width = (width - 4) // 2
        if min(height, width) < 1:
            raise ValueError(f"shape must be larger for {len(self.widths)} convolutions of 5x5, got {shape}")
        return _dense(layers, channels * height * width, self.hidden, classes)


@settings(frozen=True, kw_only=True)
class Perceptron:
    """Fully connected layers."""

    widths: tuple[Count, ...] = (100,)
    """Units of each hidden layer; none: logistic regression."""

    def build(self, shape: tuple[int, int, int], classes: int) -> nn.Module:
        return _dense([], math.prod(shape), self.widths, classes)


@settings(frozen=True, kw_only=True)
class ResNet18:
    """ResNet-18 (He et al. 2016, arXiv 1512.03385) for CIFAR: 3x3 stem, no pooling before the blocks.

    With group normalisation: batch statistics do not average over clients of unlike classes (Hsieh et al., arXiv
    1910.00189).
    """

    width: Annotated[int, Ge(8), MultipleOf(8)] = 64
    """Channels of the first stage; each later one has twice as many."""

    def build(self, shape: tuple[int, int, int], classes: int) -> nn.Module:
        stem = nn.Conv2d(shape[0], self.width, 3, padding=1, bias=False)
        layers: list[nn.Module] = [stem, nn.GroupNorm(8, self.width), nn.ReLU()]
        channels = self.width
        for stage in range(4):
            for block in range(2):
                out = self.width * 2**stage
                layers.append(_Residual(channels, out, stride=2 if stage and not block else 1))
                channels = out
        trunk = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return _Classifier(trunk, nn.Linear(channels, classes))


@settings(frozen=True, kw_only=True)
class Classifier:
    """A classifier of label column 0, and nothing learned.

    Examples:
        >>> import torch
        >>> model = rd.Classifier(shape=(3, 16, 16), labels=(5,))
        >>> classify = model.classify(model.init(torch.Generator()))
        >>> tuple(classify(torch.zeros(2, 3, 16, 16)).shape)
        (2, 5)
    """

    network: CNN | Perceptron | ResNet18 | LeNet = CNN()
    """The network."""
    shape: tuple[Count, Count, Count] = (1, 8, 8)
    """(channels, height, width) of a picture; filled in from the data when an experiment is built."""
    labels: Annotated[tuple[Count, ...], MinLen(1)] = (10,)
    """Number of values of each label column, of which the first is predicted; filled in from the data."""

    def for_data(self, shape: tuple[int, int, int], labels: tuple[int, ...]) -> "Classifier":
        """The same for pictures of this shape, with this many values in each label column."""
        return replace(self, shape=shape, labels=labels)

    def init(self, rng: torch.Generator) -> Params:
        return fresh(self, rng)

    def build(self) -> nn.Module:
        return self.network.build(self.shape, self.labels[0])

    def draws(self, count: int, rng: torch.Generator) -> Params:
        return {}  # Nothing but the batch is random.

    def loss(self, params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        """Cross-entropy, mean over images (B, C, H, W) with labels (B, K). Needs no extras."""
        return F.cross_entropy(call(self, params, batch[0]), batch[1][:, 0])

    def features(self, params: Params, batch: tuple[Tensor, Tensor], draws: Params) -> Tensor:
        """What the last layer sees, (B, dim), for methods that compare models by it (MOON)."""
        return call(self, params, batch[0], True)

    def classify(self, params: Params) -> Callable[[Tensor], Tensor]:
        """Images (N, C, H, W) -> logits (N, classes), without gradients, on the accelerator where there is one."""
        return frozen(functools.partial(call, self), params)


def _dense(layers: list[nn.Module], units: int, hidden: tuple[int, ...], classes: int) -> nn.Module:
    """A classifier of these layers, then hidden layers on their flattened output of so many units."""
    layers.append(nn.Flatten())
    for out in hidden:
        layers += [nn.Linear(units, out), nn.ReLU()]
        units = out
    return _Classifier(nn.Sequential(*layers), nn.Linear(units, classes))


class _Classifier(nn.Module):
    def __init__(self, trunk: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = head

    def forward(self, x: Tensor, features: bool = False) -> Tensor:
        h: Tensor = self.trunk(x)
        return h if features else self.head(h)


class _FromZero(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x + 1) / 2


class _Residual(nn.Module):
    def __init__(self, channels: int, out: int, *, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride=stride, padding=1, bias=False)
        self.second = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(8, out) for _ in range(2))
        self.short = nn.Conv2d(channels, out, 1, stride=stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(h)) + self.short(x))
