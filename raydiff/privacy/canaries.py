"""Lower bound on mu and epsilon of a Gaussian release, from attacks on canaries.

The adversary makes a canary x and its antipode -x, both at the clip norm or beyond: no two records are further apart
after clipping. It sees the real release of one of them, scores it by its projection on x, and says which it was. Its
false positive and false negative rates over many canaries bound mu from below (Dong, Roth & Su 2019, arXiv 1905.02383;
Nasr et al. 2023, arXiv 2302.07956):

    mu >= Phi^-1(1 - FPR) - Phi^-1(FNR)

with Clopper-Pearson limits in place of the two rates. The threshold is fixed at 0, so that every canary counts: for a
release that is odd in x, under symmetric noise, FPR + FNR is smallest there; for others the bound is only weaker. A
bound above the ledger's mu shows that the mechanism is not what its event claims. A bound below it proves nothing: it
grows with the number of canaries.

Shapes: n canaries, of m vectors of d entries each; m is 1 unless a client sends several vectors.
"""

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
STRETCH = 10.0  # the canaries' norm over the clip norm: at 1 a forgotten clip would not show


@dataclass(frozen=True, kw_only=True)
class CanaryAudit:
    """The adversary's errors at a fixed threshold."""

    missed: int  # canaries that it took for antipodes
    taken: int  # antipodes that it took for canaries
    sizes: tuple[int, int]  # numbers of canaries and of antipodes
    confidence: float  # confidence level of all bounds, one-sided

    @property
    def rates(self) -> tuple[float, float]:
        """False negative and false positive rates."""
        return self.missed / self.sizes[0], self.taken / self.sizes[1]

    @property
    def limits(self) -> tuple[float, float]:
        """Upper limits of the false negative and false positive rates that hold together (Bonferroni)."""
        level = (1 + self.confidence) / 2
        return upper_limit(self.missed, self.sizes[0], level), upper_limit(self.taken, self.sizes[1], level)

    @property
    def mu_low(self) -> float:
        """Lower confidence bound on mu of Gaussian DP; at least 0."""
        return max(0.0, float(-sum(map(ndtri, self.limits))))

    @property
    def most(self) -> "CanaryAudit":
        """The largest result of so many canaries: every guess right."""
        return replace(self, missed=0, taken=0)

    def flags(self, ledger: Any, ceiling: Callable[[Any, float], float] = gaussian.gaussian_tpr_ceiling) -> bool:
        """Whether the attack exceeds `ceiling(ledger, FPR)`; `ledger` is a mu, or events for `tradeoff.tpr_ceiling`."""
        fnr, fpr = self.limits
        return 1 - fnr > ceiling(ledger, fpr)

    def epsilon_low(self, delta: float) -> float:
        """Return the lower confidence bound on epsilon of a Gaussian mechanism at this delta."""
        return gaussian.gaussian_epsilon(self.mu_low, delta)


def upper_limit(count: int, total: int, level: float) -> float:
    """Return the one-sided upper limit of a rate at this confidence level (Clopper & Pearson 1934)."""
    return float(betaincinv(count + 1, total - count, level)) if count < total else 1.0


def audit_canaries(
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
    """Attack `count` releases of canaries (m, d) = `shape`, half of them antipodes, with a noise secret of their own.

    Every vector of a canary has a random direction and the norm `STRETCH * clip`. Each release is requested `asks`
    times, as after a crash, and averaged: that reveals more only if its noise is drawn anew. `factor` scales the noise,
    to test the audit. Raises ValueError as `bound_errors` does.
    """
    x = torch.randn(count, *shape, generator=rng, dtype=torch.float64)
    x /= x.norm(dim=2, keepdim=True)
    sign = torch.ones(count, dtype=torch.float64)
    sign[torch.randperm(count, generator=rng)[: count // 2]] = -1
    sent = (STRETCH * clip * sign[:, None, None] * x).float()
    noise = stream(rng, factor)
    seen = sum((send(sent, noise).double() for _ in range(asks)), torch.zeros_like(x)) / asks
    scores = (seen * x).sum((1, 2))
    return bound_errors(scores[sign > 0], scores[sign < 0], confidence=confidence)


def bound_errors(canaries: Tensor, antipodes: Tensor, *, confidence: float = 0.95) -> CanaryAudit:
    """Return the audit of independent scores, which say "canary" above 0.

    Raises ValueError for fewer than four scores on a side, and for scores that are not finite.
    """
    count = min(len(canaries), len(antipodes))
    if count < 4:
        raise ValueError(f"an audit needs at least 8 canaries, half of them antipodes, got {count} of a kind")
    if not (canaries.isfinite().all() and antipodes.isfinite().all()):
        raise ValueError("the scores must be finite numbers")
    return CanaryAudit(
        missed=int((canaries <= 0).sum()),
        taken=int((antipodes > 0).sum()),
        sizes=(len(canaries), len(antipodes)),
        confidence=confidence,
    )


def release_one_by_one(send: Callable[[Tensor, NoiseStream], Tensor]) -> Send:
    """Return the release of n canaries from that of one (m, d), each with noise of its own."""

    def send_all(canaries: Tensor, noise: NoiseStream) -> Tensor:
        return torch.stack([send(x, replace(noise, path=(*noise.path, i))) for i, x in enumerate(canaries)])

    return send_all


def stream(rng: torch.Generator, factor: float = 1.0) -> NoiseStream:
    """Return a noise stream for an audit, scaled by `factor`. Its secret comes from `rng` and protects nothing."""
    secret = bytes(torch.randint(256, (32,), generator=rng).tolist())
    return NoiseStream(secret, ("canaries",)) if factor == 1 else Weakened(secret, ("canaries",), factor)


@dataclass(frozen=True)
class Weakened(NoiseStream):
    """A noise stream that is too quiet, to test an audit."""

    factor: float  # scale of every normal draw

    def normal(self, records: Any, shape: Any) -> Tensor:
        """`NoiseStream.normal`, times the factor."""
        return self.factor * super().normal(records, shape)

    def many_normal(self, count: int, *path: str | int) -> Tensor:
        """`NoiseStream.many_normal`, times the factor."""
        return self.factor * super().many_normal(count, *path)
