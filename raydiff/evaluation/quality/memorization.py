"""Do samples copy training images? The nearest-neighbour ratio test.

PFDM (Patel et al., CVPR 2026, arXiv 2504.00952) reports it; the criterion is Yoon et al.'s (2023).

A sample w is called memorised when ||w - x_1|| / ||w - x_2|| < 1/3, x_1 and x_2 its nearest and second
nearest training images in pixel space (l2): one image is then far closer than any other.
"""

from __future__ import annotations

import torch
from torch import Tensor

RATIO = 1 / 3
FED_BACK = 256


def memorized_fraction(samples: Tensor, training: Tensor, *, block: int = 64) -> float:
    """Share of samples (N, C, H, W) that the ratio test calls copies of a training image (M, C, H, W).

    Exact repeats among the training images are counted once: the copy of a doubled image has ratio 1 and
    would pass. Memory is O(block * M). Raises ValueError on no samples, other shapes, or fewer than 2
    distinct training images.
    """
    if samples.shape[1:] != training.shape[1:] or len(samples) == 0:
        shapes = f"{tuple(samples.shape)} and {tuple(training.shape)}"
        raise ValueError(f"samples must be one or more images of the training images' shape, got {shapes}")
    distinct = torch.unique(training.flatten(1), dim=0)
    if len(distinct) < 2:
        raise ValueError(f"training must hold at least 2 distinct images for the ratio test, got {len(distinct)}")
    copies = 0
    for w in torch.split(samples.flatten(1), block):
        # Differences, not the expansion by a matrix product, whose rounding hides distances near 0.
        distances = torch.cdist(w, distinct, compute_mode="donot_use_mm_for_euclid_dist")
        nearest = distances.topk(2, dim=1, largest=False).values
        copies += int((nearest[:, 0] < RATIO * nearest[:, 1]).sum())
    return copies / len(samples)


def sanity(training: Tensor) -> float:
    """`memorized_fraction` of the first training images themselves: 1, or the test sees nothing."""
    return memorized_fraction(training[:FED_BACK], training)
