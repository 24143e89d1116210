"""The best attack that a ledger's Gaussians allow: its ROC curve, from the privacy loss of all steps together.

By Neyman and Pearson no attack lies above the ROC curve of the likelihood ratio of the pair that is hardest to tell
apart (`pairs`). A positive is a record that is in, where it is in or out (add_remove, and zero_out, where a record of
gradient 0 takes the place of one that is out), or the one of both that was replaced. Unsampled Gaussians have a closed
form under any relation. Of sums of discrete Gaussians no pair is known to be the hardest: their ceilings are those of
Renyi divergences, which are higher.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raydiff.privacy import accountants, gaussian, renyi
from raydiff.privacy import pld as pairs
from raydiff.privacy.release import Event

STEPS = 2**12
"""Of false positive rates, where an area has no closed form: it is that much too large, at most."""


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

    def at(self, fpr: float) -> float:
        """The largest true positive rate at this false positive rate."""
        right = int(np.searchsorted(self.fpr, fpr, side="right"))
        if right == len(self.fpr):
            return 1.0
        (x, beyond), (low, high) = self.fpr[right - 1 : right + 1], self.tpr[right - 1 : right + 1]
        return float(low + (high - low) * (fpr - x) / (beyond - x))


def auc_ceiling(events: Sequence[Event]) -> float:
    """The largest ROC AUC of any attack on what these events sent: in closed form where none is sampled.

    Raises ValueError for events that do not compose.
    """
    if accountants.knows_no_curve(events):
        return _renyi_auc(accountants.renyi_mu(events))
    try:
        return gaussian.auc_ceiling(accountants.gaussian_dp_mu(events))
    except accountants.Unsupported:
        kinds = accountants.kinds_of(events)
        return 1.0 if kinds is None else _auc(*kinds)


def tpr_ceiling(events: Sequence[Event], fpr: float) -> float:
    """The largest true positive rate of any attack at that false positive rate, as `auc_ceiling`."""
    if accountants.knows_no_curve(events):
        return renyi.tpr_ceiling(accountants.renyi_mu(events), fpr)
    try:
        return gaussian.tpr_ceiling(accountants.gaussian_dp_mu(events), fpr)
    except accountants.Unsupported:
        kinds = accountants.kinds_of(events)
        return 1.0 if kinds is None else _tpr(*kinds, fpr)


def least_fpr(events: Sequence[Event]) -> Callable[[float], float]:
    """true positive rate -> the smallest false positive rate of any test of it, whichever of the two neighbours is to
    be found: the inverse of the trade-off curve, from below. Raises ValueError for events that do not compose."""
    try:
        mu = accountants.gaussian_dp_mu(events)
    except accountants.Unsupported:
        kinds = accountants.kinds_of(events)
        assert kinds is not None  # what is sampled is protected, or there were a mu
        steps, replaced = kinds
        return pairs.losses(steps, replaced=replaced).least_fpr
    return functools.partial(gaussian.fpr_floor, mu)


@functools.lru_cache(maxsize=1024)
def _renyi_auc(mu: float) -> float:
    """The area below `renyi.tpr_ceiling`, from above: it rises."""
    return sum(renyi.tpr_ceiling(mu, i / STEPS) for i in range(1, STEPS + 1)) / STEPS


@functools.lru_cache(maxsize=1024)
def _auc(kinds: tuple[pairs.Kind, ...], replaced: bool) -> float:
    return _roc(kinds, replaced).auc


@functools.lru_cache(maxsize=1024)
def _tpr(kinds: tuple[pairs.Kind, ...], replaced: bool, fpr: float) -> float:
    return _roc(kinds, replaced).at(fpr)


@functools.lru_cache(maxsize=2)
def _roc(kinds: tuple[pairs.Kind, ...], replaced: bool) -> Roc:
    if not kinds:
        return Roc(np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    found = pairs.losses(kinds, replaced=replaced)
    tpr = np.minimum(1.0, found.inside[::-1].cumsum() + found.above)
    fpr = (found.outside[::-1].cumsum() - found.above - found.below).clip(0.0, 1.0)
    return Roc(np.concatenate([[0.0], fpr, [1.0]]), np.concatenate([tpr[:1], tpr, [1.0]]))
