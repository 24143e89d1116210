"""How much privacy does DP-SGD leave at most? Lower bounds from ONE run.

Each of m canaries is put among the training records or left out by a fair coin of its own. The adversary sees what the
run releases, and guesses the coins of the r canaries of which it is surest. Two bounds say of how many right guesses
there would hardly be more:

- of any (epsilon, delta)-DP run (Steinke, Nasr & Jagielski, NeurIPS 2023, arXiv 2305.08846: Corollary 5.4 and the
  p-value of appendix D);
- of a run whose trade-off curve is that of the ledger's own steps, or of such steps with less noise (Mahloujifar, Melis
  & Chaudhuri, ICML 2025, arXiv 2410.22235). It is the tighter one, and what flags a run.

The second one, derived. Let R be how many guesses are right, p_j = P(R = j), and f-bar(x) the largest true positive
rate of any test at a false positive rate of x, either way. Fix a canary i, the other coins and a threshold t. Whether
"i is guessed to be b, and with b right at least t guesses are right" happens is decided by what was released; where the
coin is b, i is right and R >= t, and where it is not, i is wrong and R >= t - 1. So P(i right, R >= t | b) <=
f-bar(P(i wrong, R >= t - 1 | not b)), and as f-bar is concave, the means over coins and canaries keep to it too:

    sum_{j >= t} j p_j / m  <=  f-bar( sum_{j >= t - 1} (r - j) p_j / m )        for t = 1..r

Were R >= v with probability a, then these sums, taken from t = v down, would have to be so large that all p_j together
exceed 1, or they would not; `refuted` takes the smallest ones. Moving what is above v to v only eases what is asked
of t <= v; and each sum on the left is a rising function of those on the right (summation by parts: j / (r - j) rises),
so that the smallest one at every t gives the smallest total.

A canary is a record whose gradient is known: it pulls at one parameter that is its own (a Dirac canary), more strongly
than the clip norm. One that is left out leaves a record without gradient in its place, so that the number of records,
which is public, and with it the sampling rate say nothing: the sum moves as if the canary had been removed. Under
replace-one its opposite takes its place.

Both bounds are loose: of an honest run they are far below epsilon. Where the noise is what the events say, scores are
independent: `Bits.alone` tests them as releases of their own, with the power of as many runs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from raydiff.privacy import accountants
from raydiff.privacy import tradeoff as losses
from raydiff.privacy.canaries import STRETCH, CanaryAudit, bound
from raydiff.privacy.release import Event, Gaussian
from raydiff.tree import Params

CLOSE = 1e-3
"""Relative distance of two noises between which the bound lies."""
LEAST, MOST = 2.0**-20, 2.0**20
"""Factors of the ledger's noise between which it is looked for."""
KINDS = ("bias", "scale", "shift", "weight", "embedding")
"""Parameters of `Pulls`, one for every kind of gradient that `layers` computes, in the order of their canaries."""


@dataclass(frozen=True, kw_only=True)
class Bits:
    """What the adversary guessed, and what follows."""

    canaries: int
    """m."""
    guesses: int
    """How many coins it guessed: r."""
    right: int
    """How many of these rightly: v."""
    delta: float
    """The delta of all epsilons."""
    confidence: float
    """Of the bounds."""
    alone: tuple[CanaryAudit, ...] = ()
    """The same canaries as releases of their own, with independent scores where the noise is what the events say."""

    @property
    def epsilon_low(self) -> float:
        """Lower confidence bound on epsilon, whatever the mechanism is."""
        return epsilon_low(self.canaries, self.guesses, self.right, delta=self.delta, confidence=self.confidence)

    def flags(self, events: Sequence[Event]) -> bool:
        """Whether a run that costs a record what these events say is ruled out."""
        level, least_fpr = _level(self.confidence, len(self.alone)), losses.least_fpr(events)
        if any(audit.flags(events, losses.tpr_ceiling) for audit in self.alone):
            return True
        return refuted(self.canaries, self.guesses, self.right, least_fpr, confidence=level)

    def epsilon_of_noise(self, events: Sequence[Event]) -> float:
        """Lower confidence bound on epsilon of a run of such events with any noise: that of the most noise which is not
        ruled out."""
        return _epsilon_of_noise(self, tuple(events))

    @property
    def most(self) -> Bits:
        """What so many canaries and guesses could show: every guess right."""
        return replace(self, right=self.guesses, alone=tuple(audit.most for audit in self.alone))


