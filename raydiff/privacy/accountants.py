"""From privacy events to epsilon.

An accountant is a function `(events, delta) -> epsilon` over the events that one record (or client) is exposed to, all
of one unit, relation and trust model. It returns `math.inf` for a value sent without protection or with noise 0, and
0.0 for nothing. All functions raise ValueError for events that do not compose and for a delta outside (0, 1), and
`Unsupported` where they have no theorem.

| name | bound | Poisson sampling | source |
|---|---|---|---|
| exact | the smallest epsilon | none | `gaussian`: Balle & Wang 2018 (arXiv 1805.06530), Theorem 8 |
| pld | the same on a grid of privacy losses | every relation | `pld`, with the proof |
| rdp | Renyi DP, best order | all but replace_one | `renyi`: Canonne, Kamath & Steinke 2020 (arXiv 2004.00010) |
| theorem | Renyi DP, closed form | none | PFDM (Patel et al., CVPR 2026, arXiv 2504.00952), Theorem 5.1 |

Steps count as unsampled where the adversary sees who takes part (`hidden_rate`). Only Renyi divergences are known for
sums of discrete Gaussians (secure aggregation): rdp and theorem cover them. Unsampled Gaussians enter as mu =
sensitivity / standard deviation; mu^2 adds up under composition, also adaptively (Dong, Roth & Su 2019, arXiv
1905.02383). exact = pld <= rdp <= theorem; with sampling pld <= rdp. Each bound includes the difference of the sampler
from real Gaussians (`grid.add_sampler_cost`): about 1e-5 of epsilon.
"""

import contextlib
import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Literal, TypeVar

from annotated_types import Gt, Le

from raydiff.lookup import check_one_of, check_value
from raydiff.privacy import gaussian, grid, renyi
from raydiff.privacy.pld import Steps, privacy_loss
from raydiff.privacy.release import DiscreteGaussian, Event, Gaussian, NonPrivate, Nothing

Accountant = Literal["exact", "rdp", "theorem"]
"""Accountants of unsampled noise, where pld equals exact."""
T = TypeVar("T")
Group = tuple[str, str, str]
"""(unit, relation, trust model): events of different groups do not compose."""


class Unsupported(ValueError):
    """No theorem of this accountant covers these events."""


def exact(events: Sequence[Event], delta: float) -> float:
    """Return the smallest epsilon at which the composed Gaussians are (epsilon, delta)-DP."""
    mu = gaussian_dp_mu(events)
    return _add_sampler_cost(events, lambda d: gaussian.gaussian_epsilon(mu, d), delta)


def pld(events: Sequence[Event], delta: float) -> float:
    """Return epsilon from the privacy loss distribution; covers Poisson sampling.

    Without sampling it equals `exact`, else it is an upper bound, less than 0.001 max(1, epsilon) above the truth.
    """
    steps = steps_of(events)
    return _add_sampler_cost(events, lambda d: math.inf if steps is None else _pld(*steps, d), delta)


def rdp(events: Sequence[Event], delta: float) -> float:
    """Return epsilon by Renyi DP at the best order; covers Poisson sampling under zero_out and add_remove."""
    gaussians = _gaussians(events)
    if gaussians is not None and any(hidden_rate(g) < 1 for g in gaussians):
        steps, replaced = _steps(gaussians)
        if replaced:
            raise Unsupported("rdp has no theorem for Poisson sampling under replace_one: use the pld accountant")
        return _add_sampler_cost(events, lambda d: renyi.epsilon_of_sampled(steps, d), delta)
    mu = renyi_mu(events)
    return _add_sampler_cost(events, lambda d: renyi.renyi_epsilon(mu, d), delta)


def theorem(events: Sequence[Event], delta: float) -> float:
    """Return PFDM's Theorem 5.1, tau + 2 sqrt(tau ln(1 / delta)), where tau = 2 C^2 abar / (1 - abar)."""
    mu = renyi_mu(events)
    tau = mu * mu / 2  # not mu**2, which overflows with an exception
    return _add_sampler_cost(events, lambda d: tau + 2 * math.sqrt(tau * -math.log(d)), delta)


MOST_DELTA = 0.1  # A guarantee that may fail for every tenth record is none.
ACCOUNTANTS = {"exact": exact, "pld": pld, "rdp": rdp, "theorem": theorem}
"""By name, from the tightest to the loosest."""


def epsilon_of(events: Sequence[Event], delta: float, accountant: str) -> float:
    """Return epsilon by the accountant of that name."""
    check_one_of("accountant", accountant, ACCOUNTANTS)
    return ACCOUNTANTS[accountant](events, delta)


def tightest(evaluate: Callable[[str], T]) -> T:
    """Return `evaluate(name)` for the tightest accountant that has a theorem. Raises Unsupported where none has."""
    *tighter, loosest = ACCOUNTANTS
    for name in tighter:
        with contextlib.suppress(Unsupported):
            return evaluate(name)
    return evaluate(loosest)


Epsilon = Annotated[float, Gt(0)]
Delta = Annotated[float, Gt(0), Le(MOST_DELTA)]


def check_budget(epsilon: float, delta: float) -> None:
    """Raise ValueError for a bad epsilon or delta."""
    check_value("epsilon", epsilon, epsilon > 0, "> 0")
    check_value("delta", delta, 0 < delta <= MOST_DELTA, f"in (0, {MOST_DELTA:g}], and below 1 / (number of records)")


def group_of(event: Gaussian) -> Group:
    """Return (unit, relation, trust model)."""
    return event.unit, event.relation, event.trust


