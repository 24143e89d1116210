"""Describe pictures by words of a frozen latent diffusion model: clusters of latents, one word for each.

Shapes: N latents (N, c, h, w), labels (N,); cluster numbers (N,) in 0 .. V - 1; words (V, width).

References: FedDistr (arXiv 2410.12530), Eqs. 11 and 12; textual inversion (Gal et al. 2022, arXiv 2208.01618).
"""

from dataclasses import dataclass

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
    latents: Tensor, labels: Tensor, *, count: int, least: int, fewer: bool = False, rng: torch.Generator
) -> Clusters:
    """K-means within each label that has at least `least` latents (Eq. 11), `count` groups in each.

    Raises ValueError where a label has fewer latents than groups, unless it may have `fewer` groups then.
    """
    x = latents.flatten(1).double().numpy()
    members = torch.full((len(labels),), -1)
    groups_of: list[tuple[int, int]] = []
    for label in labels.unique().tolist():
        rows = torch.nonzero(labels == label)[:, 0]
        if len(rows) < least:
            continue
        if len(rows) < count and not fewer:
            raise ValueError(too_few(len(rows), count))
        seed = int(torch.randint(2**31, (1,), generator=rng))
        groups = k_means(x[rows.numpy()], min(count, len(rows)), seed)
        members[rows] = groups + len(groups_of)
        groups_of += [(label, size) for size in groups.bincount().tolist()]
    if not groups_of:
        raise ValueError(f"no label has {least} records (method.least): there is nothing to send")
    table = torch.tensor(groups_of)
    return Clusters(members, table[:, 0], table[:, 1])


def too_few(records: int, clusters: int) -> str:
    """Message for a client's label with fewer records than clusters."""
    return (
        f"a client has {records} records of a label, fewer than method.clusters = {clusters}: lower method.clusters, "
        f"or set method.least above {records}, so that such labels are left out"
    )


def invert(
    model: LatentDiffusion, latents: Tensor, clusters: Clusters, *, training: Training, rng: torch.Generator
) -> tuple[Tensor, float]:
    """(one word for each group, (V, width); mean loss): Eq. 12, all from the model's public start.

    The words are fitted side by side, each on `training.batch` latents of its own group a step; their losses are
    summed, so that each has the gradient that it would have alone.
    """
    words = len(clusters.counts)
    batch = training.batch
    if training.steps == 0:
        return model.start.expand(words, -1).clone(), 0.0
    rows = [torch.nonzero(clusters.members == g)[:, 0] for g in range(words)]
    which = torch.arange(words).repeat_interleave(batch)

    def gradient(theta: Params) -> tuple[Params, Tensor]:
        picked = torch.cat([group[torch.randint(len(group), (batch,), generator=rng)] for group in rows])
        z = latents[picked]
        draws = model.draws(len(z), (z.shape[1], z.shape[2], z.shape[3]), rng)
        losses = model.loss(theta["v"][which.to(theta["v"].device)], z, draws)
        (losses.sum() / batch).backward()
        assert theta["v"].grad is not None
        return {"v": theta["v"].grad}, losses.detach().mean()

    start = {"v": model.start.expand(words, -1)}
    fitted, _, loss = optimize(start, gradient, training=training)
    return fitted["v"], loss
