"""The best attack that sampled Gaussians allow: its ROC curve, from the privacy loss of all steps together.

An adversary who sees a step is to tell whether a record is in the data. Under Poisson sampling at rate q and noise of
sigma times the sensitivity nothing is easier to tell apart than P = (1 - q) N(0, 1) + q N(1 / sigma, 1) with the record
from Q = N(0, 1) without it, and of several steps, each of which may depend on those before, their products (Zhu, Dong &
Wang, AISTATS 2022, arXiv 2106.08567, Theorems 10 and 11). By Neyman and Pearson no attack lies above the ROC curve of
the likelihood ratio of these products, whose logarithm, the privacy loss, is a sum over the steps: a convolution.

Discretised so that the curve rises and never falls ("connect the dots": Doroshenko et al., PoPETs 2022, arXiv
2207.04380): the mass of P and Q between two points of the grid goes to these two, so that both masses stay as they are.
That spreads the likelihood ratio, and helps the attack. What lies beyond the grid is given to the attack too.

The record is in or out: this is add_remove, and zero_out, where a record of gradient 0 takes the place of one that is
out. Unsampled Gaussians have a closed form under any relation (`accountants.auc_ceiling`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raydiff.privacy import accountants
from raydiff.privacy.release import Event, Gaussian

POINTS = 2**15
"""Of the grid of losses."""
BEYOND = 1e-10
"""Mass of losses beyond the grid that is aimed at; what it is in truth is bounded, and given to the attack."""
ROUNDING = 1e-12
"""Given to the attack for each step and one more: the transforms' rounding, of 1e-15 times the root of `POINTS`."""
TILTS = np.geomspace(16, 512, 10)
"""Exponents of the moments that bound the mass beyond the grid, times its width."""
_Steps = tuple[tuple[float, float, int], ...]
"""(sampling rate, noise multiplier, how often) of each kind of step."""


@dataclass(frozen=True, eq=False)
class Roc:
    """A concave curve above which no attack's (false positive rate, true positive rate) lies."""

    fpr: Any
    """(n,) ascending from 0 to 1."""
    tpr: Any
    """(n,) at these."""

    @property
    def auc(self) -> float:
        """The area below."""
        return min(1.0, float(np.trapezoid(self.tpr, self.fpr)))


def roc(events: Sequence[Event]) -> Roc | None:
    """The curve of Gaussians of which some are sampled; None where every attack is allowed.

    Raises ValueError for events that do not compose, Unsupported for sampling under replace_one.
    """
    steps = accountants.steps_of(events)
    return None if steps is None else _roc(tuple(sorted((*kind, n) for kind, n in steps.items())))


def auc_ceiling(events: Sequence[Event]) -> float:
    """The largest ROC AUC of any attack on what these events sent: in closed form where none is sampled.

    Raises as `roc` does.
    """
    try:
        return accountants.auc_ceiling(accountants.gaussian_dp_mu(events))
    except accountants.Unsupported:
        return 1.0 if (curve := roc(events)) is None else curve.auc


@functools.lru_cache(maxsize=1024)
def _roc(steps: _Steps) -> Roc:
    if not steps:
        return Roc(np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    widest = _widest(steps)
    grid = (np.arange(POINTS) - POINTS // 2) * (2 * widest / POINTS)
    spectra, logs, lost = np.ones((2, POINTS // 2 + 1), dtype=complex), np.zeros((2, len(TILTS))), 0.0
    for rate, noise, n in steps:
        masses = _step(grid, rate, noise)
        lost += n * max(0.0, 1.0 - float(masses[0].sum()))
        for i, (mass, towards) in enumerate(zip(masses, (1, -1), strict=True)):
            spectra[i] *= np.fft.rfft(np.fft.ifftshift(mass)) ** n
            logs[i] += n * _log_moments(mass, towards * grid / widest)
    inside, outside = np.fft.fftshift(np.fft.irfft(spectra, POINTS), axes=1).clip(0.0)
    # What the transform wraps around: losses above the grid with the record, and below it without (Chernoff's bound).
    wrapped = float(np.exp(np.minimum(0.0, (logs - TILTS).min(axis=1))).sum())
    wrapped += ROUNDING * (1 + sum(n for *_, n in steps))
    tpr = np.minimum(1.0, inside[::-1].cumsum() + lost + wrapped)
    fpr = (outside[::-1].cumsum() - wrapped).clip(0.0, 1.0)
    return Roc(np.concatenate([[0.0], fpr, [1.0]]), np.concatenate([tpr[:1], tpr, [1.0]]))


def _widest(steps: _Steps) -> float:
    """A loss that is hardly ever exceeded, an epsilon at a delta of `BEYOND` and some more; or one that tells all."""
    events = [Gaussian(noise, "example", "add_remove", "local", rate, n) for rate, noise, n in steps]
    return min(1.1 * accountants.rdp(events, BEYOND), 60.0)


def _step(grid: Any, rate: float, noise: float) -> tuple[Any, Any]:
    """The masses of P and Q of one step on the grid. Of each cell both ends get the shares that keep both its masses.

    The loss ln(1 - q + q e^(x / sigma - 1 / (2 sigma^2))) rises in the noised value x, so its cells are those of x.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        ends = noise * (grid + np.log1p(-(1 - rate) * np.exp(-grid)) - math.log(rate)) + 1 / (2 * noise)
    ends = np.where(np.isnan(ends), -np.inf, ends)  # No loss is below ln(1 - q).
    q = _cells(ends)
    p = (1 - rate) * q + rate * _cells(ends - 1 / noise)
    width = grid[1] - grid[0]
    with np.errstate(invalid="ignore", divide="ignore"):
        above = np.nan_to_num(np.log(p) - np.log(q) - grid[:-1], nan=0.0).clip(0.0, width)  # where in the cell P / Q is
    share = np.expm1(-above) / math.expm1(-width)  # of P's mass, which goes to the upper end
    spread = []
    for mass, upper in ((p, share), (q, share * np.exp(above - width))):
        at = np.append(mass * (1 - upper), 0.0)
        at[1:] += mass * upper
        spread.append(at)
    return spread[0], spread[1]


def _cells(ends: Any) -> Any:
    """The standard normal mass between neighbours of these ascending numbers, exact to its own size in both tails."""
    from scipy.special import ndtr

    low, high = ends[:-1], ends[1:]
    flip = low > 0  # The upper tail is the lower one by symmetry.
    return ndtr(np.where(flip, -low, high)) - ndtr(np.where(flip, -high, low))


def _log_moments(mass: Any, losses: Any) -> Any:
    """ln E e^(t loss) for each of `TILTS`."""
    exponents = np.outer(TILTS, losses)
    highest = exponents.max(axis=1)
    with np.errstate(divide="ignore"):  # all the mass is where e^(t loss) is nothing
        return highest + np.log(np.exp(exponents - highest[:, None]) @ mass)
