"""Trade-off curve (ROC) of the best attack that Gaussian events allow.

By Neyman and Pearson no attack lies above the ROC curve of the likelihood ratio of the dominating pair (`pld`).
Positives are records that are in the data (add_remove, zero_out), or either record of a replaced pair. Unsampled
Gaussians have a closed form. For sums of discrete Gaussians no dominating pair is known: their ceilings come from Renyi
divergences, and are higher. All functions raise ValueError for events that do not compose.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from raydiff.privacy import accountants, gaussian, renyi
from raydiff.privacy.pld import Steps, privacy_loss
from raydiff.privacy.release import Event

STEPS = 2**12  # false positive rates of an area without closed form, which is too large by 1 / STEPS at most


def auc_ceiling(events: Sequence[Event]) -> float:
    """Return the largest ROC AUC of any attack on what these events sent."""
    if accountants.has_discrete(events):
        return _renyi_auc(accountants.renyi_mu(events))
    try:
        return gaussian.gaussian_auc_ceiling(accountants.gaussian_dp_mu(events))
    except accountants.Unsupported:
        return _auc(*_sampled(events))


def tpr_ceiling(events: Sequence[Event], fpr: float) -> float:
    """Return the largest true positive rate of any such attack at that false positive rate."""
    if accountants.has_discrete(events):
        return renyi.renyi_tpr_ceiling(accountants.renyi_mu(events), fpr)
    try:
        return gaussian.gaussian_tpr_ceiling(accountants.gaussian_dp_mu(events), fpr)
    except accountants.Unsupported:
        return _tpr(*_sampled(events), fpr)


def least_fpr(events: Sequence[Event]) -> Callable[[float], float]:
    """Return the function true positive rate -> smallest false positive rate, with either neighbour as the positive."""
    try:
        return functools.partial(gaussian.fpr_floor, accountants.gaussian_dp_mu(events))
    except accountants.Unsupported:
        steps, replaced = _sampled(events)
        return privacy_loss(steps, replaced=replaced).least_fpr


def _sampled(events: Sequence[Event]) -> tuple[tuple[Steps, ...], bool]:
    steps = accountants.steps_of(events)
    assert steps is not None  # sampled events are protected, or gaussian_dp_mu were inf
    return steps


@functools.lru_cache(maxsize=1024)
def _renyi_auc(mu: float) -> float:
    """The area below `renyi.renyi_tpr_ceiling`, which rises, from above."""
    return sum(renyi.renyi_tpr_ceiling(mu, i / STEPS) for i in range(1, STEPS + 1)) / STEPS


@functools.lru_cache(maxsize=1024)
def _auc(steps: tuple[Steps, ...], replaced: bool) -> float:
    fpr, tpr = _roc(steps, replaced)
    return min(1.0, float(np.trapezoid(tpr, fpr)))


@functools.lru_cache(maxsize=1024)
def _tpr(steps: tuple[Steps, ...], replaced: bool, fpr: float) -> float:
    return float(np.interp(fpr, *_roc(steps, replaced)))


@functools.lru_cache(maxsize=2)
def _roc(steps: tuple[Steps, ...], replaced: bool) -> tuple[Any, Any]:
    """False positive rates (n,), from 0 to 1, and the concave curve of true ones above which no attack's rates lie."""
    if not steps:
        return np.array([0.0, 1.0]), np.array([0.0, 1.0])
    loss = privacy_loss(steps, replaced=replaced)
    tpr = np.minimum(1.0, loss.inside[::-1].cumsum() + loss.above)
    fpr = (loss.outside[::-1].cumsum() - loss.above - loss.below).clip(0.0, 1.0)
    return np.concatenate([[0.0], fpr, [1.0]]), np.concatenate([tpr[:1], tpr, [1.0]])
