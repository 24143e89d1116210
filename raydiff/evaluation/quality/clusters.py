"""Do clusters of latents find the hidden base distributions? A picture, and a number (FedDistr, Figure 6).

Shapes: N records; latents (N, c, h, w); labels, base and members (N,) int64.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

PANELS = 6
MARKERS = "osv^D*PX"


def agreement(base: Tensor, members: Tensor) -> float:
    """The adjusted Rand index of clusters and base distributions: 1 for the same, about 0 for chance."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(base.numpy(), members.numpy()))


def draw(
    latents: Tensor,
    labels: Tensor,
    base: Tensor,
    members: Tensor,
    *,
    label_names: tuple[str, ...],
    base_names: tuple[str, ...],
    path: Path,
) -> list[float]:
    """Write a PNG, a panel for each of the first labels: the two main directions of its latents, coloured by base
    distribution, marked by cluster. Gives the agreement within each label, in the order of the labels."""
    from matplotlib.figure import Figure  # not pyplot, which keeps global state

    present = labels.unique().tolist()
    shown = present[:PANELS]
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(4 * columns, 3.6 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    found = []
    for label in present:
        own = torch.nonzero(labels == label)[:, 0]
        found.append(agreement(base[own], members[own]))
        if label not in shown:
            continue
        axes, (x, y) = panels[shown.index(label)], _main_directions(latents[own].flatten(1)).T
        groups = members[own].unique().tolist()
        for k, b in enumerate(base[own].unique().tolist()):
            for g, group in enumerate(groups):
                here = (base[own] == b) & (members[own] == group)
                marker, colour = MARKERS[g % len(MARKERS)], f"C{k % 10}"
                axes.scatter(x[here], y[here], marker=marker, c=colour, s=18, alpha=0.7)
            axes.scatter([], [], c=f"C{k % 10}", label=base_names[b])
        axes.set(title=f"{label_names[label]}: adjusted Rand index {found[-1]:.2f}", xticks=[], yticks=[])
        axes.legend(fontsize=8)
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    figure.suptitle("latents of held-out records: colour is the hidden class, the mark the cluster")
    figure.savefig(path, dpi=110)
    return found


def _main_directions(x: Tensor) -> Tensor:
    """(N, 2): projections on the first two principal components."""
    centred = (x - x.mean(0)).double()
    _, _, v = torch.linalg.svd(centred, full_matrices=False)
    return torch.mm(centred, v[:2].T)
