"""From privacy events to epsilon.

An accountant is a function `(events, delta) -> epsilon` over the events that one record (or client) is
exposed to. It composes events of one unit, relation and trust only, gives `math.inf` for a value sent without
protection or with noise 0, 0.0 for nothing, and raises `Unsupported` where it has no theorem: it never
guesses.

| name | bound | source |
|---|---|---|
| exact | the smallest epsilon of unsampled Gaussians | `gaussian`: Balle & Wang 2018 (arXiv 1805.06530), Theorem 8 |
| pld | the same of sampled ones, on a grid of privacy losses | `pairs`, with the proof |
| rdp | Renyi DP, best order, improved conversion | `renyi`: Canonne, Kamath & Steinke 2020 (arXiv 2004.00010) |
| theorem | Renyi DP, closed form | PFDM (Patel et al., CVPR 2026, arXiv 2504.00952), Theorem 5.1 |

| relation | unsampled | Poisson sampling |
|---|---|---|
| add_remove, zero_out | all | pld, rdp |
| replace_one | all | pld, where the unit adds a vector of norm at most half the sensitivity |

Steps count as unsampled where the adversary sees who takes part (`hidden_rate`). Of sums of discrete Gaussians (trust
aggregate) only their Renyi divergence is known: rdp and theorem cover them.

All see unsampled Gaussians through mu = sensitivity / standard deviation, or tau = mu^2 / 2. Under
composition mu^2 and tau add up, also where a value depends on those before it (Dong, Roth & Su 2019, arXiv
1905.02383). exact = pld <= rdp <= theorem; of sampled ones pld <= rdp.

To each bound is added what the noise that is drawn differs from real Gaussians (`grid.charged`): about 1e-5 to epsilon.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeVar

from raydiff.privacy import gaussian, grid, renyi
from raydiff.privacy import pld as pairs
from raydiff.privacy.gaussian import check_delta
from raydiff.privacy.release import DiscreteGaussian, Event, Gaussian, NonPrivate, Nothing

Accountant = Literal["exact", "rdp", "theorem"]
"""Of what is not sampled, where pld is exact."""
T = TypeVar("T")
Group = tuple[str, str, str]
"""(unit, relation, trust): what an epsilon speaks of."""


class Unsupported(ValueError):
    """No theorem of this accountant covers these events."""


def exact(events: Sequence[Event], delta: float) -> float:
    """The smallest epsilon at which the composed Gaussians are (epsilon, delta)-DP.

    Raises ValueError for events that do not compose, Unsupported for sampled and discrete ones.
    """
    check_delta(delta)
    mu = gaussian_dp_mu(events)
    return _charged(events, lambda d: gaussian.epsilon_for(mu, d), delta)


def pld(events: Sequence[Event], delta: float) -> float:
    """The smallest epsilon, from the distribution of the privacy loss; covers Poisson sampling.

    Without sampling it is `exact`; else an upper bound, found to be above the truth by less than 0.001
    max(1, epsilon): of a tiny epsilon that is several per cent. Raises ValueError for events that do not compose,
    Unsupported for discrete ones.
    """
    check_delta(delta)
    kinds = kinds_of(events)
    return math.inf if kinds is None else _charged(events, lambda d: _pld(*kinds, d), delta)


def rdp(events: Sequence[Event], delta: float) -> float:
    """Renyi DP at the best order; covers Poisson sampling under zero_out and add_remove.

    Raises ValueError for events that do not compose, Unsupported for sampling under replace_one.
    """
    check_delta(delta)
    gaussians = _gaussians(events)
    if gaussians is not None and any(hidden_rate(g) < 1 for g in gaussians):
        kinds, replaced = _kinds(gaussians)
        if replaced:
            raise Unsupported("rdp has no theorem for Poisson sampling under replace_one: use the pld accountant")
        return _charged(events, lambda d: renyi.epsilon_of_sampled(kinds, d), delta)
    mu = renyi_mu(events)
    return _charged(events, lambda d: renyi.epsilon_for(mu, d), delta)


def theorem(events: Sequence[Event], delta: float) -> float:
    """PFDM's Theorem 5.1: tau + 2 sqrt(tau ln(1 / delta)).

    In the paper's letters 2 C^2 / s^2 + C sqrt(8 ln(1 / delta) / s^2) with s^2 = (1 - abar) / abar.
    Raises ValueError for events that do not compose, Unsupported for sampled ones.
    """
    check_delta(delta)
    mu = renyi_mu(events)
    tau = mu * mu / 2
    return _charged(events, lambda d: tau + 2 * math.sqrt(tau * -math.log(d)), delta)


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
    check_delta(delta)


def group_of(event: Event) -> Group | None:
    """(unit, relation, trust) of a Gaussian, None for the others."""
    return (event.unit, event.relation, event.trust) if isinstance(event, Gaussian) else None


def hidden_rate(event: Gaussian) -> float:
    """The sampling rate that amplifies: 1 for clients whose server sees who sends, whatever the rate at which they are
    drawn."""
    return 1.0 if event.unit == "client" and event.trust != "central" else event.sampling_rate


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
    if any(hidden_rate(g) < 1 for g in gaussians):
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

    def spent(mu: float, delta: float) -> float:
        if accountant == "rdp":
            return renyi.epsilon_for(mu, delta)
        return grid.charged(lambda d: gaussian.epsilon_for(mu, d), delta)

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


def _charged(events: Iterable[Event], bound: Callable[[float], float], delta: float) -> float:
    """`bound(delta)`, and what the sampler of Gaussians costs (`grid`); sums of discrete Gaussians are exact."""
    drawn = any(isinstance(e, Gaussian) and e.std_over_sensitivity < math.inf for e in events)
    return grid.charged(bound, delta) if drawn and not knows_no_curve(events) else bound(delta)


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
            times[hidden_rate(g), g.std_over_sensitivity] += g.steps
    return tuple(sorted(pairs.Kind(rate, noise, n) for (rate, noise), n in times.items())), replaced


@functools.lru_cache(maxsize=2**15)
def _pld(kinds: tuple[pairs.Kind, ...], replaced: bool, delta: float) -> float:
    unsampled = gaussian.epsilon_for(math.hypot(*(math.sqrt(k.times) / k.noise for k in kinds)), delta)
    if all(k.rate == 1 for k in kinds):
        return unsampled
    found = pairs.losses(kinds, replaced=replaced).epsilon(delta)
    if found == math.inf and not replaced:  # so small a delta is below the transforms' rounding
        found = renyi.epsilon_of_sampled(kinds, delta)
    return min(unsampled, found)  # sampling never hurts
