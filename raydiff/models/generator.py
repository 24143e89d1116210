"""A generator: noise z (B, code) and a label to a picture (B, C, H, W) in (-1, 1), in one step. DP-MERF trains it."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raydiff import seeding
from raydiff.data.records import label_rows
from raydiff.models.by_row import ByRow
from raydiff.models.compute import frozen
from raydiff.models.ddpm import Denoiser
from raydiff.models.functional import call, fresh
from raydiff.settings import Count, settings
from raydiff.tree import Params

POINTS = 500  # pictures of each row of labels over which `denoiser` is computed


@settings(frozen=True, kw_only=True)
class Generator(ByRow):
    """Two hidden layers, then two convolutions of 5x5, each after doubling the resolution.

    DP-MERF's for MNIST, with layer normalisation, also between the convolutions, in place of batch normalisation.
    """

    code: Count = 5
    """Entries of the noise."""
    hidden: Count = 200
    """Units of the first hidden layer."""
    channels: tuple[Count, Count] = (16, 8)
    """Of the second hidden layer, at a quarter of the resolution, and between the convolutions."""

    def build(self) -> nn.Module:
        return _Network(self)

    def init(self, rng: torch.Generator) -> Params:
        return fresh(self, rng)

    def pictures(self, params: Params, z: Tensor, rows: Tensor) -> Tensor:
        """Pictures (B, C, H, W) of noise z (B, code) and rows of labels (B,); differentiable in params."""
        return call(self, params, z, rows)

    def draw(self, params: Params, labels: Tensor, rng: torch.Generator) -> Tensor:
        return self._draw(params, label_rows(labels, self.labels), rng)

    def denoiser(self, params: Params) -> Denoiser:
        """The `posterior` of `POINTS` generated pictures for each row of labels, for attacks on denoisers."""
        rows = torch.arange(self.rows).repeat_interleave(POINTS)
        return self.posterior(self._draw(params, rows, seeding.generator(0, "points")).view(self.rows, POINTS, -1))

    def _draw(self, params: Params, rows: Tensor, rng: torch.Generator) -> Tensor:
        z = torch.randn(len(rows), self.code, generator=rng)
        return frozen(self.pictures, params)(z, rows)


class _Network(nn.Module):
    def __init__(self, config: Generator) -> None:
        super().__init__()
        channels, height, width = config.shape
        first, second = config.channels
        self.rows = config.rows
        self.full = (height, width)
        self.small = (first, math.ceil(height / 4), math.ceil(width / 4))
        self.halved = (math.ceil(height / 2), math.ceil(width / 2))
        self.dense = nn.Sequential(
            nn.Linear(config.code + config.rows, config.hidden),
            nn.LayerNorm(config.hidden),
            nn.ReLU(),
            nn.Linear(config.hidden, math.prod(self.small)),
            nn.LayerNorm(math.prod(self.small)),
            nn.ReLU(),
        )
        # Without a norm the output may grow until every pixel is black, where tanh has no gradient.
        self.middle = nn.Sequential(nn.Conv2d(first, second, 5, padding=2), nn.GroupNorm(1, second, affine=False))
        self.leave = nn.Conv2d(second, channels, 5, padding=2)

    def forward(self, z: Tensor, rows: Tensor) -> Tensor:
        h: Tensor = self.dense(torch.cat([z, F.one_hot(rows, self.rows).to(z.dtype)], dim=1))
        h = F.interpolate(h.view(len(z), *self.small), size=self.halved, mode="bilinear", align_corners=False)
        h = F.interpolate(F.relu(self.middle(h)), size=self.full, mode="bilinear", align_corners=False)
        return torch.tanh(self.leave(h))
