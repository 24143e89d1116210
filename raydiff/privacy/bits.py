"""Do the bytes of a release rule a record out? The floating-point attack on noise, as an audit.

A float32 number that was made as signal + noise is not any number: the noise was a float32 itself, or a float32 normal
draw times the standard deviation, and whoever knows two candidates for the record asks for each whether such a draw
exists (Mironov, CCS 2012). No secret is needed. A way to draw noise (`explanations`) is believed where it explains
every release by one of its candidates at least; then a candidate that it does not explain was not sent. Beside it the
likelihood attack guesses the nearer signal, which is the best attack on Gaussian noise. Without the standard deviation
only float32 sums are tried, which rule little out where a signal is far below its noise.

Under mu-Gaussian DP no test tells the two apart with a rate of right answers more than 2 Phi(mu / 2) - 1 above that of
wrong ones, so an audit is flagged where Clopper-Pearson limits of both rates are further apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from raydiff.privacy.canaries import Weakened, stream
from raydiff.seeding import NoiseStream
from raydiff.tree import Tensors

Send = Callable[[Tensor, NoiseStream], Tensor]
"""(which candidate of each pair is sent (n,) bool, noise) -> what leaves, (n, d)."""
NEIGHBOURS = 3
"""Float32 numbers on either side of the implied draw that are tried."""


@dataclass(frozen=True, kw_only=True)
class BitsAudit:
    """What the attacks achieved on `count` releases, each of one of two candidates."""

    count: int
    named: int
    """Releases whose bytes rule out the candidate that was not sent, and not the other."""
    misnamed: int
    """Releases whose bytes rule out the candidate that was sent, and not the other."""
    nearer: int
    """Releases that are nearer to the signal of the candidate that was sent."""
    confidence: float
    """Of each limit."""

    def flags(self, mu: float) -> bool:
        """Whether one of the attacks does what mu-Gaussian DP rules out."""
        allowed = math.erf(mu / math.sqrt(8))
        return any(self._advantage(*rates) > allowed for rates in ((self.named, self.misnamed), (self.nearer, None)))

    def _advantage(self, right: int, wrong: int | None) -> float:
        """Lower limit of the rate of right answers minus that of wrong ones; wrong None: all the others."""
        from scipy.stats import binomtest

        def limits(k: int) -> tuple[float, float]:
            low, high = binomtest(k, self.count).proportion_ci(self.confidence)
            return float(low), float(high)

        return limits(right)[0] - (1 - limits(right)[0] if wrong is None else limits(wrong)[1])


def audit(
    send: Send, *, count: int, rng: torch.Generator, std: float | None = None, confidence: float = 0.99
) -> BitsAudit:
    """Attack `count` releases, each of a random one of two candidates, under a noise secret of its own.

    The candidates' signals are what `send` gives under noise of scale 0. With the noise's standard deviation the attack
    also asks whether the noise is that times a float32 draw.
    """
    chosen = torch.rand(count, generator=rng) < 0.5
    secret = stream(rng)
    released = send(chosen, secret)
    silent = Weakened(secret.secret, secret.path, 0.0)
    other, sent = (send(which, silent) for which in (~chosen, chosen))
    explained = [torch.stack(list(explanations(released, signal, std))).all(-1) for signal in (sent, other)]
    explained = [which[(explained[0] | explained[1]).all(1)] for which in explained]
    only_sent, only_other = ((a & ~b).any(0) for a, b in (explained, explained[::-1]))
    distances = [(released.double() - signal.double()).square().sum(1) for signal in (sent, other)]
    return BitsAudit(
        count=count,
        named=int((only_sent & ~only_other).sum()),
        misnamed=int((only_other & ~only_sent).sum()),
        nearer=int((distances[0] < distances[1]).sum()),
        confidence=confidence,
    )


def of_uploads(upload: Callable[[bool, NoiseStream], Tensors], pairs: int) -> Send:
    """What leaves with a client's uploads: `upload(which, noise)` is one, with one of two neighbouring data sets."""

    def send(which: Tensor, noise: NoiseStream) -> Tensor:
        streams = [replace(noise, path=(*noise.path, i)) for i in range(pairs)]
        sent = [upload(bool(one), stream) for one, stream in zip(which, streams, strict=True)]
        return torch.stack([torch.cat([v[k].flatten().double() for k in sorted(v)]) for v in sent])

    return send


def explanations(released: Tensor, signal: Tensor, std: float | None = None) -> list[Tensor]:
    """For each way to draw noise, (n, d) bool: whether it can give the released number from the signal.

    A float32 that is added; with `std` a float32 draw times std in float32, added; the same in float64, rounded at the
    end.
    """
    y, a = released.float(), signal.float()
    exact = released.double() - signal.double()
    added = torch.zeros_like(y, dtype=torch.bool)
    scaled, rounded = added.clone(), added.clone()
    for noise in _near(exact):
        fits = a + noise == y
        added |= fits
        if std is not None:
            draws = _near(noise.double() / std)
            scaled |= fits & torch.stack([draw * std == noise for draw in draws]).any(0)
    if std is None:
        return [added]
    for draw in _near(exact / std):
        rounded |= (signal.double() + std * draw.double()).float() == y
    return [added, scaled, rounded]


def _near(exact: Tensor) -> list[Tensor]:
    """The float32 numbers next to float64 ones, nearest first."""
    near = [exact.float()]
    for towards in (-math.inf, math.inf):
        at = near[0]
        for _ in range(NEIGHBOURS):
            at = torch.nextafter(at, torch.full_like(at, towards))
            near.append(at)
    return near
