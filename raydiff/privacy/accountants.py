"""From privacy events to epsilon, and from an epsilon to PFDM's depth.

An accountant is a function `(events, delta) -> epsilon` over the events that one record (or client) is
exposed to. It composes events of one unit, relation and trust only, gives `math.inf` for a value sent without
protection or with noise 0, 0.0 for nothing, and raises `Unsupported` where it has no theorem: it never
guesses.

| name | bound | source |
|---|---|---|
| exact | the smallest epsilon of unsampled Gaussians | Balle & Wang 2018 (arXiv 1805.06530), Theorem 8 |
| pld | the same of sampled ones, on a grid of privacy losses | `pairs`, with the proof |
| rdp | Renyi DP, best order, improved conversion | Canonne, Kamath & Steinke 2020 (arXiv 2004.00010) |
| theorem | Renyi DP, closed form | PFDM (Patel et al., CVPR 2026, arXiv 2504.00952), Theorem 5.1 |

| relation | unsampled | Poisson sampling |
|---|---|---|
| add_remove, zero_out | all | pld, rdp |
| replace_one | all | pld, where the unit adds a vector of norm at most half the sensitivity |

Of sums of discrete Gaussians (trust aggregate) only their Renyi divergence is known: rdp and theorem cover them.

All see unsampled Gaussians through mu = sensitivity / standard deviation, or tau = mu^2 / 2. Under
composition mu^2 and tau add up, also where a value depends on those before it (Dong, Roth & Su 2019, arXiv
1905.02383). exact = pld <= rdp <= theorem; of sampled ones pld <= rdp.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeVar

from torch import Tensor

from raydiff.privacy import pairs
from raydiff.privacy.release import DiscreteGaussian, Event, Gaussian, NonPrivate, Nothing

Accountant = Literal["exact", "rdp", "theorem"]
"""Of what is not sampled, where pld is exact."""
T = TypeVar("T")
Group = tuple[str, str, str]
"""(unit, relation, trust): what an epsilon speaks of."""

ORDERS = [1 + n / 10 for n in range(1, 100)] + [float(n) for n in (*range(11, 64), 96, 128, 192, 256, 512)]
"""Renyi orders for Poisson-sampled steps, whose divergence has no closed form in the order."""
ROUNDING = 1e-6
"""More than an epsilon is off by the rounding of its divergence."""


class Unsupported(ValueError):
    """No theorem of this accountant covers these events."""


def exact(events: Sequence[Event], delta: float) -> float:
    """The smallest epsilon at which the composed Gaussians are (epsilon, delta)-DP.

    Raises ValueError for events that do not compose, Unsupported for sampled and discrete ones.
    """
    _check_delta(delta)
    return _exact(gaussian_dp_mu(events), delta)


def pld(events: Sequence[Event], delta: float) -> float:
    """The smallest epsilon, from the distribution of the privacy loss; covers Poisson sampling.

    Without sampling it is `exact`; else above the truth by less than a thousandth of it. Raises ValueError for events
    that do not compose, Unsupported for discrete ones.
    """
    _check_delta(delta)
    kinds = kinds_of(events)
    return math.inf if kinds is None else _pld(*kinds, delta)


def rdp(events: Sequence[Event], delta: float) -> float:
    """Renyi DP at the best order; covers Poisson sampling under zero_out and add_remove.

    Raises ValueError for events that do not compose, Unsupported for sampling under replace_one.
    """
    _check_delta(delta)
    gaussians = _gaussians(events)
    if gaussians is not None and any(g.sampling_rate < 1 for g in gaussians):
        kinds, replaced = _kinds(gaussians)
        if replaced:
            raise Unsupported("rdp has no theorem for Poisson sampling under replace_one: use the pld accountant")
        return _rdp_sampled(kinds, delta)
    return _rdp(_tau(renyi_mu(events)), delta)


def theorem(events: Sequence[Event], delta: float) -> float:
    """PFDM's Theorem 5.1: tau + 2 sqrt(tau ln(1 / delta)).

    In the paper's letters 2 C^2 / s^2 + C sqrt(8 ln(1 / delta) / s^2) with s^2 = (1 - abar) / abar.
    Raises ValueError for events that do not compose, Unsupported for sampled ones.
    """
    _check_delta(delta)
    tau = _tau(renyi_mu(events))
    return tau + 2 * math.sqrt(tau * -math.log(delta))


Bound = Callable[[Sequence[Event], float], float]
ACCOUNTANTS: dict[str, Bound] = {"exact": exact, "pld": pld, "rdp": rdp, "theorem": theorem}
"""By name, from the tightest to the loosest."""


def epsilon_of(events: Sequence[Event], delta: float, accountant: str) -> float:
    """The epsilon of `events` by the accountant of that name. Raises ValueError for an unknown name."""
    if accountant not in ACCOUNTANTS:
        raise ValueError(f"accountant must be one of {', '.join(ACCOUNTANTS)}, got {accountant!r}")
    return ACCOUNTANTS[accountant](events, delta)


def tightest(stated: Callable[[str], T]) -> T:
    """What is stated by the tightest accountant that has a theorem, given its name. Raises Unsupported where none
    has."""
    refused = Unsupported("there is no accountant")
    for name in ACCOUNTANTS:
        try:
            return stated(name)
        except Unsupported as e:
            refused = e
    raise refused


def check_budget(epsilon: float, delta: float) -> None:
    """Raises ValueError unless epsilon > 0 and 0 < delta < 1."""
    if not epsilon > 0:
        raise ValueError(f"epsilon must be > 0, got {epsilon}")
    _check_delta(delta)


def group_of(event: Event) -> Group | None:
    """(unit, relation, trust) of a Gaussian, None for the others."""
    return (event.unit, event.relation, event.trust) if isinstance(event, Gaussian) else None


def groups_of(exposures: Iterable[Sequence[Event]]) -> list[Group]:
    """All that occur, in order."""
    return sorted({g for events in exposures for e in events if (g := group_of(e))})


def of_group(events: Iterable[Event], group: tuple[str | None, str | None, str]) -> list[Gaussian]:
    """The Gaussians of that group."""
    return [e for e in events if isinstance(e, Gaussian) and group_of(e) == group]


def declared_by(events: Iterable[Event]) -> tuple[str, ...]:
    """What was sent beside Gaussians as public by declaration."""
    return tuple(dict.fromkeys(d for e in events if isinstance(e, Gaussian) for d in e.declared))


def composable(events: Iterable[Event]) -> bool:
    """Whether all agree in unit, relation and trust; `Nothing` has none of them, `NonPrivate` a trust."""
    sent = [e for e in events if not isinstance(e, Nothing)]
    groups = {group_of(e) for e in sent if isinstance(e, Gaussian)}
    return len(groups) <= 1 and len({e.trust for e in sent}) <= 1


def gaussian_dp_mu(events: Sequence[Event]) -> float:
    """mu of Gaussian DP for the composition of `events`: what bounds every attack on them.

    0 for nothing, inf for no protection. Raises ValueError for events that do not compose, Unsupported for
    sampled and for discrete ones.
    """
    mu = renyi_mu(events)
    if mu < math.inf:
        _check_curve(events)
    return mu


def renyi_mu(events: Sequence[Event]) -> float:
    """mu such that the Renyi divergence of every order a is at most a mu^2 / 2: `gaussian_dp_mu`, but of discrete
    Gaussians too. Raises as that does."""
    gaussians = _gaussians(events)
    if gaussians is None:
        return math.inf
    if any(g.sampling_rate < 1 for g in gaussians):
        raise Unsupported("Poisson sampling has no Gaussian-DP theorem here: use the pld accountant")
    return math.hypot(*(math.sqrt(g.steps) / g.std_over_sensitivity for g in gaussians))


def kinds_of(events: Sequence[Event]) -> tuple[tuple[pairs.Kind, ...], bool] | None:
    """(the steps of each kind, whether they are under replace_one): what decides the privacy loss of `events`. None
    where something is unprotected. Raises ValueError for events that do not compose, Unsupported for discrete ones."""
    gaussians = _gaussians(events)
    if gaussians is not None:
        _check_curve(gaussians)
    return None if gaussians is None else _kinds(gaussians)


@functools.lru_cache
def mu_for(epsilon: float, delta: float, accountant: Literal["exact", "rdp"] = "exact") -> float:
    """The largest mu, to within a relative 1e-9, at which that accountant's epsilon is at most epsilon."""
    check_budget(epsilon, delta)
    spent = _exact if accountant == "exact" else lambda mu, delta: _rdp(_tau(mu), delta)
    low, high = 0.0, 1.0
    while spent(high, delta) <= epsilon:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle, delta) <= epsilon else (low, middle)
    return low