@functools.lru_cache(maxsize=256)
def _epsilon_of_noise(bits: Bits, events: tuple[Event, ...]) -> float:
    def scaled(factor: float) -> list[Event]:
        return [
            replace(e, std_over_sensitivity=factor * e.std_over_sensitivity) if isinstance(e, Gaussian) else e
            for e in events
        ]

    if not bits.flags([]):  # nothing that is sent could be ruled out by so few
        return 0.0
    low = high = 1.0  # not ruled out, and ruled out
    while high < MOST and not bits.flags(scaled(high)):
        low, high = high, 2 * high
    while low > LEAST and bits.flags(scaled(low)):
        low, high = low / 2, low
    while high / low > 1 + CLOSE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if bits.flags(scaled(middle)) else (middle, high)
    return accountants.pld(scaled(high), bits.delta)


def refuted(
    canaries: int, guesses: int, right: int, least_fpr: Callable[[float], float], *, confidence: float = 0.95
) -> bool:
    """Whether so many right guesses are less probable than 1 - confidence in any run of that trade-off curve, given by
    the smallest false positive rate at a true positive rate. Raises ValueError as `epsilon_low`."""
    _check(canaries, guesses, right, confidence=confidence)
    level = (1 - confidence) / canaries
    so_far, wrong = level * right, level * (guesses - right)  # the inequality's sums: on the left, on the right
    for j in range(right - 1, -1, -1):
        if so_far + wrong > guesses / canaries:  # all p_j times r / m
            return True
        needed = max(wrong, least_fpr(so_far))
        so_far += j / (guesses - j) * (needed - wrong)
        wrong = needed
    return so_far + wrong > guesses / canaries


def guess(
    scores: Tensor,
    included: Tensor,
    *,
    guesses: int,
    delta: float,
    rng: torch.Generator,
    confidence: float = 0.95,
    groups: Sequence[Tensor] = (),
    middle: float = 0.0,
) -> Bits:
    """Guess that the canaries of the highest scores (m,) were included, those of the lowest not, half and half.

    `included` (m,) are the coins. Equal scores are told apart by chance. Each of `groups` (m,) bool is audited `alone`,
    with `middle` as the threshold. Raises ValueError for a bad number of guesses.
    """
    m = len(scores)
    if not 2 <= guesses <= m or guesses % 2:
        raise ValueError(f"guesses must be an even number in 2..{m} (the canaries), got {guesses}")
    shuffled = torch.randperm(m, generator=rng)
    order = shuffled[scores[shuffled].sort(stable=True).indices]
    out, inside = included[order[: guesses // 2]], included[order[m - guesses // 2 :]]
    right = int((~out).sum() + inside.sum())
    sides = [(scores[group & included] - middle, scores[group & ~included] - middle) for group in groups]
    levels = [_level(confidence, len(groups) if place else 1) for place in range(len(groups))]
    alone = tuple(bound(*side, confidence=level) for side, level in zip(sides, levels, strict=True))
    return Bits(canaries=m, guesses=guesses, right=right, delta=delta, confidence=confidence, alone=alone)


def _level(confidence: float, tests: int) -> float:
    """Of each of so many tests that share half of what the confidence leaves; the first of `alone` has the other."""
    return 1 - (1 - confidence) / (2 * tests if tests else 1)


def epsilon_low(canaries: int, guesses: int, right: int, *, delta: float, confidence: float = 0.95) -> float:
    """The largest epsilon, to within 1e-6 from below, that so many right guesses rule out; 0 where none is.

    Raises ValueError unless 0 <= right <= guesses <= canaries, 0 <= delta < 1 and 0 < confidence < 1.
    """
    _check(canaries, guesses, right, delta=delta, confidence=confidence)
    low, high, level = 0.0, 1.0, 1 - confidence
    if p_value(canaries, guesses, right, epsilon=0.0, delta=delta) >= level:
        return 0.0
    while p_value(canaries, guesses, right, epsilon=high, delta=delta) < level:
        low, high = high, 2 * high
    while high - low > 1e-6:
        middle = (low + high) / 2
        refuted = p_value(canaries, guesses, right, epsilon=middle, delta=delta) < level
        low, high = (middle, high) if refuted else (low, middle)
    return low


def _check(canaries: int, guesses: int, right: int, *, delta: float = 0.0, confidence: float) -> None:
    if not (0 <= right <= guesses <= canaries and guesses):
        raise ValueError(
            f"right guesses, guesses and canaries must be ordered, got {right}, {guesses} and {canaries} canaries"
        )
    if not (0 <= delta < 1 and 0 < confidence < 1):
        raise ValueError(f"delta must be in [0, 1) and confidence in (0, 1), got {delta} and {confidence}")


def p_value(canaries: int, guesses: int, right: int, *, epsilon: float, delta: float) -> float:
    """The largest probability of so many right guesses on any (epsilon, delta)-DP run: Corollary 5.4.

    P(R >= v) + 2 m delta max_i P(v > R >= v - i) / i for R ~ Binomial(r, e^epsilon / (1 + e^epsilon)).
    """
    from scipy.stats import binom

    of_one = 1 / (1 + math.exp(-epsilon))
    alpha = 0.0
    if delta and right:
        below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, of_one))
        alpha = float((below / np.arange(1, right + 1)).max())
    return min(1.0, float(binom.sf(right - 1, guesses, of_one)) + 2 * canaries * delta * alpha)


