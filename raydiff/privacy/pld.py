"""Privacy loss distribution of Poisson-sampled Gaussians.

Dominating pairs. Let the noise have standard deviation 1. A record x contributes a vector g to a step's sum where it is
drawn, with probability q, its neighbour g'. Whatever the other records are, the step is no easier to attack than one
number from P or from Q:

| relation | g, g' | P | Q |
|---|---|---|---|
| add_remove, zero_out | norm of g at most r, g' = 0 | (1 - q) N(0, 1) + q N(r, 1) | N(0, 1) |
| replace_one | norms of both at most r | (1 - q) N(0, 1) + q N(r, 1) | (1 - q) N(0, 1) + q N(-r, 1) |

The sensitivity is r in the first row and 2 r in the second; `std_over_sensitivity` is 1 over it.

Proof (the first row is Theorem 11 of Zhu, Dong & Wang, AISTATS 2022, arXiv 2106.08567). The hockey-stick divergence
H_c(P, Q) = sup_A P(A) - c Q(A) is jointly convex, so the other records' draw may be given to the adversary: it moves
the origin. For any set A of outputs, with p = N(g)(A),

    P(A) - c Q(A) = q p + (1 - q)(1 - c) N(0)(A) - c q N(g')(A)

and by Neyman and Pearson N(0)(A) >= Phi(Phi^-1(p) - r) and, in the second row, N(g')(A) >= Phi(Phi^-1(p) - 2 r), for
the distances are at most r and 2 r. The half line of mass p of the table's pair attains both at once. So no H_c exceeds
the pair's where the coefficients of both are not positive: c >= 1 in the second row. For c < 1 there, H_c(P, Q) =
1 - c + c H_{1/c}(Q, P), in which g and g' change places, and the pair is its own mirror image. In the first row N(0)
has the coefficient 1 - q - c altogether; where it is positive, the best A is everything.

A pair that dominates at every c does so in an adaptive composition of steps (Theorem 10 there). The privacy loss
ln P / Q of all steps is a sum, so its distribution is a convolution.

Discretisation ("connect the dots": Doroshenko et al., PoPETs 2022, arXiv 2207.04380): the mass of P and Q between two
grid points goes to these two such that both masses are kept. That spreads the likelihood ratio, so no divergence falls.
What lies beyond the grid, and the rounding of the transforms, is counted in favour of the attack.
"""

import bisect
import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

BEYOND = 1e-13  # target for the mass of losses beyond the grid; the actual mass is bounded and counted
WIDEST = 600.0  # losses above this count as infinite: float64 cannot hold their exponential
ROUNDING = 1e-15  # per step and once more: ten times the measured error of transforms and powers
TILTS = np.geomspace(16, 512, 10)  # exponents of the moments that bound the mass beyond the grid, times its width
WIDTHS = np.geomspace(0.01, 1000, 60)  # exponents of the moments that choose the width


class Steps(NamedTuple):
    """`times` steps with sampling rate q in (0, 1] and `noise` = standard deviation over the sensitivity."""

    rate: float
    noise: float
    times: int


