"""Lower bound on the epsilon of DP-SGD from one training run.

Each of m canaries is included in the training records or left out by a fair coin. The adversary sees the run's
release, and guesses the coins of the r canaries of which it is surest. That many guesses are right rules out any run
with the trade-off curve of the ledger's steps, or of such steps with less noise (Mahloujifar, Melis & Chaudhuri, ICML
2025, arXiv 2410.22235). It is tighter than the bound for any (epsilon, delta)-DP run (Steinke, Nasr & Jagielski,
NeurIPS 2023, arXiv 2305.08846), which the tests compare it with.

Derivation. Let R be how many guesses are right, p_j = P(R = j), and f-bar(x) the largest true positive rate of any test
at a false positive rate of x, in either direction. Fix a canary i, the other coins and a threshold t. The event "i is
guessed to be b, and with b right at least t guesses are right" depends on the release alone. Where the coin is b, i is
right and R >= t; where it is not, i is wrong and R >= t - 1. So P(i right, R >= t | b) <= f-bar(P(i wrong, R >= t - 1 |
not b)). As f-bar is concave, the means over coins and canaries satisfy it too:

    sum_{j >= t} j p_j / m  <=  f-bar( sum_{j >= t - 1} (r - j) p_j / m )        for t = 1..r

`refuted` takes R >= v with probability a, and the smallest such sums from t = v down: the count is refuted if all p_j
together exceed 1. Moving the mass above v to v only weakens what is required for t <= v; and each sum on the left rises
with those on the right (j / (r - j) rises), so the smallest one at every t gives the smallest total.

A canary is a record whose gradient is known: it pulls at a parameter of its own (a Dirac canary), beyond the clip norm.
One that is left out is replaced by a record without gradient, so that the public number of records, and the sampling
rate, stay the same: the sum moves as if the canary had been removed. Under replace-one its opposite takes its place.

The bound is loose: for an honest run it is far below epsilon. Where the noise is as the events say, scores are
independent: `OneRunAudit.separate` tests them as separate releases, with the power of as many runs.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from raydiff.lookup import check_value
from raydiff.privacy import accountants, tradeoff
from raydiff.privacy.canaries import STRETCH, CanaryAudit, bound_errors
from raydiff.privacy.release import Event, Gaussian
from raydiff.tree import Params

CLOSE = 1e-3  # relative width of the bracket of the noise
# factors of the ledger's noise that the search covers
LEAST = 2.0**-20
MOST = 2.0**20
KINDS = ("bias", "scale", "shift", "weight", "embedding")
"""Parameters of `Pulls`, one for every kind of gradient in `ghost_clipping`, in the order of their canaries."""


@dataclass(frozen=True, kw_only=True)
class OneRunAudit:
    """The adversary's guesses, and what follows from them."""

    canaries: int  # m
    guesses: int  # r, coins that it guessed
    right: int  # v, right guesses
    delta: float  # the delta of all epsilons
    confidence: float  # confidence level of the bounds
    separate: tuple[CanaryAudit, ...] = ()  # audits of the same canaries as separate releases

    def flags(self, events: Sequence[Event]) -> bool:
        """Whether a run with these events is ruled out."""
        level = _level(self.confidence, len(self.separate))
        least_fpr = tradeoff.least_fpr(events)
        if any(audit.flags(events, tradeoff.tpr_ceiling) for audit in self.separate):
            return True
        return refuted(self.canaries, self.guesses, self.right, least_fpr, confidence=level)

    def epsilon_of_noise(self, events: Sequence[Event]) -> float:
        """Return the lower bound on epsilon: that of the largest noise in these events which is not ruled out."""
        return _epsilon_of_noise(self, tuple(events))

    @property
    def most(self) -> "OneRunAudit":
        """The largest result of so many canaries and guesses: every guess right."""
        return replace(self, right=self.guesses, separate=tuple(audit.most for audit in self.separate))


@functools.lru_cache(maxsize=256)
def _epsilon_of_noise(audit: OneRunAudit, events: tuple[Event, ...]) -> float:
    def scaled(factor: float) -> list[Event]:
        return [
            replace(e, std_over_sensitivity=factor * e.std_over_sensitivity) if isinstance(e, Gaussian) else e
            for e in events
        ]

    if not audit.flags([]):  # so few canaries rule nothing out
        return 0.0
    low = high = 1.0  # not ruled out, and ruled out
    while high < MOST and not audit.flags(scaled(high)):
        low = high
        high = 2 * high
    while low > LEAST and audit.flags(scaled(low)):
        low, high = low / 2, low
    while high / low > 1 + CLOSE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if audit.flags(scaled(middle)) else (middle, high)
    return accountants.pld(scaled(high), audit.delta)


