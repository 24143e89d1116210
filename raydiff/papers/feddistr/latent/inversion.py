"""What a set of pictures says in the words of a frozen latent diffusion model: clusters of latents, a word for each.

Shapes: N latents (N, c, h, w), labels (N,); cluster numbers (N,) in 0 .. V - 1; words (V, width).

References: FedDistr (arXiv 2410.12530), Eqs. 11 and 12; textual inversion (Gal et al. 2022, arXiv 2208.01618).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raydiff.models.training import Training, optimize
from raydiff.papers.feddistr.latent.model import LatentDiffusion
from raydiff.papers.k_means import k_means
from raydiff.tree import Params


@dataclass(frozen=True, eq=False)
class Clusters:
    """Latents in groups, each of one label."""

    members: Tensor
    """(N,) int64: each latent's group, -1 where its label was left out."""
    labels: Tensor
    """(V,) int64: each group's label, ascending."""
    counts: Tensor
    """(V,) int64: each group's size."""


def cluster(
    latents: Tensor,
    labels: Tensor,
    *,
    count: int,
    least: int,
    silhouette: bool = False,
    fewer: bool = False,
    rng: torch.Generator,
) -> Clusters:
    """K-means within each label that has at least `least` latents (Eq. 11), `count` groups in each.

    With `silhouette` the number is, for each label, that of 2 .. count with the best mean silhouette. Raises ValueError
    where a label has fewer latents than groups, unless it may have `fewer` groups then.
    """
    x, members = latents.flatten(1).double().numpy(), torch.full((len(labels),), -1)
    found: list[tuple[int, int]] = []
    for label in labels.unique().tolist():
        rows = torch.nonzero(labels == label)[:, 0]
        if len(rows) < least:
            continue
        if len(rows) < count and not fewer:
            raise ValueError(
                f"there are {len(rows)} records of label {label} for {count} clusters: lower method.clusters, or set "
                f"method.least above {len(rows)}, so that such labels are left out"
            )
        seed = int(torch.randint(2**31, (1,), generator=rng))
        own = x[rows.numpy()]
        groups = _silhouette(own, count, seed) if silhouette else k_means(own, min(count, len(rows)), seed)
        members[rows] = groups + len(found)
        found += [(label, int((groups == g).sum())) for g in range(int(groups.max()) + 1)]
    if not found:
        raise ValueError(f"no label has {least} records (method.least): there is nothing to send")
    table = torch.tensor(found)
    return Clusters(members, table[:, 0], table[:, 1])


def invert(
    model: LatentDiffusion, latents: Tensor, clusters: Clusters, *, training: Training, rng: torch.Generator
) -> tuple[Tensor, float]:
    """(one word for each group, (V, width); mean loss): Eq. 12, all from the model's public start.

    The words are fitted side by side, each on `training.batch` latents of its own group a step; their losses are
    summed, so that each has the gradient that it would have alone.
    """
    words, batch = len(clusters.counts), training.batch
    if training.steps == 0:
        return model.start.expand(words, -1).clone(), 0.0
    rows = [torch.nonzero(clusters.members == g)[:, 0] for g in range(words)]
    which = torch.arange(words).repeat_interleave(batch)

    def gradient(theta: Params) -> tuple[Params, Tensor]:
        picked = torch.cat([own[torch.randint(len(own), (batch,), generator=rng)] for own in rows])
        z = latents[picked]
        draws = model.draws(len(z), (z.shape[1], z.shape[2], z.shape[3]), rng)
        losses = model.loss(theta["v"][which.to(theta["v"].device)], z, draws)
        (losses.sum() / batch).backward()
        assert theta["v"].grad is not None
        return {"v": theta["v"].grad}, losses.detach().mean()

    start = {"v": model.start.expand(words, -1)}
    fitted, _, loss = optimize(start, gradient, training=training)
    return fitted["v"], loss


def _silhouette(x: np.ndarray[Any, Any], most: int, seed: int) -> Tensor:
    return max((k_means(x, count, seed) for count in range(2, most + 1)), key=lambda groups: _score(x, groups))


def _score(x: np.ndarray[Any, Any], groups: Tensor) -> float:
    """The mean silhouette; 0, as of a latent alone in its group, where all are alone or none is apart from others."""
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(x, groups.numpy())) if 1 < len(groups.unique()) < len(groups) else 0.0
