"""Latents of the test split as a picture: do clusters of them find the hidden classes?"""

from __future__ import annotations

from pathlib import Path

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
    """Clusters as a client would make them, beside the hidden classes."""
    records, names = dataset.splits["test"], dataset.label_names[0]
    model, rng = method.model.load(), seeding.generator(0, "preview", "clusters")
    latents, labels = model.encode(records.images), records.labels[:, 0]
    own = cluster(latents, labels, count=method.clusters, least=0, silhouette=method.silhouette, rng=rng)
    known = {"label_names": names, "base_names": dataset.base_names}
    found = draw_clusters(latents, labels, records.bases, own.members, path=path, **known)
    each = ", ".join(f"{names[c]} {r:.2f}" for c, r in zip(labels.unique().tolist(), found, strict=True))
    return f"clusters of latents against hidden classes, adjusted Rand index (1: the same, 0: chance): {each}"


def draw_clusters(
    latents: Tensor,
    labels: Tensor,
    base: Tensor,
    members: Tensor,
    *,
    label_names: tuple[str, ...],
    base_names: tuple[str, ...],
    path: Path,
) -> list[float]:
    """Write a panel for each of the first labels (FedDistr, Figure 6): the two main directions of its latents (N, c, h,
    w), coloured by base distribution (N,), marked by cluster (N,). Gives the agreement within each label, in order."""
    present = labels.unique().tolist()
    shown = present[:PANELS]
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    figure, grid = panels(rows, columns, size=(4 * columns, 3.6 * rows))
    places = grid.ravel()
    found = []
    for label in present:
        own = torch.nonzero(labels == label)[:, 0]
        found.append(agreement(base[own], members[own]))
        if label not in shown:
            continue
        axes, (x, y) = places[shown.index(label)], _main_directions(latents[own].flatten(1)).T
        groups = members[own].unique().tolist()
        for k, b in enumerate(base[own].unique().tolist()):
            for g, group in enumerate(groups):
                here = (base[own] == b) & (members[own] == group)
                marker, colour = MARKERS[g % len(MARKERS)], f"C{k % 10}"
                axes.scatter(x[here], y[here], marker=marker, c=colour, s=18, alpha=0.7)
            axes.scatter([], [], c=f"C{k % 10}", label=base_names[b])
        axes.set(title=f"{label_names[label]}: adjusted Rand index {found[-1]:.2f}", xticks=[], yticks=[])
        axes.legend(fontsize=8)
    for axes in places[len(shown) :]:
        axes.set_axis_off()
    figure.suptitle("latents of held-out records: colour is the hidden class, the mark the cluster")
    figure.savefig(path, dpi=110)
    return found


def agreement(base: Tensor, members: Tensor) -> float:
    """The adjusted Rand index of clusters and base distributions: 1 for the same, about 0 for chance."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(base.numpy(), members.numpy()))


def _main_directions(x: Tensor) -> Tensor:
    """(N, 2): projections on the first two principal components."""
    centred = (x - x.mean(0)).double()
    _, _, v = torch.linalg.svd(centred, full_matrices=False)
    return torch.mm(centred, v[:2].T)
