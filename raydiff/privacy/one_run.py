"""How much privacy does DP-SGD leave at most? A lower bound on epsilon from ONE run (Steinke, Nasr & Jagielski, NeurIPS
2023, arXiv 2305.08846).

Each of m canaries is put among the training records or left out by a fair coin of its own. The adversary sees what the
run releases, and guesses the coins of the canaries of which it is surest. Were the run (epsilon, delta)-DP, the number
of right guesses would hardly exceed that of randomised response: Corollary 5.4 and the p-value of appendix D.

A canary is a record whose gradient is known: it pulls at one parameter that is its own (a Dirac canary), more strongly
than the clip norm. One that is left out leaves a record without gradient in its place, so that the number of records,
which is public, and with it the sampling rate say nothing: the sum moves as if the canary had been removed. Under
replace-one its opposite takes its place.

The bound is loose by nature: it cannot exceed `Bits.epsilon_most`, and of an honest run it is far below epsilon. It is
meant for small targets (epsilon of at most 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raydiff.tree import Params

STRENGTH = 10.0
"""A canary's gradient norm over the clip norm: at 1 a forgotten clip would not show."""


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
    """The delta of both bounds."""
    confidence: float
    """Of `epsilon_low`."""

    @property
    def epsilon_low(self) -> float:
        """Lower confidence bound on epsilon."""
        return epsilon_low(self.canaries, self.guesses, self.right, delta=self.delta, confidence=self.confidence)

    @property
    def epsilon_most(self) -> float:
        """The largest bound that so many canaries and guesses could show: every guess right."""
        return epsilon_low(self.canaries, self.guesses, self.guesses, delta=self.delta, confidence=self.confidence)

    def flags(self, epsilon: float) -> bool:
        """Whether a run of this epsilon is ruled out."""
        return self.epsilon_low > epsilon


def guess(
    scores: Tensor, included: Tensor, *, guesses: int, delta: float, rng: torch.Generator, confidence: float = 0.95
) -> Bits:
    """Guess that the canaries of the highest scores (m,) were included, those of the lowest not, half and half.

    `included` (m,) are the coins. Equal scores are told apart by chance. Raises ValueError for a bad number of guesses.
    """
    m = len(scores)
    if not 2 <= guesses <= m or guesses % 2:
        raise ValueError(f"guesses must be an even number in 2..{m} (the canaries), got {guesses}")
    shuffled = torch.randperm(m, generator=rng)
    order = shuffled[scores[shuffled].sort(stable=True).indices]
    out, inside = included[order[: guesses // 2]], included[order[m - guesses // 2 :]]
    right = int((~out).sum() + inside.sum())
    return Bits(canaries=m, guesses=guesses, right=right, delta=delta, confidence=confidence)


def epsilon_low(canaries: int, guesses: int, right: int, *, delta: float, confidence: float = 0.95) -> float:
    """The largest epsilon, to within 1e-6 from below, that so many right guesses rule out; 0 where none is.

    Raises ValueError unless 0 <= right <= guesses <= canaries, 0 <= delta < 1 and 0 < confidence < 1.
    """
    if not (0 <= right <= guesses <= canaries and guesses):
        raise ValueError(
            f"right guesses, guesses and canaries must be ordered, got {right}, {guesses} and {canaries} canaries"
        )
    if not (0 <= delta < 1 and 0 < confidence < 1):
        raise ValueError(f"delta must be in [0, 1) and confidence in (0, 1), got {delta} and {confidence}")
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

    It stands where a method or a `PrivateGradient` wants a model, so that the rest of their code is the real one.
    """

    canaries: int
    """m: how many parameters there are."""

    def init(self, rng: torch.Generator) -> Params:
        """All parameters at 0."""
        return {"w": torch.zeros(self.canaries)}

    def draws(self, count: int, rng: torch.Generator) -> Params:
        """Nothing in the loss is random."""
        return {"none": torch.zeros(count)}

    def loss(self, params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        """A record's gradient: minus its image's one entry, at the parameter that its label names."""
        images, labels = batch
        return -(params["w"][labels[:, 0]] * images.flatten(1).sum(1)).mean()

    def records(self, included: Tensor, *, clip: float, opposite: bool = False) -> tuple[Tensor, Tensor]:
        """Images (m, 1, 1, 1) and labels (m, 1): the canaries of gradient norm `STRENGTH * clip`, and where they are
        left out 0, or their `opposite`."""
        instead = -1.0 if opposite else 0.0
        images = STRENGTH * clip * torch.where(included, 1.0, instead)
        return images.view(-1, 1, 1, 1), torch.arange(self.canaries)[:, None]


def coins(canaries: int, rng: torch.Generator) -> Tensor:
    """(m,) bool: which canaries are included."""
    return torch.rand(canaries, generator=rng) < 0.5
