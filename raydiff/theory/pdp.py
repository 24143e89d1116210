"""The per-instance bound (`privacy.pdp`) on random tables: what it does with t, s, the schedule, m and p.

Columns are independent: value 0 with probability p, the k - 1 others alike. The record that is audited has a value
other than 0 in every column.

Reference: Wei et al., TMLR 2024 (arXiv 2310.15524), sections 3.3 and 4.1, Figures 3, 4, 5, 8 and 11.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from raydiff.models.d3pm_kernel import Linear, Schedule
from raydiff.privacy.pdp.bound import Audit, Release, audit, bounds
from raydiff.privacy.pdp.histograms import Histograms, distinct, histograms
from raydiff.privacy.pdp.kernel import Floats, Ints, Kernel
from raydiff.privacy.pdp.radius import Condition


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A random table and a model of it. The defaults are those of Figure 4."""

    p: float = 0.5
    """Probability of each column's majority value."""
    others: int = 1000
    """s."""
    columns: int = 5
    """n."""
    categories: int = 5
    """k."""
    steps: int = 20
    """T."""
    schedule: Schedule = Linear()
    """The noise."""
    epsilon: float = 10.0
    """pDP's."""
    samples: int = 1
    """m."""
    condition: Condition = "relaxed"
    """Of the radius."""

    @property
    def release(self) -> Release:
        """Clean rows of the model."""
        kernel = Kernel(alpha=self.schedule.alpha(self.steps).tolist(), categories=self.categories)
        return Release(kernel=kernel, epsilon=self.epsilon, samples=self.samples, condition=self.condition)

    def table(self, rng: torch.Generator) -> Ints:
        """(s + 1, n): the record, then the others."""
        others = skewed(self.others, self.columns, self.categories, p=self.p, rng=rng)
        return np.concatenate([np.ones((1, self.columns), dtype=np.int64), others])


def skewed(rows: int, columns: int, categories: int, *, p: float, rng: torch.Generator) -> Ints:
    """A (rows, columns) table. Raises ValueError for a p that is not in 0..1."""
    if not 0 <= p <= 1:
        raise ValueError(f"p must be in 0..1, got {p}")
    major = torch.rand(rows, columns, dtype=torch.float64, generator=rng) < p
    others = torch.randint(1, categories, (rows, columns), generator=rng)
    return np.asarray(torch.where(major, 0, others).numpy(), dtype=np.int64)


def exposed(setting: Setting, rng: torch.Generator) -> Audit:
    """The bound of the record alone."""
    return audit(setting.table(rng), setting.release, records=np.array([0]))


def growing(setting: Setting, sizes: Sequence[int], rng: torch.Generator) -> tuple[Floats, Ints]:
    """The main term of each step, and its radius, (sizes, T): rows that agree with the record nowhere are added.

    Raises ValueError for a size below the setting's s.
    """
    if min(sizes) < setting.others:
        raise ValueError(f"sizes must be {setting.others} or more, got {min(sizes)}")
    data = distinct(setting.table(rng))
    base = histograms(data, data.index[:1])
    near = np.repeat(base.near.astype(np.int64), len(sizes), axis=0)
    near[:, -1] += np.array(sizes) - setting.others
    release = setting.release
    found = bounds(Histograms(near=near, sharing=np.repeat(base.sharing, len(sizes), axis=0)), release)
    inside = np.take_along_axis(np.cumsum(near, axis=1), found.radius, axis=1)
    share = np.minimum(4 * inside / np.array(sizes)[:, None], 1)
    return release.price * share * found.leak, found.radius


def slopes(values: Floats, sizes: Sequence[int]) -> Floats:
    """Of log(values), (sizes, T), over log(sizes): least squares, (T,); nan where a value is 0."""
    x = np.log(np.array(sizes, dtype=np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        y = np.log(values)
        return np.asarray((x - x.mean()) @ (y - y.mean(axis=0)) / ((x - x.mean()) ** 2).sum())


def everyone(setting: Setting, rng: torch.Generator) -> Audit:
    """The bounds of all records of the table."""
    return audit(setting.table(rng), setting.release)
