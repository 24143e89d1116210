"""Latents of the test split as a picture: do clusters of them match the hidden classes (FedDistr, Figure 6)?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from raydiff import seeding
from raydiff.data.datasets import Dataset
from raydiff.formats.plots import panels
from raydiff.papers.feddistr.latent.inversion import cluster
from raydiff.papers.feddistr.method import FedDistr

PANELS = 6
MARKERS = "osv^D*PX"


def draw_latents(method: FedDistr, dataset: Dataset, path: Path) -> str:
    """Draw a panel for each of the first labels, and return the agreement within each label.

    A panel has the two main directions of its latents, coloured by hidden class, marked by cluster as a client would
    make it.
    """
    from sklearn.metrics import adjusted_rand_score

    records = dataset.splits["test"]
    names = dataset.label_names[0]
    model = method.model.load()
    rng = seeding.generator(0, "preview", "clusters")
    latents = model.encode(records.images)
    labels = records.labels[:, 0]
    members = cluster(latents, labels, count=method.clusters, least=0, rng=rng).members
    present = labels.unique().tolist()
    columns = min(3, len(present))
    rows = -(-min(PANELS, len(present)) // columns)
    figure, grid = panels(rows, columns, size=(4 * columns, 3.6 * rows))
    agreements = []
    for place, label in enumerate(present):
        chosen = labels == label
        base = records.bases[chosen]
        groups = members[chosen]
        agreements.append(float(adjusted_rand_score(base.numpy(), groups.numpy())))
        if place < PANELS:
            axes = grid.ravel()[place]
            _scatter(axes, latents[chosen], base, groups, dataset.base_names)
            axes.set(title=f"{names[label]}: adjusted Rand index {agreements[-1]:.2f}", xticks=[], yticks=[])
    for axes in grid.ravel()[len(present) :]:
        axes.set_axis_off()
    figure.suptitle("latents of held-out records: colour is the hidden class, the mark the cluster")
    figure.savefig(path, dpi=110)
    each = ", ".join(f"{names[label]} {value:.2f}" for label, value in zip(present, agreements, strict=True))
    return f"clusters of latents against hidden classes, adjusted Rand index (1: the same, 0: chance): {each}"


def _scatter(axes: Any, latents: Tensor, base: Tensor, groups: Tensor, names: tuple[str, ...]) -> None:
    """Projections on the first two principal components."""
    x = latents.flatten(1)
    centred = (x - x.mean(0)).double()
    _, _, v = torch.linalg.svd(centred, full_matrices=False)
    first, second = torch.mm(centred, v[:2].T).T
    for k, b in enumerate(base.unique().tolist()):
        for g, group in enumerate(groups.unique().tolist()):
            here = (base == b) & (groups == group)
            marker = MARKERS[g % len(MARKERS)]
            colour = f"C{k % 10}"
            axes.scatter(first[here], second[here], marker=marker, c=colour, s=18, alpha=0.7)
        axes.scatter([], [], c=f"C{k % 10}", label=names[b])
    axes.legend(fontsize=8)