def knows_no_curve(events: Iterable[Event]) -> bool:
    """Whether of some of these only Renyi divergences are known."""
    return any(isinstance(e, DiscreteGaussian) for e in events)


def epsilon_for(mu: float, delta: float) -> float:
    """The smallest epsilon at which mu-Gaussian DP is (epsilon, delta)-DP: `exact` of one number."""
    _check_mu(mu)
    _check_delta(delta)
    return _exact(mu, delta)


def auc_ceiling(mu: float) -> float:
    """The largest ROC AUC of any membership attack under mu-Gaussian DP, Phi(mu / sqrt 2)."""
    _check_mu(mu)
    return _normal_cdf(mu / math.sqrt(2))


def tpr_ceiling(mu: float, fpr: float) -> float:
    """The largest true positive rate of any such attack at this false positive rate, Phi(mu + Phi^-1(fpr))."""
    from scipy.special import ndtr, ndtri

    _check_mu(mu)
    return 1.0 if mu == math.inf else float(ndtr(mu + ndtri(fpr)))


def fpr_floor(mu: float, tpr: float) -> float:
    """The smallest false positive rate of any such attack of this true positive rate, the inverse of `tpr_ceiling`."""
    from scipy.special import ndtr, ndtri

    _check_mu(mu)
    return 0.0 if mu == math.inf else float(ndtr(ndtri(min(1.0, tpr)) - mu))