@dataclass(frozen=True, eq=False)
class PrivacyLoss:
    """The privacy loss ln P / Q of all steps together, on a grid, and the masses beyond it."""

    grid: Any  # (n,) losses, ascending, including 0
    inside: Any  # (n,) masses under P
    outside: Any  # (n,) masses under Q: exp(-l) times the mass under P at loss l
    above: float  # mass of P that counts as of infinite loss
    below: float  # mass of Q that counts as of infinitely negative loss

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon >= 0 at which both divergences are at most delta; inf where the grid has none."""
        return max(_solved(*side, delta) for side in self._sides)

    @property
    def _sides(self) -> tuple[tuple[Any, Any, float], ...]:
        """(losses, masses, mass beyond) of P over Q, and of Q over P."""
        return (self.grid, self.inside, self.above), (-self.grid[::-1], self.outside[::-1], self.below)

    @functools.cached_property
    def deltas(self) -> tuple[Any, Any]:
        """Epsilons >= 0 of the grid, and the larger of both divergences there."""
        zero = len(self.grid) // 2
        # a loss equal to epsilon adds nothing at epsilon
        epsilons = self.grid[-zero:]
        both = []
        for losses, masses, beyond in self._sides:
            mass, other = (values[-zero:] for values in _sums(losses, masses))
            both.append(beyond + mass - np.exp(epsilons) * other)
        return epsilons, np.maximum(*both).clip(0.0, 1.0)

    def least_fpr(self, tpr: float) -> float:
        """Return the smallest false positive rate of any test of this true positive rate, with P or Q as the positive.

        From tpr <= delta + e^epsilon fpr and 1 - fpr <= delta + e^epsilon (1 - tpr) at each epsilon >= 0.
        """
        epsilons, deltas = self.deltas
        bounds = np.maximum((tpr - deltas) * np.exp(-epsilons), 1 - deltas - (1 - tpr) * np.exp(epsilons))
        return max(0.0, float(bounds.max()))


def _sums(losses: Any, mass: Any) -> tuple[Any, Any]:
    """The masses of both at each of these losses or above."""
    other = mass * np.exp(-losses)
    return mass[::-1].cumsum()[::-1], other[::-1].cumsum()[::-1]


def _solved(losses: Any, mass: Any, beyond: float, delta: float) -> float:
    """beyond + P(L >= l) - e^epsilon Q(L >= l) = delta, solved between neighbours of the grid, where it holds."""
    if beyond >= delta:
        return math.inf
    losses, mass = losses[losses > 0], mass[losses > 0]  # at epsilon 0 the divergence is what these say
    mass, other = _sums(losses, mass)
    kept = beyond + mass - np.exp(losses) * other <= delta  # at epsilon = that loss; it falls with epsilon
    first = int(np.argmax(kept))
    excess = beyond + float(mass[first]) - delta
    return max(0.0, math.log(excess / float(other[first]))) if excess > 0 else 0.0


@functools.lru_cache(maxsize=16)
def privacy_loss(steps: tuple[Steps, ...], *, replaced: bool) -> PrivacyLoss:
    """Return the distribution of the loss of all these steps; `replaced`: under replace_one."""
    widest = _widest(steps, replaced)
    points = _points(sum(k.times for k in steps))
    grid = (np.arange(points) - points // 2) * (2 * widest / points)
    spectra = np.ones((2, points // 2 + 1), dtype=complex)
    logs = np.zeros((2, len(TILTS)))
    lost = np.zeros(2)
    for kind in steps:
        masses = _masses(grid, kind, replaced)
        logs += kind.times * _log_tilts(*masses)
        for i, mass in enumerate(masses):
            lost[i] += kind.times * max(0.0, 1.0 - float(mass.sum()))
            spectra[i] *= _power(np.fft.rfft(np.fft.ifftshift(mass)), kind.times)
    inside, outside = np.fft.fftshift(np.fft.irfft(spectra, points), axes=1).clip(0.0)
    # The transform wraps around losses above the grid under P, and below it under Q: bounded by Chernoff.
    wrapped = np.exp(np.minimum(0.0, (logs - TILTS).min(axis=1)))
    above, below = lost + wrapped + ROUNDING * (1 + sum(k.times for k in steps))
    # The larger mass of each pair is accurate; the smaller one follows from it.
    positive = grid > 0
    tilt = np.exp(-np.abs(grid))
    both = np.where(positive, inside, outside * tilt), np.where(positive, inside * tilt, outside)
    return PrivacyLoss(grid, *both, float(above), float(below))


def _points(steps: int) -> int:
    """Size of the grid: each step spreads the loss by up to half a cell."""
    return 1 << (16, 18, 20)[bisect.bisect_left((4_000, 160_000), steps)]


def _widest(steps: tuple[Steps, ...], replaced: bool) -> float:
    """A loss that is rarely exceeded under P, nor its negative under Q: Chernoff's bound from approximate moments."""
    logs = sum((k.times * _log_moments(k.rate, k.noise, replaced) for k in steps), np.zeros((2, len(WIDTHS))))
    bounds = (logs - math.log(BEYOND)) / WIDTHS
    return float(np.clip(bounds.min(axis=1).max(), 1e-9, WIDEST))


@functools.lru_cache(maxsize=2**12)
def _log_moments(rate: float, noise: float, replaced: bool) -> Any:
    """(2, tilts): ln E e^(t loss) of one step under P, and of minus the loss under Q, at each of `WIDTHS`."""
    x, (p, q) = _densities(Steps(rate, noise, 1), replaced)
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = np.nan_to_num(np.log(p) - np.log(q), nan=0.0, posinf=WIDEST, neginf=-WIDEST)
    logs = []
    for density, towards in ((p, 1), (q, -1)):
        exponents = np.outer(WIDTHS, towards * loss)
        highest = exponents.max(axis=1)
        with np.errstate(divide="ignore"):
            logs.append(highest + np.log(np.exp(exponents - highest[:, None]) @ (density * (x[1] - x[0]))))
    return np.stack(logs)


