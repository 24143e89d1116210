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
    """alpha_0 .. alpha_T, as `d3pm_kernel.checked_alpha` gives it."""
    categories: int
    """k; where columns differ, the largest."""

    def __post_init__(self) -> None:
        if self.categories < 2:
            raise ValueError(f"categories must be at least 2, got {self.categories}")
        if 0 in self.alpha[:-1]:
            raise ValueError(f"alpha_t may be 0 at the last step only, got {', '.join(map(str, self.alpha))}")

    @property
    def steps(self) -> int:
        """T."""
        return len(self.alpha) - 1

    @cached_property
    def abar(self) -> Floats:
        """abar_t, the fraction of the value that is left after t steps."""
        return np.asarray(np.cumprod(np.asarray(self.alpha, dtype=np.float64)), dtype=np.float64)

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