def renyi_tpr_ceiling(mu: float, fpr: float) -> float:
    """The largest true positive rate of any membership attack at this false positive rate where only Renyi divergences
    are known (`renyi_mu`), those of both neighbours from each other.

    By Hoelder's inequality P(A) <= (Q(A) e^D)^((a - 1) / a) of a divergence D <= a tau of order a; at the best order
    that is exp(-(sqrt(ln 1 / Q(A)) - sqrt(tau))^2). It holds of what the attack takes for P, and of all else with P and
    Q exchanged.
    """
    _check_mu(mu)
    if mu == math.inf or fpr >= 1:
        return 1.0
    root, unlikely = math.sqrt(_tau(mu)), math.sqrt(-math.log(fpr)) if fpr > 0 else math.inf
    caught = math.exp(-((unlikely - root) ** 2)) if unlikely > root else 1.0
    missed = math.exp(-((root + math.sqrt(-math.log1p(-fpr))) ** 2))
    return min(caught, 1 - missed)


def release_event(clip: float, abar: float) -> Gaussian:
    """PFDM's upload at a depth with that abar: sqrt(abar) CLIP(x, clip) + sqrt(1 - abar) z, per record."""
    if not (clip > 0 and math.isfinite(clip)):
        raise ValueError(f"clip must be finite and > 0, got {clip}")
    if not 0 <= abar <= 1:
        raise ValueError(f"abar must be in [0, 1], got {abar}")
    sensitivity = 2 * clip * math.sqrt(abar)
    ratio = math.sqrt(1 - abar) / sensitivity if sensitivity > 0 else math.inf
    return Gaussian(ratio, "example", "replace_one", "local")


def depth(
    *, epsilon: float, delta: float, clip: float, alphas_bar: Tensor, accountant: str, given: int | None = None
) -> int:
    """The smallest t0 in 1..T at which PFDM's upload is (epsilon, delta)-DP by `accountant`, or the given one.

    `alphas_bar` is (T + 1,) with abar_0 = 1. Raises ValueError when no depth, or not the given one, keeps to the
    budget, and for a budget, clip or schedule that is none.
    """
    check_budget(epsilon, delta)
    abar = alphas_bar.double().tolist()
    falling = all(later <= earlier for earlier, later in itertools.pairwise(abar))
    if len(abar) < 2 or abar[0] != 1 or not falling or abar[-1] < 0:
        raise ValueError("alphas_bar must start at 1 and fall within [0, 1], with at least two entries")

    def spent(t: int) -> float:
        return epsilon_of([release_event(clip, abar[t])], delta, accountant)

    # What is spent falls with abar, so the first depth that keeps to the budget is found by halving.
    t = 1 + bisect.bisect_left(range(1, len(abar)), True, key=lambda t: spent(t) <= epsilon)
    if t == len(abar):
        raise ValueError(
            f"no depth reaches epsilon {epsilon:g} at clip {clip:g}, delta {delta:g} ({accountant} accountant): "
            f"the smallest reachable with this schedule is {spent(t - 1):.4g}"
        )
    if given is not None and given < t:
        raise ValueError(
            f"t0 = {given} spends more than epsilon = {epsilon:g} at clip {clip:g}, delta {delta:g} ({accountant} "
            f"accountant): it must be at least {t}"
        )
    return given or t


