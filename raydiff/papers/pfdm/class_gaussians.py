"""A Gaussian for each class, fitted to noised records, with the noise subtracted from its covariance.

The cheapest model of privatised uploads, and post-processing of them. Eigenvalues of a class's sample covariance that
pure noise explains are dropped, the others shrunk to what they estimate (Donoho, Gavish, Johnstone 2018, "Optimal
shrinkage of eigenvalues in the spiked covariance model", operator norm; the bulk's edge is Marchenko and Pastur's).

Shapes: x (N, C, H, W), d = C H W; labels (N, K); U different label rows.
"""

import torch
from torch import Tensor

from raydiff.tree import Params


def fit_classes(x: Tensor, labels: Tensor, *, noise_std: float) -> Params:
    """One Gaussian for each label row: labels (U, K), mean (U, C, H, W) and factor (U, d, d).

    factor factor^T estimates the covariance before noise of `noise_std` > 0 was added.
    """
    rows, of = torch.unique(labels, dim=0, return_inverse=True)
    groups = [x[of == u] for u in range(len(rows))]
    factors = [_signal_factor(group.flatten(1).double(), noise_std) for group in groups]
    return {"labels": rows, "mean": torch.stack([g.mean(0) for g in groups]), "factor": torch.stack(factors).float()}


def draw_noised_records(classes: Params, labels: Tensor, *, noise_std: float, rng: torch.Generator) -> Tensor:
    """Noised records for these labels, (len(labels), C, H, W).

    A label row never seen takes the first one of its class (column 0). Raises ValueError for a class never seen.
    """
    mean = classes["mean"]
    of = match_labels(labels, classes["labels"]).int().argmax(1)
    signal = torch.randn(len(labels), classes["factor"].shape[2], generator=rng)
    noise = torch.randn(len(labels), *mean.shape[1:], generator=rng)
    for u, factor in enumerate(classes["factor"]):  # A factor for every record at once would fill the memory.
        signal[of == u] = signal[of == u] @ factor.T
    out: Tensor = mean[of] + signal.view_as(noise) + noise_std * noise
    return out


def match_labels(labels: Tensor, rows: Tensor) -> Tensor:
    """(N, U) bool: which of the label rows (U, K) go with labels (N, K): equal ones, or else those of the same class.

    Raises ValueError for a class that no row has.
    """
    same = (labels[:, None] == rows[None]).all(2)
    fits = torch.where(same.any(1, keepdim=True), same, labels[:, :1] == rows[None, :, 0])
    if not fits.any(1).all():
        raise ValueError(f"no upload has the labels {labels[~fits.any(1)][0].tolist()}")
    return fits


def _signal_factor(x: Tensor, noise_std: float) -> Tensor:
    """(d, d): a square root of the shrunk covariance of x (n, d)."""
    n, d = x.shape
    if n < 2:  # One record has no covariance.
        return torch.zeros(d, d, dtype=x.dtype)
    values, vectors = torch.linalg.eigh(torch.cov(x.T) / noise_std**2)
    ratio = d / (n - 1)
    b = values + 1 - ratio
    spikes = (b + (b.square() - 4 * values).clamp_min(0).sqrt()) / 2 - 1
    signal = torch.where(values > (1 + ratio**0.5) ** 2, spikes, 0.0).clamp_min(0)
    factor: Tensor = vectors * signal.sqrt() * noise_std
    return factor
