"""Measures by nearest neighbours.

Precision and recall (Kynkaanniemi et al., NeurIPS 2019, arXiv 1904.06991), density and coverage (Naeem et al., ICML
2020, arXiv 2002.09797), memorised pictures (Yoon et al. 2023).

The closed ball of a record reaches to its k-th nearest neighbour in its own set. The first four compare only at equal
counts in the same features. Computed in blocks of rows: memory is O(block * N) for N records.

Shapes: features (N, dim).
"""

import torch
from torch import Tensor

BLOCK = 256
NEIGHBOURS = 5  # Naeem et al.; Kynkaanniemi et al. have 3
RATIO = 1 / 3  # below which a sample is memorised (Yoon et al.)
FED_BACK = 256  # training images of the sanity check


def coverage(samples: Tensor, real: Tensor, *, neighbours: int = NEIGHBOURS, block: int = BLOCK) -> dict[str, float]:
    """Measure samples (N, dim) against real records (M, dim), both with more than `neighbours` rows.

    precision: the fraction of the samples inside some real record's ball; recall: of the real records inside some
    sample's; density: the mean number of real balls that hold a sample, divided by k; coverage: the fraction of the
    real records whose ball holds a sample. For samples of the real law the first three are about 1, coverage about
    1 - 2^-k. Raises ValueError for features that are not finite.
    """
    if not (samples.isfinite().all() and real.isfinite().all()):
        raise ValueError("features must be finite, got infinite or NaN values")
    samples = samples.double()
    real = real.double()
    real_radius = _radii(real, neighbours, block)
    sample_radius = _radii(samples, neighbours, block)
    recalled = torch.zeros(len(real), dtype=torch.bool, device=real.device)
    covered = recalled.clone()
    precise = 0
    held = 0
    for rows, radii in zip(samples.split(block), sample_radius.split(block), strict=True):
        distances = _distances(rows, real)
        inside = distances <= real_radius
        precise += int(inside.any(1).sum())
        held += int(inside.sum())
        covered |= inside.any(0)
        recalled |= (distances <= radii[:, None]).any(0)
    return {
        "precision": precise / len(samples),
        "recall": float(recalled.double().mean()),
        "density": held / (neighbours * len(samples)),
        "coverage": float(covered.double().mean()),
    }


def memorized_fraction(samples: Tensor, training: Tensor, *, block: int = 64) -> float:
    """Return the fraction of samples (N, C, H, W) that are memorised training images (M, C, H, W).

    A sample is memorised if it is three times closer in l2 to its nearest training image than to the next. Repeated
    training images count once: the copy of a doubled image has ratio 1. Raises ValueError for fewer than 2 distinct
    training images.
    """
    distinct = torch.unique(training.flatten(1), dim=0)
    if len(distinct) < 2:
        raise ValueError(f"training must hold at least 2 distinct images for the ratio test, got {len(distinct)}")
    copies = 0
    for rows in torch.split(samples.flatten(1), block):
        nearest = _distances(rows, distinct).topk(2, dim=1, largest=False).values
        copies += int((nearest[:, 0] < RATIO * nearest[:, 1]).sum())
    return copies / len(samples)


def _radii(x: Tensor, neighbours: int, block: int) -> Tensor:
    """Distance from each row to its k-th nearest other row, (N,)."""
    # each row is its own nearest neighbour, at 0
    return torch.cat([_distances(rows, x).kthvalue(neighbours + 1, dim=1).values for rows in x.split(block)])


def _distances(a: Tensor, b: Tensor) -> Tensor:
    """(N, M), from differences: a matrix product rounds equal distances apart and hides those near 0."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