@dataclass(frozen=True)
class Pulls:
    """The model of the canaries: parameter i is pulled at by record i, and by nothing else.

    It stands where a method or a `PrivateGradient` wants a model, so that the rest of their code is the real one. Its
    parameters are of all KINDS, so that a fault in the gradients of one moves scores. Most are entries of matrices,
    which cost a record the root of their number.
    """

    canaries: int
    """m."""

    @property
    def vector(self) -> int:
        """k: canaries of the bias, of the scale and of the shift."""
        return max(2, self.canaries // 32)

    @property
    def side(self) -> int:
        """Rows and columns of either matrix."""
        return max(1, math.ceil(math.sqrt(max(0, self.canaries - 3 * self.vector) / 2)))

    def init(self, rng: torch.Generator) -> Params:
        """All parameters at 0; `unused` has no canary, and no gradient."""
        k, side = self.vector, self.side
        shapes = {"bias": (k,), "scale": (k,), "shift": (k,), "weight": (side, side), "embedding": (side, side)}
        return {name: torch.zeros(shape) for name, shape in {**shapes, "unused": (k, 1)}.items()}

    def draws(self, count: int, rng: torch.Generator) -> Params:
        """Nothing in the loss is random."""
        return {"none": torch.zeros(count)}

    def loss(self, params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        """A record's gradient: minus a multiple of its image's one entry, at the parameter that its label names."""
        images, number = batch[0].flatten(1).sum(1), batch[1][:, 0]
        k, side = self.vector, self.side
        bias, scale, shift = (_one_hot(number - i * k, k) for i in range(3))
        in_weight, in_embedding = number - 3 * k, number - 3 * k - side * side
        row, column = _one_hot(in_weight // side, side), _one_hot(in_weight % side, side)
        chosen, known = in_embedding // side, _one_hot(in_embedding // side, side).sum(1, keepdim=True)
        pulled = (
            F.linear(torch.zeros_like(bias[:, :1]), params["unused"], params["bias"]) * bias,
            F.layer_norm(scale, (k,), params["scale"], None, 1e-5) * scale,
            F.layer_norm(torch.zeros_like(shift), (k,), None, params["shift"], 1e-5) * shift,
            F.linear(column, params["weight"]) * row,
            F.embedding(chosen.clamp(0, side - 1), params["embedding"]) * known * _one_hot(in_embedding % side, side),
        )
        return -(images * sum((out.sum(1) for out in pulled), torch.zeros_like(images))).mean()

    def scores(self, params: Params) -> Tensor:
        """(m,): each canary's parameter."""
        return torch.cat([params[name].flatten() for name in KINDS])[: self.canaries]

    @property
    def groups(self) -> list[Tensor]:
        """(m,) bool each: all canaries, and those of every kind, where coins leave four or more on both sides."""
        params = self.init(torch.Generator())
        kinds = self.scores({name: params[name] + place for place, name in enumerate(KINDS)})
        groups = [torch.ones_like(kinds).bool(), *(kinds == place for place in range(len(KINDS)))]
        return [group for group in groups if group.sum() >= 60]

    def records(self, included: Tensor, *, clip: float, opposite: bool = False) -> tuple[Tensor, Tensor]:
        """Images (m, 1, 1, 1) and labels (m, 1): the canaries of gradient norm `STRETCH * clip` at least, and where
        they are left out 0, or their `opposite`."""
        instead = -1.0 if opposite else 0.0
        images = STRETCH * clip * torch.where(included, 1.0, instead)
        return images.view(-1, 1, 1, 1), torch.arange(self.canaries)[:, None]


def _one_hot(index: Tensor, size: int) -> Tensor:
    """(B, size); all 0 where the index (B,) is outside. (`F.one_hot` would refuse that.)"""
    return (index[:, None] == torch.arange(size, device=index.device)).float()


def coins(canaries: int, rng: torch.Generator) -> Tensor:
    """(m,) bool: which canaries are included."""
    return torch.rand(canaries, generator=rng) < 0.5
