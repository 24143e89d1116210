"""Memorisation by the nearest-neighbour ratio test (Yoon et al. 2023), as in PFDM (Patel et al., CVPR 2026).

A sample w is memorised where ||w - x_1|| / ||w - x_2|| < 1/3, with x_1 and x_2 its nearest and second nearest training
images in pixel space (l2).
"""

from __future__ import annotations

import torch
from torch import Tensor

RATIO = 1 / 3
FED_BACK = 256


def memorized_fraction(samples: Tensor, training: Tensor, *, block: int = 64) -> float:
    """Return the fraction of samples (N, C, H, W) that are memorised training images (M, C, H, W).

    Repeated training images count once: the copy of a doubled image has ratio 1. Memory is O(block * M). Raises
    ValueError for fewer than 2 distinct training images.
    """
    distinct = torch.unique(training.flatten(1), dim=0)
    if len(distinct) < 2:
        raise ValueError(f"training must hold at least 2 distinct images for the ratio test, got {len(distinct)}")
    copies = 0
    for w in torch.split(samples.flatten(1), block):
        # from differences: the rounding of a matrix product hides distances near 0
        distances = torch.cdist(w, distinct, compute_mode="donot_use_mm_for_euclid_dist")
        nearest = distances.topk(2, dim=1, largest=False).values
        copies += int((nearest[:, 0] < RATIO * nearest[:, 1]).sum())
    return copies / len(samples)


def sanity(training: Tensor) -> float:
    """Return `memorized_fraction` of the first training images themselves, which must be 1."""
    return memorized_fraction(training[:FED_BACK], training)
