"""What models have in common that make pictures for a row of labels in one step, and so have no denoiser of their own.

An attack on denoisers asks them for one all the same. Of pictures that stand for what a model makes it has a closed
form, `posterior`.

Shapes: R rows of labels; P pictures that stand for each; d = C H W.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from raydiff.data.records import label_rows
from raydiff.models.ddpm import alphas_bar

TIMESTEPS = 1000


@dataclass(frozen=True, kw_only=True)
class ByRow:
    """Pictures of one shape, and something for each row of labels."""

    shape: tuple[int, int, int] = (1, 8, 8)
    """(channels, height, width) of a picture; filled in from the data when an experiment is built."""
    labels: tuple[int, ...] = (10,)
    """Number of values of each label column; filled in from the data."""

    def for_data(self, shape: tuple[int, int, int], labels: tuple[int, ...]) -> Self:
        """The same for pictures of this shape, with this many values in each label column."""
        return replace(self, shape=shape, labels=labels)

    @property
    def pixels(self) -> int:
        """d."""
        return math.prod(self.shape)

    @property
    def rows(self) -> int:
        """R."""
        return math.prod(self.labels)

    @property
    def abar(self) -> Tensor:
        """Of the steps at which a denoiser is asked: abar_0 .. abar_T of the linear schedule, (T + 1,) float64."""
        return alphas_bar("linear", TIMESTEPS)

    def posterior(self, points: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """(x_t, t, labels) -> E[z | x_t] for x_t = sqrt(abar_t) x + sqrt(1 - abar_t) z, where x is any one of the
        points (R, P, d) of these labels' row."""
        abar = self.abar

        def call(x_t: Tensor, t: Tensor, labels: Tensor) -> Tensor:
            share = abar[t].float()[:, None]
            x, row, out = x_t.flatten(1), label_rows(labels, self.labels), torch.empty(len(x_t), self.pixels)
            for k in row.unique():
                mine = row == k
                apart = torch.cdist(x[mine] / share[mine].sqrt(), points[k]).square() * share[mine]
                weights = (-apart / (2 * (1 - share[mine]))).softmax(1)
                out[mine] = (x[mine] - share[mine].sqrt() * (weights @ points[k])) / (1 - share[mine]).sqrt()
            return out.view_as(x_t)

        return call