def hidden_rate(event: Gaussian) -> float:
    """Return the sampling rate that amplifies: 1 for clients whose server sees who sends."""
    return 1.0 if event.unit == "client" and event.trust != "central" else event.sampling_rate


def groups_of(exposures: Iterable[Sequence[Event]]) -> list[Group]:
    """Return the groups that occur, sorted."""
    events = itertools.chain.from_iterable(exposures)
    return sorted({group_of(e) for e in events if isinstance(e, Gaussian)})


def of_group(events: Iterable[Event], group: tuple[str | None, str | None, str]) -> list[Gaussian]:
    """Return the Gaussians of that group."""
    return [e for e in events if isinstance(e, Gaussian) and group_of(e) == group]


def declared_by(events: Iterable[Event]) -> tuple[str, ...]:
    """Return the fields that were sent beside Gaussians as public by declaration."""
    fields = (e.declared for e in events if isinstance(e, Gaussian))
    return tuple(dict.fromkeys(itertools.chain.from_iterable(fields)))


def composable(events: Iterable[Event]) -> bool:
    """Whether all agree in unit, relation and trust model. `Nothing` has none of them, `NonPrivate` a trust model."""
    sent = [e for e in events if not isinstance(e, Nothing)]
    return len(groups_of([sent])) <= 1 and len({e.trust for e in sent}) <= 1


def gaussian_dp_mu(events: Sequence[Event]) -> float:
    """Return mu of Gaussian DP for the composition of `events`: 0 for nothing, inf without protection."""
    mu = renyi_mu(events)
    if mu < math.inf:
        _check_curve(events)
    return mu


def renyi_mu(events: Sequence[Event]) -> float:
    """Return mu such that the Renyi divergence of every order a is at most a mu^2 / 2; covers discrete Gaussians."""
    gaussians = _gaussians(events)
    if gaussians is None:
        return math.inf
    if any(hidden_rate(g) < 1 for g in gaussians):
        raise Unsupported("Poisson sampling has no Gaussian-DP theorem here: use the pld accountant")
    return math.hypot(*(math.sqrt(g.steps) / g.std_over_sensitivity for g in gaussians))


def steps_of(events: Sequence[Event]) -> tuple[tuple[Steps, ...], bool] | None:
    """Return (steps, whether under replace_one), which decide the privacy loss; None without protection."""
    if (gaussians := _gaussians(events)) is None:
        return None
    _check_curve(gaussians)
    return _steps(gaussians)


@functools.lru_cache
def mu_for(epsilon: float, delta: float, accountant: Literal["exact", "rdp"] = "exact") -> float:
    """Return the largest mu, to within a relative 1e-9, at which that accountant's epsilon is at most epsilon."""
    check_budget(epsilon, delta)

    def epsilon_at(mu: float) -> float:
        if accountant == "rdp":
            return renyi.renyi_epsilon(mu, delta)
        return grid.add_sampler_cost(lambda d: gaussian.gaussian_epsilon(mu, d), delta)

    low = 0.0
    high = 1.0
    while epsilon_at(high) <= epsilon:
        low = high
        high = 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        if epsilon_at(middle) <= epsilon:
            low = middle
        else:
            high = middle
    return low


def has_discrete(events: Iterable[Event]) -> bool:
    """Whether some are discrete Gaussians, of which only Renyi divergences are known."""
    return any(isinstance(e, DiscreteGaussian) for e in events)


def _add_sampler_cost(events: Iterable[Event], bound: Callable[[float], float], delta: float) -> float:
    """`bound(delta)`, plus the cost of the Gaussian sampler (`grid`); sums of discrete Gaussians are exact."""
    check_value("delta", delta, 0 < delta < 1, "in (0, 1)")
    sampled = any(isinstance(e, Gaussian) and e.std_over_sensitivity < math.inf for e in events)
    return grid.add_sampler_cost(bound, delta) if sampled and not has_discrete(events) else bound(delta)


def _gaussians(events: Sequence[Event]) -> list[Gaussian] | None:
    """The Gaussians among `events`; None where something was sent without protection or with noise 0."""
    if not composable(events):
        raise ValueError("events of different unit, relation or trust do not compose into one epsilon")
    gaussians = [e for e in events if isinstance(e, Gaussian)]
    protected = not any(isinstance(e, NonPrivate) for e in events)
    return gaussians if protected and all(g.std_over_sensitivity > 0 for g in gaussians) else None


def _check_curve(events: Iterable[Event]) -> None:
    if has_discrete(events):
        raise Unsupported("sums of discrete Gaussians have no trade-off curve here: use the rdp accountant")


def _steps(gaussians: Sequence[Gaussian]) -> tuple[tuple[Steps, ...], bool]:
    times: Counter[tuple[float, float]] = Counter()
    for g in gaussians:
        if g.std_over_sensitivity < math.inf:
            times[hidden_rate(g), g.std_over_sensitivity] += g.steps
    steps = tuple(sorted(Steps(rate, noise, n) for (rate, noise), n in times.items()))
    return steps, any(g.relation == "replace_one" for g in gaussians)


@functools.lru_cache(maxsize=2**15)
def _pld(steps: tuple[Steps, ...], replaced: bool, delta: float) -> float:
    unsampled = gaussian.gaussian_epsilon(math.hypot(*(math.sqrt(k.times) / k.noise for k in steps)), delta)
    if all(k.rate == 1 for k in steps):
        return unsampled
    epsilon = privacy_loss(steps, replaced=replaced).epsilon(delta)
    if epsilon == math.inf and not replaced:  # delta is below the rounding of the Fourier transforms
        epsilon = renyi.epsilon_of_sampled(steps, delta)
    return min(unsampled, epsilon)  # sampling never hurts
