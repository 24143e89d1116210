"""Oracles of Gaussian mechanisms without raydiff's accountants: integration on a grid, and convolution."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from raydiff.privacy.release import Gaussian


def sampled_steps(rate: float, noise: float, times: int = 1, relation: Any = "zero_out") -> list[Any]:
    """Poisson-sampled steps on examples; `noise` is the standard deviation over the sensitivity."""
    return [Gaussian(noise, "example", relation, "local", rate, times)]


def means(noise: float, relation: str) -> tuple[float, float]:
    """Where the record puts the mean, and its neighbour, in standard deviations of the noise: half the sensitivity to
    either side where one replaces the other."""
    return (1 / noise, 0.0) if relation != "replace_one" else (0.5 / noise, -0.5 / noise)


def densities(x: Any, rate: float, noise: float, relation: str) -> tuple[Any, Any]:
    """Densities of a sampled step at x with the record and with its neighbour."""
    present, absent = ((1 - rate) * norm.pdf(x) + rate * norm.pdf(x - at) for at in means(noise, relation))
    return present, absent


def length(leaves: Mapping[str, Tensor]) -> float:
    """The Euclidean norm of all leaves together."""
    return float(torch.cat([v.double().flatten() for v in leaves.values()]).norm())


def hockey_stick(p: Any, q: Any, epsilon: float, cell: float = 1.0) -> float:
    """The smallest delta at that epsilon by definition, from P to Q, of densities on a grid."""
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * cell)


def of_sum(sigma: float, shares: int) -> np.ndarray:
    """Probabilities of a sum of `shares` discrete Gaussians N_Z(0, sigma^2), each convolved with the next."""
    reach = math.ceil(30 * sigma)
    one: np.ndarray = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * sigma**2))
    total = one = one / float(one.sum())
    for _ in range(shares - 1):
        total = np.convolve(total, one)
    return total
