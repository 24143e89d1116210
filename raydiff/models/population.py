"""A population: some pictures for each row of labels, of which one is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from raydiff.data.records import label_rows
from raydiff.models.by_row import ByRow
from raydiff.tree import Params


@dataclass(frozen=True, kw_only=True)
class Population(ByRow):
    """N pictures for each row of labels, all as likely as each other. Its parameters are pictures (R, N, C, H, W)."""

    def draw(self, params: Params, labels: Tensor, rng: torch.Generator) -> Tensor:
        """Pictures for labels (N, K), (N, C, H, W)."""
        pictures = params["pictures"]
        which = torch.randint(pictures.shape[1], (len(labels),), generator=rng)
        return pictures[label_rows(labels, self.labels), which]

    def denoiser(self, params: Params) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """(x_t, t, labels) -> E[z | x_t] for x_t = sqrt(abar_t) x + sqrt(1 - abar_t) z, where x is one of these labels'
        pictures: what an attack on denoisers can ask of it."""
        return self.posterior(params["pictures"].flatten(2))
