"""The floating-point attack: do the bytes of a release rule a record out?

In a float32 release signal + noise the noise is a float32, or a float32 normal draw times the standard deviation. Who
knows two candidates for the record checks for each whether such a draw exists (Mironov, CCS 2012); no secret is needed.
A way to draw noise (`explanations`) is considered where it explains every release by at least one candidate; then a
candidate that it does not explain was not sent. A likelihood attack guesses the nearer signal.

Under mu-Gaussian DP the rate of right answers exceeds that of wrong ones by 2 Phi(mu / 2) - 1 at most, so an audit is
flagged where the Clopper-Pearson limits of both rates are further apart.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from raydiff.privacy.canaries import Weakened, stream, upper_limit
from raydiff.seeding import NoiseStream
from raydiff.tree import Tensors

Send = Callable[[Tensor, NoiseStream], Tensor]
"""(which candidate of each pair is sent (n,) bool, noise) -> released numbers (n, d)."""
LEVEL = 0.995  # of each one-sided limit
NEIGHBOURS = 3  # float32 numbers tried on either side of the implied draw


@dataclass(frozen=True, kw_only=True)
class FloatAttack:
    """Results of the attacks on `count` releases, each of one of two candidates."""

    count: int
    named: int  # releases whose bytes rule out the candidate that was not sent, and not the other
    misnamed: int  # releases whose bytes rule out the candidate that was sent, and not the other
    nearer: int  # releases that are nearer to the signal of the candidate that was sent

    def flags(self, mu: float) -> bool:
        """Whether an attack exceeds what mu-Gaussian DP allows."""
        rates = ((self.named, self.misnamed), (self.nearer, self.count - self.nearer))
        return any(self._advantage(*pair) > math.erf(mu / math.sqrt(8)) for pair in rates)

    def _advantage(self, right: int, wrong: int) -> float:
        """Lower limit of the rate of right answers minus the upper limit of that of wrong ones."""
        return 1 - upper_limit(self.count - right, self.count, LEVEL) - upper_limit(wrong, self.count, LEVEL)


def audit(send: Send, *, count: int, rng: torch.Generator, std: float | None = None) -> FloatAttack:
    """Attack `count` releases, each of a random one of two candidates, with a noise secret of their own. With noise of
    scale 0 `send` gives the candidates' signals. With `std`, the noise's standard deviation, noise that is a float32
    draw times it is tried too; without it little is ruled out where a signal is far below its noise."""
    chosen = torch.rand(count, generator=rng) < 0.5
    secret = stream(rng)
    released = send(chosen, secret)
    silent = Weakened(secret.secret, secret.path, 0.0)
    other, sent = (send(which, silent) for which in (~chosen, chosen))
    explained = [torch.stack(list(explanations(released, signal, std))).all(-1) for signal in (sent, other)]
    explained = [which[(explained[0] | explained[1]).all(1)] for which in explained]
    only_sent, only_other = ((a & ~b).any(0) for a, b in (explained, explained[::-1]))
    distances = [(released.double() - signal.double()).square().sum(1) for signal in (sent, other)]
    return FloatAttack(
        count=count,
        named=int((only_sent & ~only_other).sum()),
        misnamed=int((only_other & ~only_sent).sum()),
        nearer=int((distances[0] < distances[1]).sum()),
    )


def of_uploads(upload: Callable[[bool, NoiseStream], Tensors], pairs: int) -> Send:
    """Return the `Send` of `upload(which, noise)`, a client's upload with one of two neighbouring data sets."""

    def send(which: Tensor, noise: NoiseStream) -> Tensor:
        streams = [replace(noise, path=(*noise.path, i)) for i in range(pairs)]
        sent = [upload(bool(one), stream) for one, stream in zip(which, streams, strict=True)]
        return torch.stack([torch.cat([v[k].flatten().double() for k in sorted(v)]) for v in sent])

    return send


def explanations(released: Tensor, signal: Tensor, std: float | None = None) -> list[Tensor]:
    """Return for each way to draw noise (n, d) bool: whether it can turn the signal into the released number. A float32
    that is added; with `std` also a float32 draw times std in float32, added, and the same in float64, rounded at the
    end."""
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
    for direction in (-math.inf, math.inf):
        at = near[0]
        for _ in range(NEIGHBOURS):
            at = torch.nextafter(at, torch.full_like(at, direction))
            near.append(at)
    return near
