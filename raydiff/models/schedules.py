"""Noise schedules of Gaussian diffusion, and noised pictures.

abar has T + 1 entries with abar_0 = 1, so that abar[t] is the papers' abar_t. References: Ho et al. 2020 (arXiv
2006.11239); Nichol & Dhariwal 2021 (arXiv 2102.09672); Karras et al. 2022 (EDM, arXiv 2206.00364).
"""

from __future__ import annotations

import functools
import math
from typing import Literal, get_args

import torch
from torch import Tensor

from raydiff import lookup

ScheduleName = Literal["linear", "cosine", "sigmoid", "scaled_linear"]
Level = tuple[Tensor, Tensor]
"""(sqrt(abar_t), sqrt(1 - abar_t)) of each picture, both (B, 1, 1, 1)."""

LOG_SIGMA_STD = 1.2  # of ln(sigma) in training (Karras et al. 2022, Table 1)


@functools.lru_cache
def alphas_bar(schedule: str, timesteps: int) -> Tensor:
    """abar_0 .. abar_T, (T + 1,) float64.

    linear, scaled_linear and sigmoid have their usual beta range at T = 1000; for other T betas are scaled by 1000 / T.
    cosine is Nichol & Dhariwal's (arXiv 2102.09672). Raises ValueError for an unknown schedule or T outside 1..10^6.
    """
    lookup.check_one_of("schedule", schedule, get_args(ScheduleName))
    if not 1 <= timesteps <= 10**6:  # Beyond, float32 rounds abar_1 to 1.
        raise ValueError(f"timesteps must be in 1..1,000,000, got {timesteps}")
    T = timesteps
    if schedule == "cosine":
        f = [math.cos((t / T + 0.008) / 1.008 * math.pi / 2) ** 2 for t in range(T + 1)]
        beta = torch.tensor([1 - f[t + 1] / f[t] for t in range(T)], dtype=torch.float64)
    elif schedule == "linear":
        beta = torch.linspace(1e-4, 0.02, T, dtype=torch.float64) * (1000 / T)
    elif schedule == "scaled_linear":
        beta = torch.linspace(0.00085**0.5, 0.012**0.5, T, dtype=torch.float64) ** 2 * (1000 / T)
    else:
        beta = torch.sigmoid(torch.linspace(-6, 6, T, dtype=torch.float64))
        beta = (beta * (0.02 - 1e-4) + 1e-4) * (1000 / T)
    abar = torch.cumprod(1 - beta.clamp_max(0.999), dim=0)
    return torch.cat([torch.ones(1, dtype=torch.float64), abar])


@functools.lru_cache
def lognormal_levels(schedule: str, timesteps: int, mean: float) -> Tensor:
    """P(t <= 1 .. T), (T,) float64, where ln(sigma_t) of sigma_t^2 = 1 / abar_t - 1 is rounded from a normal number
    of this mean."""
    log_sigma = 0.5 * (1 / alphas_bar(schedule, timesteps)[1:] - 1).log()
    upper = (log_sigma[1:] + log_sigma[:-1]) / 2
    below = torch.special.ndtr((upper - mean) / LOG_SIGMA_STD)
    return torch.cat([below, torch.ones(1, dtype=torch.float64)])


def noised(x: Tensor, eps: Tensor, abar: Tensor, t: Tensor) -> Tensor:
    """sqrt(abar_t) x + sqrt(1 - abar_t) eps for pictures x (B, C, H, W), abar (T + 1,) and t (B,)."""
    signal, noise = signal_and_noise(x, abar, t)
    return signal * x + noise * eps


def signal_and_noise(x: Tensor, abar: Tensor, t: Tensor) -> Level:
    """The level of pictures x (B, C, H, W) at t (B,)."""
    signal, noise = level_table(abar, x.device, x.dtype)[t].unbind(1)
    return signal, noise


@functools.lru_cache(maxsize=64)
def level_table(abar: Tensor, where: torch.device, dtype: torch.dtype) -> Tensor:
    """sqrt(abar) and sqrt(1 - abar), (T + 1, 2, 1, 1, 1); cached, so that no step waits for a copy."""
    a = abar.to(where, dtype).view(-1, 1, 1, 1)
    return torch.stack([a.sqrt(), (1 - a).sqrt()], dim=1)