def _gaussians(events: Sequence[Event]) -> list[Gaussian] | None:
    """The Gaussians among `events`, or None where something was sent without protection or with noise 0."""
    if not composable(events):
        raise ValueError("events of different unit, relation or trust do not compose into one epsilon")
    gaussians = [e for e in events if isinstance(e, Gaussian)]
    unprotected = any(isinstance(e, NonPrivate) for e in events)
    if unprotected or any(g.std_over_sensitivity == 0 for g in gaussians):
        return None
    return gaussians


def _check_curve(events: Iterable[Event]) -> None:
    """Raises Unsupported where `knows_no_curve`."""
    if knows_no_curve(events):
        raise Unsupported("sums of discrete Gaussians have no trade-off curve here: use the rdp accountant")


def _kinds(gaussians: Iterable[Gaussian]) -> tuple[tuple[pairs.Kind, ...], bool]:
    times: Counter[tuple[float, float]] = Counter()
    replaced = False
    for g in gaussians:
        replaced = replaced or g.relation == "replace_one"
        if g.std_over_sensitivity < math.inf:
            times[g.sampling_rate, g.std_over_sensitivity] += g.steps
    return tuple(sorted(pairs.Kind(rate, noise, n) for (rate, noise), n in times.items())), replaced


def _exact(mu: float, delta: float) -> float:
    """Solve delta(epsilon) = delta for the Gaussian mechanism with that mu (Balle & Wang 2018, Theorem 8).

    delta(epsilon) = Phi(a) - e^epsilon Phi(b) with a = mu/2 - epsilon/mu and b = a - mu. Solved in a, in
    which it rises, and stays below Phi(a): hence the lower end of the bracket.
    """
    from scipy.optimize import brentq
    from scipy.special import ndtri

    if mu == math.inf or math.erf(mu / math.sqrt(8)) <= delta:  # erf(mu / sqrt 8) = delta(0)
        return mu if mu == math.inf else 0.0
    target = math.log(delta)
    low = float(ndtri(delta)) - 1e-6  # the margin is for rounding
    high = min(mu / 2, 40.0)  # epsilon = 0, or Phi(40) = 1 in float64
    a = brentq(lambda a: _log_delta(a, mu) - target, low, high, xtol=1e-14, maxiter=1000)
    return mu * max(0.0, mu / 2 - float(a))


def _log_delta(a: float, mu: float) -> float:
    """ln(Phi(a) - e^epsilon Phi(b)) at b = a - mu and epsilon = mu (mu/2 - a).

    e^epsilon = phi(a) / phi(b), so the difference is phi(a) (M(a) - M(b)) with M = Phi/phi: nothing
    overflows.
    """
    from scipy.special import erfcx, ndtr

    def mills(x: float) -> float:
        return math.sqrt(math.pi / 2) * float(erfcx(-x / math.sqrt(2)))

    log_phi = -a * a / 2 - math.log(2 * math.pi) / 2
    if mu < 1:  # M(a) and M(b) are close: integrate M'(x) = 1 + x M(x) between them instead
        points = [(a - mu / 2 * (1 - node), weight) for node, weight in _legendre()]
        gap = mu / 2 * sum(weight * (1 + x * mills(x)) for x, weight in points)
    elif a <= 0:
        gap = mills(a) - mills(a - mu)
    else:  # M(a) would overflow
        return math.log(float(ndtr(a)) - math.exp(log_phi) * mills(a - mu))
    return log_phi + math.log(gap)


