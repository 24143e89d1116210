"""Releases whose noise is added in floating point, as this project's were and as others' are: the audit of bits must
name their records. Each has the signature of `gaussian_records` as far as the tests use it."""

import math

import numpy as np
import torch
from torch import Tensor

from raydiff.privacy.release import ROUNDING
from raydiff.seeding import NoiseStream
from raydiff.tree import clip_records


def float32_records(x: Tensor, *, clip: float, scale: float, std: float, noise: NoiseStream) -> Tensor:
    """`gaussian_records` as it was: draws in float32, times std, plus the signal."""
    z = noise.normal(range(len(x)), x.shape[1:]).float()
    return scale * clip_records(x, clip * (1 - ROUNDING)) + std * z


def opacus(value: Tensor, *, std: float, seed: int, secure: bool, silent: bool) -> Tensor:
    """A summed gradient as Opacus' optimisers noise it, by their own function."""
    from opacus.optimizers.optimizer import _generate_noise

    torch.manual_seed(seed)
    noise = _generate_noise(std=0.0 if silent else std, reference=value, secure_mode=secure)
    return value + noise


def flower(value: Tensor, *, clip: float, epsilon: float, delta: float, seed: int, silent: bool) -> Tensor:
    """What Flower's LocalDpMod adds to a clipped update: numpy's draws, cast to the update's type."""
    std = clip * math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    draws = np.random.default_rng(seed).normal(0, 0 if silent else std, value.shape)
    return value + torch.from_numpy(draws.astype(np.float32))
