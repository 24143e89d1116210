"""Schedules of uniform noise on categories.

D3PM, Austin et al. 2021, arXiv 2107.03006; Wei et al., TMLR 2024, arXiv 2310.15524, section 4.1 and Figure 5.

Step t keeps a value with probability alpha_t and otherwise draws it anew, uniformly from the k categories:
Q_t = alpha_t I + (1 - alpha_t) 11^T / k. After t steps the same holds with abar_t = alpha_1 .. alpha_t.
`alpha` and `abar` are (T + 1,) float64 with the entry 0 = 1, so that alpha[t] is the paper's alpha_t.
"""

import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Gt, Le
from torch import Tensor

from raydiff.lookup import Door, resolve
from raydiff.settings import Positive, settings


@dataclass(frozen=True, kw_only=True)
class CategorySchedule(ABC):
    """Base class of noise schedules of categories. A subclass is a frozen dataclass with a default for each field."""

    @abstractmethod
    def alpha(self, steps: int) -> Tensor:
        """alpha_0 .. alpha_T, (T + 1,) float64 in [0, 1] with alpha_0 = 1, for T = `steps`."""


@settings(frozen=True, kw_only=True)
class Linear(CategorySchedule):
    """alpha_t = 1 - rate t / T."""

    rate: Annotated[float, Gt(0), Le(1)] = 1.0
    """Decay rate; at 1 no signal is left after step T."""

    def alpha(self, steps: int) -> Tensor:
        return _tensor([1 - self.rate * t / steps for t in range(steps + 1)])


@settings(frozen=True, kw_only=True)
class Sigmoid(CategorySchedule):
    """alpha_t = (Sig(3 rate) - Sig(3 rate t / T)) / (Sig(3 rate) - 1/2), which is 0 at T."""

    rate: Positive = 1.0
    """Decay rate."""

    def alpha(self, steps: int) -> Tensor:
        last = _sigmoid(3 * self.rate)
        rest = [last - _sigmoid(3 * self.rate * t / steps) for t in range(steps)]
        return _tensor([*(x / (last - 0.5) for x in rest), 0.0])  # 0 at T, on either side of which floats may fall


@settings(frozen=True, kw_only=True)
class Cosine(CategorySchedule):
    """abar_t = f(t) / f(0) with f(t) = cos^2((t / T + 0.008) / 1.008 pi / 2) (Nichol & Dhariwal, arXiv 2102.09672)."""

    def alpha(self, steps: int) -> Tensor:
        f = [math.cos((t / steps + 0.008) / 1.008 * math.pi / 2) ** 2 for t in range(steps)]
        f.append(0.0)  # cos(pi / 2), which floats miss
        return _tensor([1.0] + [after / before for before, after in itertools.pairwise(f)])


CATEGORY_SCHEDULES: Door[type[CategorySchedule]] = Door(
    "schedule", {"linear": Linear, "sigmoid": Sigmoid, "cosine": Cosine}, base=CategorySchedule
)
"""Name -> class of a noise schedule of categories."""


def checked_alpha(schedule: CategorySchedule, steps: int) -> Tensor:
    """alpha_0 .. alpha_T, (T + 1,) float64. Raises ValueError where the schedule gives something else."""
    alpha = schedule.alpha(steps)
    within = (alpha >= 0) & (alpha <= 1)
    if alpha.shape != (steps + 1,) or alpha.dtype != torch.float64 or alpha[0] != 1 or not within.all():
        raise ValueError(f"schedule must give {steps + 1} numbers in [0, 1], float64, the first 1: {schedule} does not")
    return alpha


def abar(schedule: CategorySchedule, steps: int) -> Tensor:
    """abar_0 .. abar_T, (T + 1,) float64. Raises ValueError as `checked_alpha`."""
    return torch.cumprod(checked_alpha(schedule, steps), dim=0)


def schedule_named(name: str, rate: float = 1.0) -> CategorySchedule:
    """The schedule of this name, with this rate unless it is 1. Raises ValueError for another name or a rate."""
    cls: Any = resolve("--schedule", CATEGORY_SCHEDULES, name)
    schedule: CategorySchedule = cls() if rate == 1 else cls(rate=rate)
    return schedule


def _tensor(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))