@functools.lru_cache(maxsize=1)
def _legendre() -> tuple[tuple[float, float], ...]:
    """Nodes and weights of Gauss-Legendre quadrature on [-1, 1]."""
    import numpy as np

    nodes, weights = np.polynomial.legendre.leggauss(16)
    return tuple(zip(nodes.tolist(), weights.tolist(), strict=True))


@functools.lru_cache(maxsize=2**15)
def _pld(kinds: tuple[pairs.Kind, ...], replaced: bool, delta: float) -> float:
    unsampled = _exact(math.hypot(*(math.sqrt(k.times) / k.noise for k in kinds)), delta)
    if all(k.rate == 1 for k in kinds):
        return unsampled
    found = pairs.losses(kinds, replaced=replaced).epsilon(delta)
    if found == math.inf and not replaced:  # so small a delta is below the transforms' rounding
        found = _rdp_sampled(kinds, delta)
    return min(unsampled, found)  # sampling never hurts


def _rdp(tau: float, delta: float) -> float:
    """min over gamma > 1 of the converted gamma * tau.

    With u = gamma - 1 the derivative is tau - (ln(1/delta) - ln(1 + u)) / u^2, which has one zero: where
    tau u^2 + ln(1 + u) = ln(1/delta).
    """
    from scipy.optimize import brentq

    if tau == 0 or tau == math.inf:
        return tau
    L = -math.log(delta)
    # It is solved in s = ln u: at the lower end both terms are below L / 2, at the upper end one is above L.
    low = min(math.log(L / 2 / tau) / 2, math.log(math.expm1(L / 2))) - 1
    high = min(math.log(L / tau) / 2, L) + 1
    u = math.exp(brentq(lambda s: tau * math.exp(2 * s) + math.log1p(math.exp(s)) - L, low, high, xtol=1e-12))
    return max(0.0, _converted((1 + u) * tau, u, delta))


def _rdp_sampled(kinds: Sequence[pairs.Kind], delta: float) -> float:
    """Poisson-sampled Gaussians under add_remove (Mironov, Talwar & Zhang 2019, arXiv 1908.10530).

    So too under zero_out: a sum in which a record counts for nothing is the sum without it, and each record is drawn by
    itself, so that the two distributions are the same ones; the rate, which n decides, stays.
    """

    def divergence(order: float) -> float:
        return sum(k.times * _sampled_divergence(k.rate, k.noise, order) for k in kinds)

    tau = sum(k.times / k.noise / k.noise for k in kinds) / 2
    return max(0.0, min(_best_order(divergence, delta), _rdp(tau, delta)))  # sampling never hurts


def _best_order(divergence: Callable[[float], float], delta: float) -> float:
    """The least epsilon over ORDERS of divergences that rise with the order, most of which are not asked for.

    Each takes milliseconds. Between two orders none is below that of the lower one: where with that an order's epsilon
    would not be the least, the order is passed over.
    """
    best, waiting = math.inf, [(0, len(ORDERS), 0.0)]
    while waiting:
        first, end, least = waiting.pop()
        orders = ORDERS[first:end]
        if not orders or min(_converted(least, order - 1, delta) for order in orders) > best + ROUNDING:
            continue
        middle = (first + end) // 2
        here = divergence(ORDERS[middle])
        best = min(best, _converted(here, ORDERS[middle] - 1, delta))
        waiting += [(middle + 1, end, here), (first, middle, least)]
    return best


@functools.lru_cache(maxsize=2**15)
def _sampled_divergence(rate: float, noise: float, order: float) -> float:
    """Renyi divergence of one sampled step."""
    from opacus.accountants.analysis.rdp import compute_rdp

    return float(compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=order))


def _converted(divergence: float, u: float, delta: float) -> float:
    """Epsilon from a Renyi divergence D of order gamma = 1 + u.

    D + ln(1 - 1/gamma) - (ln delta + ln gamma) / (gamma - 1).
    """
    return divergence + math.log(u / (1 + u)) - (math.log(delta) + math.log1p(u)) / u


def _tau(mu: float) -> float:
    return mu * mu / 2


def _normal_cdf(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"delta must be in (0, 1), got {delta}")


def _check_mu(mu: float) -> None:
    if not mu >= 0:
        raise ValueError(f"mu must be >= 0, got {mu}")
