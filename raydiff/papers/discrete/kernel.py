"""What the per-instance bounds need of a uniform noise kernel, step by step.

Q_t = alpha_t I + (1 - alpha_t) 11^T / k on each column. Arrays are (T + 1,) with index t; entry 0 is the clean data.
Reference: Wei et al., TMLR 2024 (arXiv 2310.15524), section 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A noise schedule on k categories."""

    alpha: Sequence[float]
    """alpha_0 .. alpha_T with alpha_0 = 1, as the schedules in `diffusion.uniform` give it."""
    categories: int
    """k; where columns differ, the largest."""

    def __post_init__(self) -> None:
        if self.categories < 2:
            raise ValueError(f"categories must be at least 2, got {self.categories}")
        if len(self.alpha) < 2 or self.alpha[0] != 1:
            raise ValueError("alpha must be alpha_0 .. alpha_T with alpha_0 = 1 and T at least 1")
        for t, value in enumerate(self.alpha):
            last = t == len(self.alpha) - 1
            if not (0 < value <= 1 or (last and value == 0)):
                raise ValueError(f"alpha_{t} must be in (0, 1], or 0 at the last step, got {float(value)}")

    @property
    def steps(self) -> int:
        """T."""
        return len(self.alpha) - 1

    @cached_property
    def abar(self) -> Floats:
        """abar_t, the fraction of the value that is left after t steps."""
        return np.asarray(np.cumprod(np.asarray(self.alpha, dtype=np.float64)), dtype=np.float64)

    @cached_property
    def same(self) -> Floats:
        """mu+_t: a value is the same after step t."""
        return (1 + (self.categories - 1) * np.asarray(self.alpha, dtype=np.float64)) / self.categories

    @cached_property
    def other(self) -> Floats:
        """mu-_t: it has become one particular other value."""
        return (1 - np.asarray(self.alpha, dtype=np.float64)) / self.categories

    @cached_property
    def same_since(self) -> Floats:
        """mubar+_t: the same after t steps as in the clean data."""
        return (1 + (self.categories - 1) * self.abar) / self.categories

    @cached_property
    def other_since(self) -> Floats:
        """mubar-_t."""
        return (1 - self.abar) / self.categories

    @cached_property
    def blur(self) -> Floats:
        """1 / Rbar_t = mubar-_t / mubar+_t: 0 for clean data, 1 for pure noise."""
        return self.other_since / self.same_since

    @cached_property
    def log_ratio(self) -> Floats:
        """ln Rbar_t, without the cancellation of 1 - blur: inf for clean data, 0 for pure noise."""
        with np.errstate(divide="ignore"):
            return np.asarray(-np.log1p(-self.abar / self.same_since))

    @cached_property
    def clear(self) -> Floats:
        """1 - 1 / Rbar_t^2 = B_{t+1} / Rbar_t^2: 1 for clean data, 0 for pure noise."""
        return np.asarray(self.abar / self.same_since * (1 + self.blur))

    def change(self, t: int) -> float:
        """A_t of Eq. 8, (abar_{t-1} - abar_t) / (k mubar+_t mubar-_t); 0 for a step without noise (alpha_t = 1)."""
        if self.abar[t - 1] == self.abar[t]:
            return 0.0
        return float((self.abar[t - 1] - self.abar[t]) / (self.categories * self.same_since[t] * self.other_since[t]))

    def matrix(self, t: int) -> Floats:
        """Q_t, (k, k): rows are values before step t."""
        return self._matrix(float(self.alpha[t]))

    def matrix_since(self, t: int) -> Floats:
        """Qbar_t, (k, k): rows are clean values."""
        return self._matrix(float(self.abar[t]))

    def _matrix(self, kept: float) -> Floats:
        k = self.categories
        return kept * np.eye(k) + (1 - kept) / k