def refuted(
    canaries: int, guesses: int, right: int, least_fpr: Callable[[float], float], *, confidence: float = 0.95
) -> bool:
    """Whether so many right guesses are less probable than 1 - confidence in any run of that trade-off curve.

    `least_fpr` is the curve (`tradeoff.least_fpr`).
    """
    level = (1 - confidence) / canaries
    # the inequality's left and right sums
    so_far = level * right
    wrong = level * (guesses - right)
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
) -> OneRunAudit:
    """Guess that the canaries of the highest scores (m,) were included, those of the lowest not, half and half.

    `included` (m,) are the coins. Ties are broken at random. Each of `groups` (m,) bool is audited by itself, with
    `middle` as the threshold.
    """
    m = len(scores)
    check_value("guesses", guesses, 2 <= guesses <= m and guesses % 2 == 0, f"an even number in 2..{m} (the canaries)")
    shuffled = torch.randperm(m, generator=rng)
    order = shuffled[scores[shuffled].sort(stable=True).indices]
    out = included[order[: guesses // 2]]
    inside = included[order[m - guesses // 2 :]]
    right = int((~out).sum() + inside.sum())
    sides = [(scores[group & included] - middle, scores[group & ~included] - middle) for group in groups]
    levels = [_level(confidence, len(groups) if place else 1) for place in range(len(groups))]
    separate = tuple(bound_errors(*side, confidence=level) for side, level in zip(sides, levels, strict=True))
    return OneRunAudit(canaries=m, guesses=guesses, right=right, delta=delta, confidence=confidence, separate=separate)


def _level(confidence: float, tests: int) -> float:
    """Level of each of `tests` that share half of the error probability; the first of `separate` has the other half."""
    return 1 - (1 - confidence) / (2 * tests if tests else 1)


@dataclass(frozen=True)
class Pulls:
    """The canaries' model: parameter i has a gradient from record i alone. Takes the place of a method's model.

    Its parameters are of all KINDS, so that a fault in the gradients of one moves scores.
    """

    canaries: int  # m

    @property
    def vector(self) -> int:
        """k, canaries of bias, scale and shift each."""
        return max(2, self.canaries // 32)

    @property
    def side(self) -> int:
        """Rows and columns of both matrices."""
        return max(1, math.ceil(math.sqrt(max(0, self.canaries - 3 * self.vector) / 2)))

    def init(self, rng: torch.Generator) -> Params:
        """Return all parameters, at 0; `unused` has no canary and no gradient."""
        k = self.vector
        side = self.side
        shapes = {"bias": (k,), "scale": (k,), "shift": (k,), "weight": (side, side), "embedding": (side, side)}
        return {name: torch.zeros(shape) for name, shape in {**shapes, "unused": (k, 1)}.items()}

    def draws(self, count: int, rng: torch.Generator) -> Params:
        """The loss is deterministic."""
        return {"none": torch.zeros(count)}

    def loss(self, params: Params, batch: tuple[Tensor, Tensor], draws: Params, extras: Params) -> Tensor:
        """Return a loss whose gradient is minus a multiple of the image's one entry, at the parameter of the label."""
        images = batch[0].flatten(1).sum(1)
        number = batch[1][:, 0]
        k = self.vector
        side = self.side
        bias, scale, shift = (_one_hot(number - i * k, k) for i in range(3))
        in_weight = number - 3 * k
        in_embedding = number - 3 * k - side * side
        row = _one_hot(in_weight // side, side)
        column = _one_hot(in_weight % side, side)
        chosen = in_embedding // side
        present = _one_hot(in_embedding // side, side).sum(1, keepdim=True)
        pulled = (
            F.linear(torch.zeros_like(bias[:, :1]), params["unused"], params["bias"]) * bias,
            F.layer_norm(scale, (k,), params["scale"], None, 1e-5) * scale,
            F.layer_norm(torch.zeros_like(shift), (k,), None, params["shift"], 1e-5) * shift,
            F.linear(column, params["weight"]) * row,
            F.embedding(chosen.clamp(0, side - 1), params["embedding"]) * present * _one_hot(in_embedding % side, side),
        )
        return -(images * sum((out.sum(1) for out in pulled), torch.zeros_like(images))).mean()

    def scores(self, params: Params) -> Tensor:
        """Return (m,): each canary's parameter."""
        return torch.cat([params[name].flatten() for name in KINDS])[: self.canaries]

    @property
    def groups(self) -> list[Tensor]:
        """(m,) bool each: all canaries, and those of every kind with enough for four on both sides of the coin."""
        params = self.init(torch.Generator())
        kinds = self.scores({name: params[name] + place for place, name in enumerate(KINDS)})
        groups = [torch.ones_like(kinds).bool(), *(kinds == place for place in range(len(KINDS)))]
        return [group for group in groups if group.sum() >= 60]

    def records(self, included: Tensor, *, clip: float, opposite: bool = False) -> tuple[Tensor, Tensor]:
        """Return images (m, 1, 1, 1) and labels (m, 1) of canaries with gradient norm `STRETCH * clip` at least.

        Canaries that are not `included` (m,) are 0, or their `opposite`.
        """
        images = STRETCH * clip * torch.where(included, 1.0, -1.0 if opposite else 0.0)
        return images.view(-1, 1, 1, 1), torch.arange(self.canaries)[:, None]


def _one_hot(index: Tensor, size: int) -> Tensor:
    """(B, size); all 0 where the index (B,) is out of range, which `F.one_hot` refuses."""
    return (index[:, None] == torch.arange(size, device=index.device)).float()


def coins(canaries: int, rng: torch.Generator) -> Tensor:
    """Return (m,) bool: which canaries are included."""
    return torch.rand(canaries, generator=rng) < 0.5