def _densities(kind: Steps, replaced: bool) -> tuple[Any, tuple[Any, Any]]:
    """Noised values, and the densities of P and Q there."""
    r = _distance(kind, replaced)
    x = np.linspace(-12 - 2 * r, 12 + 2 * r, 8192)
    absent, present, other = (np.exp(-((x - at) ** 2) / 2) / math.sqrt(2 * math.pi) for at in (0.0, r, -r))
    q = (1 - kind.rate) * absent + kind.rate * other if replaced else absent
    return x, ((1 - kind.rate) * absent + kind.rate * present, q)


def _distance(kind: Steps, replaced: bool) -> float:
    """r: how far a record moves the sum at most, over the noise's standard deviation."""
    return 1 / (2 * kind.noise) if replaced else 1 / kind.noise


def _masses(grid: Any, kind: Steps, replaced: bool) -> tuple[Any, Any]:
    """The masses of P and Q of one step on the grid, split between both ends of each cell such that both are kept.

    The loss rises in the noised value, so its cells are those of the value.
    """
    r = _distance(kind, replaced)
    rate = kind.rate
    ends = _at_replaced(grid, rate, r) if replaced else _at_in_or_out(grid, rate, r)
    absent = _cells(ends)
    p = (1 - rate) * absent + rate * _cells(ends - r)
    q = (1 - rate) * absent + rate * _cells(ends + r) if replaced else absent
    width = grid[1] - grid[0]
    with np.errstate(invalid="ignore", divide="ignore"):
        above = np.nan_to_num(np.log(p) - np.log(q) - grid[:-1], nan=0.0).clip(0.0, width)  # where in the cell P / Q is
    fraction = np.expm1(-above) / math.expm1(-width)  # of P's mass to the upper end
    spread = []
    for mass, upper in ((p, fraction), (q, fraction * np.exp(above - width))):
        at = np.append(mass * (1 - upper), 0.0)
        at[1:] += mass * upper
        spread.append(at)
    return spread[0], spread[1]


def _at_in_or_out(loss: Any, rate: float, r: float) -> Any:
    """The noised value x of that loss, ln(1 - q + q e^(r x - r^2 / 2)); no loss is below ln(1 - q)."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        at = (loss + np.log1p(-(1 - rate) * np.exp(-loss)) - math.log(rate)) / r + r / 2
    return np.where(np.isnan(at), -np.inf, at)


def _at_replaced(loss: Any, rate: float, r: float) -> Any:
    """The same of ln(1 - q + k e^(r x)) - ln(1 - q + k e^(-r x)) with k = q e^(-r^2 / 2), which is odd in x.

    With y = e^(r x - loss / 2) it is the quadratic equation y - 1 / y = 2 sinh(loss / 2) (1 - q) / k.
    """
    half = np.abs(loss) / 2
    with np.errstate(divide="ignore"):
        log = np.log(np.sinh(half)) + (math.log1p(-rate) if rate < 1 else -math.inf) - math.log(rate) + r * r / 2
    at = (half + np.where(log < 20, np.arcsinh(np.exp(np.minimum(log, 20))), log + math.log(2))) / r
    return np.sign(loss) * at


def _cells(ends: Any) -> Any:
    """The standard normal mass between neighbours of these ascending numbers, exact to its own size in both tails."""
    from scipy.special import ndtr

    low = ends[:-1]
    high = ends[1:]
    flip = low > 0  # The upper tail is the lower one by symmetry.
    return ndtr(np.where(flip, -low, high)) - ndtr(np.where(flip, -high, low))


def _log_tilts(inside: Any, outside: Any) -> Any:
    """(2, tilts): ln E e^(t loss) of masses on the grid under P, and of minus the loss under Q, its width the unit."""
    tilted = _tilted(len(inside))
    with np.errstate(divide="ignore"):  # all the mass is where e^(t loss) is nothing
        return TILTS + np.log([tilted[:, :-1] @ inside, tilted[:, 1:] @ outside[::-1]])


@functools.lru_cache(maxsize=1)
def _tilted(points: int) -> Any:
    """(tilts, points + 1): e^(t (u - 1)) for each of `TILTS` and u from -1 to 1, the grid over its width."""
    return np.exp(np.outer(TILTS, np.linspace(-2.0, 0.0, points + 1)))


def _power(values: Any, times: int) -> Any:
    """values ** times by squaring: numpy's own takes a logarithm of each."""
    out = np.ones_like(values)
    while times:
        if times & 1:
            out *= values
        if times := times >> 1:
            values = values * values
    return out
