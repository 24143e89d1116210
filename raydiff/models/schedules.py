"""Noise schedules of Gaussian diffusion, and noised pictures.

abar has T + 1 entries with abar_0 = 1, so that abar[t] is the papers' abar_t. References: Ho et al. 2020 (arXiv
2006.11239); Nichol & Dhariwal 2021 (arXiv 2102.09672); Karras et al. 2022 (EDM, arXiv 2206.00364).
"""

import functools
import math
from abc import ABC, abstractmethod
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from raydiff.lookup import Door
from raydiff.settings import settings

Level = tuple[Tensor, Tensor]
"""(sqrt(abar_t), sqrt(1 - abar_t)) of each picture, both (B, 1, 1, 1)."""

LOG_SIGMA_STD = 1.2  # of ln(sigma) in training (Karras et al. 2022, Table 1)
MOST_TIMESTEPS = 10**6  # beyond, float32 rounds abar_1 to 1
Timesteps = Annotated[int, Ge(1), Le(MOST_TIMESTEPS)]
MOST_BETA = 0.999


@settings(frozen=True, kw_only=True)
class Schedule(ABC):
    """Base class of noise schedules. A subclass is a frozen dataclass with a default for each field."""

    @abstractmethod
    def betas(self, timesteps: int) -> Tensor:
        """beta_1 .. beta_T, (T,) float64, for T = `timesteps`: the fraction of the variance that step t replaces."""


@settings(frozen=True, kw_only=True)
class LinearBetas(Schedule):
    """Ho et al.'s at T = 1000; for other T betas are scaled by 1000 / T, here and below."""

    def betas(self, timesteps: int) -> Tensor:
        return torch.linspace(1e-4, 0.02, timesteps, dtype=torch.float64) * (1000 / timesteps)


@settings(frozen=True, kw_only=True)
class ScaledLinearBetas(Schedule):
    """Linear in the square root, as in Stable Diffusion."""

    def betas(self, timesteps: int) -> Tensor:
        return torch.linspace(0.00085**0.5, 0.012**0.5, timesteps, dtype=torch.float64) ** 2 * (1000 / timesteps)


@settings(frozen=True, kw_only=True)
class CosineBetas(Schedule):
    """Nichol & Dhariwal's, abar_t proportional to cos^2((t / T + 0.008) / 1.008 pi / 2)."""

    def betas(self, timesteps: int) -> Tensor:
        T = timesteps
        f = [math.cos((t / T + 0.008) / 1.008 * math.pi / 2) ** 2 for t in range(T + 1)]
        return torch.tensor([1 - f[t + 1] / f[t] for t in range(T)], dtype=torch.float64)


SCHEDULES: Door[type[Schedule]] = Door(
    "schedule",
    {"linear": LinearBetas, "cosine": CosineBetas, "scaled_linear": ScaledLinearBetas},
    base=Schedule,
)
"""Name -> class of a noise schedule of pictures."""


@functools.lru_cache
def alphas_bar(schedule: Schedule, timesteps: int) -> Tensor:
    """abar_0 .. abar_T, (T + 1,) float64. Raises ValueError for betas that are none."""
    betas = schedule.betas(timesteps)
    if betas.shape != (timesteps,) or betas.dtype != torch.float64 or not (betas > 0).all():
        raise ValueError(f"schedule must give {timesteps} betas above 0, float64: {schedule} does not")
    abar = torch.cumprod(1 - betas.clamp_max(MOST_BETA), dim=0)
    return torch.cat([torch.ones(1, dtype=torch.float64), abar])


@functools.lru_cache
def lognormal_levels(schedule: Schedule, timesteps: int, mean: float) -> Tensor:
    """P(t <= 1 .. T), (T,) float64, of log-normal noise levels.

    ln(sigma_t) of sigma_t^2 = 1 / abar_t - 1 is rounded from a normal number of this mean.
    """
    log_sigma = 0.5 * (1 / alphas_bar(schedule, timesteps)[1:] - 1).log()
    upper = (log_sigma[1:] + log_sigma[:-1]) / 2
    below = torch.special.ndtr((upper - mean) / LOG_SIGMA_STD)
    return torch.cat([below, torch.ones(1, dtype=torch.float64)])


def add_noise(x: Tensor, eps: Tensor, abar: Tensor, t: Tensor) -> Tensor:
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
