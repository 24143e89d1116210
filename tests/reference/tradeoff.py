"""True positive rates that no attack exceeds: whole trade-off curves, where raydiff states their areas alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr, ndtri

from raydiff.privacy import accountants, losses
from raydiff.privacy.ledger import PUBLISHED, Exposed, Ledger
from raydiff.privacy.release import Event


def of_mu(mu: float, fpr: float) -> float:
    """The largest true positive rate under mu-Gaussian DP at that false positive rate, Phi(mu + Phi^-1(fpr))."""
    return 1.0 if mu == math.inf else float(ndtr(mu + ndtri(fpr)))


def at(roc: losses.Roc, fpr: float) -> float:
    """The same of a curve."""
    right = int(np.searchsorted(roc.fpr, fpr, side="right"))
    if right == len(roc.fpr):
        return 1.0
    (x, beyond), (low, high) = roc.fpr[right - 1 : right + 1], roc.tpr[right - 1 : right + 1]
    return float(low + (high - low) * (fpr - x) / (beyond - x))


def of_events(events: Sequence[Event], fpr: float) -> float:
    """The same of what these events sent: in closed form where none is sampled."""
    try:
        return of_mu(accountants.gaussian_dp_mu(events), fpr)
    except accountants.Unsupported:
        return 1.0 if (curve := losses.roc(events)) is None else at(curve, fpr)


def of_ledger(ledger: Ledger, client: int, fprs: Sequence[float]) -> list[float]:
    """The same of a client's records, of a view against that adversary, of the whole ledger against the stronger."""
    one = Ledger(tuple(e for e in ledger.entries if e.client in (client, PUBLISHED)))
    views = [[e for events in Exposed(view).events() for e in events] for view in (one.server, one.outsiders)]
    return [max(of_events(events, fpr) for events in views) for fpr in fprs]
