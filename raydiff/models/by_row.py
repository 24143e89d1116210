"""Models that sample pictures for a row of labels in one step.

Attacks query a denoiser, which they lack: over a finite set of pictures it has a closed form, `posterior`.

Shapes: R (`rows`) rows of labels; P pictures for each; d = C H W (`pixels`).
"""

import math
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from raydiff.data.records import label_rows
from raydiff.models.ddpm import Denoiser
from raydiff.models.schedules import LinearBetas, alphas_bar
from raydiff.settings import settings
from raydiff.tree import Params


@settings(frozen=True, kw_only=True)
class ByRow:
    """Base class: the shape of the pictures, and the rows of labels."""

    shape: tuple[int, int, int] = (1, 8, 8)
    """(channels, height, width) of a picture; filled in from the data when an experiment is built."""
    labels: tuple[int, ...] = (10,)
    """Number of values of each label column; filled in from the data."""

    def for_data(self, shape: tuple[int, int, int], labels: tuple[int, ...]) -> Self:
        """The same for pictures of this shape, with this many values in each label column."""
        return replace(self, shape=shape, labels=labels)

    def init(self, rng: torch.Generator) -> Params:
        """No parameters, unless a subclass is trained: they are estimated."""
        return {}

    @property
    def pixels(self) -> int:
        return math.prod(self.shape)

    @property
    def rows(self) -> int:
        return math.prod(self.labels)

    @property
    def abar(self) -> Tensor:
        """abar_0 .. abar_T of the linear schedule, (T + 1,) float64: the steps of `posterior`."""
        return alphas_bar(LinearBetas(), 1000)

    def posterior(self, points: Tensor) -> Denoiser:
        """(x_t, t, labels) -> E[z | x_t], with x uniform on the points (R, P, d) of the labels' row."""
        abar = self.abar

        def call(x_t: Tensor, t: Tensor, labels: Tensor) -> Tensor:
            x = x_t.flatten(1)
            row = label_rows(labels, self.labels)
            out = torch.empty(len(x_t), self.pixels)
            for k in row.unique():
                mine = row == k
                a = abar[t[mine]].float()[:, None]
                distances = torch.cdist(x[mine] / a.sqrt(), points[k]).square() * a
                weights = (-distances / (2 * (1 - a))).softmax(1)
                out[mine] = (x[mine] - a.sqrt() * (weights @ points[k])) / (1 - a).sqrt()
            return out.view_as(x_t)

        return call


@settings(frozen=True, kw_only=True)
class Population(ByRow):
    """N equally likely pictures for each row of labels. Its parameters are pictures (R, N, C, H, W)."""

    def draw(self, params: Params, labels: Tensor, rng: torch.Generator) -> Tensor:
        """Pictures for labels (N, K), (N, C, H, W)."""
        pictures = params["pictures"]
        which = torch.randint(pictures.shape[1], (len(labels),), generator=rng)
        return pictures[label_rows(labels, self.labels), which]

    def denoiser(self, params: Params) -> Denoiser:
        return self.posterior(params["pictures"].flatten(2))
