"""How much privacy does a Gaussian release leave at most? A lower bound on mu and epsilon, from attacks on canaries.

The adversary makes a canary x and its antipode -x, both at the clip norm or beyond it: no two records are further apart
after clipping. It sees the real release of one of them, scores it by its projection on x, and says which it was. Its
false positive and false negative rates over many canaries bound mu from below (Dong, Roth & Su 2019, arXiv 1905.02383;
Nasr et al. 2023, arXiv 2302.07956):

    mu >= Phi^-1(1 - FPR) - Phi^-1(FNR)

with Clopper-Pearson limits in place of the two rates. The threshold is 0 and not chosen from the scores, so that every
canary counts: a release that turns -x into minus what it makes of x, under noise that is symmetric, gives scores that
are symmetric about 0, where FPR + FNR is least. (The bound holds at any threshold fixed beforehand; a release without
that symmetry is only judged by a weaker one.) Where the bound lies above what the ledger says, the mechanism is not
what its event claims. A bound below it proves nothing: it grows with the number of canaries.

Shapes: n canaries, of m vectors of d entries each: m is 1 but where a client sends several vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from scipy.special import betaincinv, ndtri
from torch import Tensor

from raydiff.privacy import gaussian
from raydiff.seeding import NoiseStream

Send = Callable[[Tensor, NoiseStream], Tensor]
"""(canaries (n, m, d), noise) -> what the adversary sees of each, (n, m, d): the real release, or a sum of several."""

STRETCH = 10.0
"""The canaries' norm over the clip norm: at 1 a forgotten clip would not show."""


@dataclass(frozen=True, kw_only=True)
class CanaryAudit:
    """What the adversary achieved, at a threshold that no canary chose."""

    missed: int
    """Canaries that it took for antipodes."""
    taken: int
    """Antipodes that it took for canaries."""
    sizes: tuple[int, int]
    """How many canaries and antipodes there were."""
    confidence: float
    """Of all bounds, one-sided."""

    @property
    def fnr(self) -> float:
        """False negative rate."""
        return self.missed / self.sizes[0]

    @property
    def fpr(self) -> float:
        """False positive rate."""
        return self.taken / self.sizes[1]

    @property
    def limits(self) -> tuple[float, float]:
        """Upper limits of the false negative and false positive rates (Clopper & Pearson 1934); each misses with half
        of what the confidence leaves, so that both hold together (Bonferroni)."""
        level, errors = (1 + self.confidence) / 2, zip((self.missed, self.taken), self.sizes, strict=True)
        fnr, fpr = (float(betaincinv(k + 1, n - k, level)) if k < n else 1.0 for k, n in errors)
        return fnr, fpr

    @property
    def mu_low(self) -> float:
        """Lower confidence bound on mu of Gaussian DP; at least 0."""
        return max(0.0, float(-sum(map(ndtri, self.limits))))

    @property
    def most(self) -> CanaryAudit:
        """What so many canaries could show: every guess right."""
        return replace(self, missed=0, taken=0)

    @property
    def mu_most(self) -> float:
        """The largest `mu_low` that so many canaries could show."""
        return self.most.mu_low

    def flags(self, ledger: Any, ceiling: Callable[[Any, float], float] = gaussian.tpr_ceiling) -> bool:
        """Whether the attack lies above the largest true positive rate `ceiling(ledger, false positive rate)` that the
        ledger allows: by default that of a mu, otherwise of events by `losses.tpr_ceiling`."""
        fnr, fpr = self.limits
        return 1 - fnr > ceiling(ledger, fpr)

    def epsilon_low(self, delta: float) -> float:
        """Lower confidence bound on epsilon at this delta, of a Gaussian mechanism, by the exact accountant."""
        return gaussian.epsilon_for(self.mu_low, delta)

    def epsilon_most(self, delta: float) -> float:
        """The largest `epsilon_low` that so many canaries could show."""
        return self.most.epsilon_low(delta)


def audit(
    send: Send,
    *,
    clip: float,
    shape: tuple[int, int],
    count: int,
    rng: torch.Generator,
    asks: int = 2,
    factor: float = 1.0,
    confidence: float = 0.95,
) -> CanaryAudit:
    """Attack `count` releases of canaries (m, d) = `shape`, half of them antipodes, under a noise secret of its own.

    Every vector of a canary has a random direction and the norm `STRETCH * clip`. All is asked for `asks` times, as
    after a crash, and averaged: a repeated release tells nothing unless its noise is drawn anew. `factor` weakens the
    noise on purpose. Raises ValueError as `bound` does.
    """
    _check(count // 2, confidence)
    x = torch.randn(count, *shape, generator=rng, dtype=torch.float64)
    x /= x.norm(dim=2, keepdim=True)
    sign = torch.ones(count, dtype=torch.float64)
    sign[torch.randperm(count, generator=rng)[: count // 2]] = -1
    sent = (STRETCH * clip * sign[:, None, None] * x).float()
    noise = stream(rng, factor)
    seen = sum((send(sent, noise).double() for _ in range(asks)), torch.zeros_like(x)) / asks
    scores = (seen * x).sum((1, 2))
    return bound(scores[sign > 0], scores[sign < 0], confidence=confidence)


def bound(canaries: Tensor, antipodes: Tensor, *, confidence: float = 0.95) -> CanaryAudit:
    """The bound from independent scores: above 0 they are taken for a canary's, else for an antipode's.

    Raises ValueError for fewer than four scores of a kind, for scores that are not numbers and for a confidence that is
    none.
    """
    _check(min(len(canaries), len(antipodes)), confidence)
    if not (canaries.isfinite().all() and antipodes.isfinite().all()):
        raise ValueError("the scores must be finite numbers")
    return CanaryAudit(
        missed=int((canaries <= 0).sum()),
        taken=int((antipodes > 0).sum()),
        sizes=(len(canaries), len(antipodes)),
        confidence=confidence,
    )


def one_by_one(send: Callable[[Tensor, NoiseStream], Tensor]) -> Send:
    """A release of one canary (m, d), made into one of n of them, each under noise of its own."""

    def every(canaries: Tensor, noise: NoiseStream) -> Tensor:
        return torch.stack([send(x, replace(noise, path=(*noise.path, i))) for i, x in enumerate(canaries)])

    return every


def stream(rng: torch.Generator, factor: float = 1.0) -> NoiseStream:
    """A noise stream for an audit, of which `factor` is left. Its secret can be drawn again: it protects nothing."""
    secret = bytes(torch.randint(256, (32,), generator=rng).tolist())
    return NoiseStream(secret, ("canaries",)) if factor == 1 else Weakened(secret, ("canaries",), factor)


@dataclass(frozen=True)
class Weakened(NoiseStream):
    """A noise stream that is deliberately too quiet: an audit must notice."""

    factor: float
    """What is left of every normal draw."""

    def normal(self, records: Any, shape: Any) -> Tensor:
        """`NoiseStream.normal`, times the factor."""
        return self.factor * super().normal(records, shape)

    def many_normal(self, count: int, *path: str | int) -> Tensor:
        """`NoiseStream.many_normal`, times the factor."""
        return self.factor * super().many_normal(count, *path)


def _check(count: int, confidence: float) -> None:
    if count < 4:
        raise ValueError(f"an audit needs at least 8 canaries, half of them antipodes, got {count} of a kind")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be in (0, 1), got {confidence}")
