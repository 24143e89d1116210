"""How much all that is released of the same records may reveal together, however each trial was chosen.

Accountants compose trials whose settings were fixed beforehand. Whoever looks at one trial chooses the next one's
settings by it: by privacy losses of sampled Gaussians delta is then exceeded twice over (arXiv 2602.06756, 2602.15815).
A privacy filter admits a trial while the sum of costs stays below a number fixed beforehand. Two have a theorem:

    Gaussian DP      mu^2, of sampled noise as if unsampled (Smith & Thakurta 2022, arXiv 2210.17520; Koskela, Tobaben &
                     Honkela 2023, arXiv 2209.15596); after a first trial with unsampled noise
    one Renyi order  the divergence, of unsampled noise order mu^2 / 2 (Feldman & Zrnic 2021, arXiv 2008.11193;
                     converted as in `renyi`); after one with sampled noise, but for replace_one, which has no theorem

The filter and its order must be fixed beforehand too. They follow from the first trial's settings, which nobody chose
by a release, for there was none. So the first trial alone may be judged by the tightest accountant: that the filter has
no room for it, and so for nothing after it, is known beforehand as well.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from raydiff.lookup import check_one_of
from raydiff.privacy import accountants, gaussian, grid, renyi
from raydiff.privacy.composed import compose
from raydiff.privacy.ledger import Entry, Exposed, Guarantee, Ledger
from raydiff.privacy.release import (
    Event,
    Gaussian,
    NonPrivate,
    Nothing,
    Relation,
    Unit,
    event_from_dict,
    event_to_dict,
)

Order = float | None | Literal["first"]
"""Of a filter's Renyi divergences; None: Gaussian DP's filter; first: what the first trial decides."""
ROUNDING = 1e-9
"""Relative: two ways to the same noise may differ by so much."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """An epsilon that all trials on the same records share, and all that it needs to mean something."""

    epsilon: float = 10.0
    """What they may spend together, once and for all."""
    unit: Unit = "example"
    """Whose: a method's guarantee is of one unit, and any other is refused."""
    relation: Relation = "replace_one"
    """Under which it is stated."""
    trust: Literal["local"] = "local"
    """Against the server. What a trusted server publishes is not known beforehand, so there is no other choice."""
    delta: float = 1e-5
    """At which it is stated, whatever a method's own delta."""

    def __post_init__(self) -> None:
        accountants.check_budget(self.epsilon, self.delta)
        if self.epsilon == math.inf:
            raise ValueError("epsilon must be a number, got inf: leave the budget out")
        for name, allowed in (("unit", get_args(Unit)), ("relation", get_args(Relation)), ("trust", ("local",))):
            check_one_of(name, getattr(self, name), allowed)

    def __str__(self) -> str:
        about = f"per {self.unit}, {self.relation.replace('_', '-')}, {self.trust} trust, delta {self.delta:g}"
        return f"epsilon {self.epsilon:g} ({about})"

    def refuses(self, events: Iterable[Event]) -> str:
        """Why these can never be within it, in words; "" where they can."""
        for event in events:
            if isinstance(event, NonPrivate):
                return f"it sends {event.what} without protection"
            if isinstance(event, Gaussian) and event.std_over_sensitivity == 0:
                return "its noise has scale 0"
            if isinstance(event, Gaussian) and accountants.group_of(event) != (self.unit, self.relation, self.trust):
                kind = f"per {event.unit}, {event.relation.replace('_', '-')}, {event.trust} trust"
                return f"its guarantee is {kind}, which does not compose with the budget's"
        return ""

    def order(self, first: Sequence[Event]) -> float | None:
        """The Renyi order of the filter that a first trial with these events begins: the one at which the budget has
        room for most such trials. None: Gaussian DP."""
        noises = [e for e in first if isinstance(e, Gaussian) and e.std_over_sensitivity > 0]
        sampled = [e for e in noises if e.sampling_rate < 1]
        if any(e.relation == "replace_one" for e in sampled) or not (sampled or accountants.knows_no_curve(noises)):
            return None
        rooms = {order: self.epsilon - self.epsilon_of(0.0, order) for order in renyi.ORDERS}
        best = max(rooms, key=lambda order: rooms[order] / max(cost(tuple(noises), order), 1e-300))
        return best if rooms[best] > 0 else None

    def epsilon_of(self, total: float, order: float | None) -> float:
        """The epsilon that a sum of costs converts to, by the filter of this order."""
        if order is None:
            return grid.charged(lambda delta: gaussian.epsilon_for(math.sqrt(total), delta), self.delta)
        return grid.charged(lambda delta: renyi.converted(total, order - 1, delta), self.delta)

    def spent(self, charges: Iterable[Sequence[Event]], order: Order = "first") -> Guarantee:
        """What these trials have spent by the filter of this order ("first": of the first one's), of a record that
        fared worst in each; a single one, by the tightest accountant.

        Raises Unsupported where no theorem covers them.
        """
        sent = [kept for events in charges if (kept := tuple(e for e in events if not isinstance(e, Nothing)))]
        every = [e for events in sent for e in events]
        if len(sent) < 2 or not accountants.composable(every) or any(isinstance(e, NonPrivate) for e in every):
            seen = Exposed(Ledger(tuple(Entry(0, 0, event, 0) for event in every)))
            return accountants.tightest(lambda name: seen.guarantee(self.delta, name))
        order = self.order(sent[0]) if order == "first" else order
        total = max(0.0, self.epsilon_of(sum(cost(events, order) for events in sent), order))
        about = {**asdict(self), "epsilon": total, "accountant": "exact" if order is None else "rdp"}
        return Guarantee(**about, clients=1, declared=accountants.declared_by(every))


@functools.lru_cache(maxsize=2**15)
def cost(events: tuple[Event, ...], order: float | None) -> float:
    """What a trial adds to the filter's sum: mu^2, or its Renyi divergence of this order."""
    plain = [replace(e, sampling_rate=1.0) if isinstance(e, Gaussian) else e for e in events]
    if order is None:
        return accountants.gaussian_dp_mu(plain) ** 2
    divergences = [order * accountants.renyi_mu([e]) ** 2 / 2 for e in plain]
    for i, e in enumerate(events):
        if isinstance(e, Gaussian) and e.sampling_rate < 1 and e.relation != "replace_one":
            sampled = e.steps * renyi.sampled_divergence(e.sampling_rate, e.std_over_sensitivity, order)
            divergences[i] = min(divergences[i], sampled)  # sampling never hurts
    return sum(divergences)


def worst(*ledgers: Ledger) -> tuple[Event, ...]:
    """What the client that fares worst reveals by one of these, or by another."""
    clients: dict[tuple[int, int], int] = {}
    entries = [
        Entry(0, clients.setdefault((i, e.client), len(clients)), e.event, 0)
        for i, ledger in enumerate(ledgers)
        for e in ledger.entries
    ]
    return tuple(e.event for e in compose([Ledger(tuple(entries))]).entries if not isinstance(e.event, Nothing))


def covers(planned: Event, sent: Event) -> bool:
    """Whether what was sent reveals no more than what was planned, in every parameter, to rounding."""
    if isinstance(sent, Nothing) or isinstance(planned, NonPrivate):
        return True
    if not (isinstance(sent, Gaussian) and isinstance(planned, Gaussian)):
        return False
    return (
        accountants.group_of(sent) == accountants.group_of(planned)
        and sent.std_over_sensitivity >= (1 - ROUNDING) * planned.std_over_sensitivity
        and sent.sampling_rate <= planned.sampling_rate
        and sent.steps <= planned.steps
    )


def written(events: Iterable[Event]) -> list[Any]:
    """JSON-ready: each event, and how often; `read` is the inverse."""
    return [[event_to_dict(event), times] for event, times in Counter(events).items()]


def read(data: Iterable[Any]) -> tuple[Event, ...]:
    """Read back what `written` gave."""
    return tuple(event for fields, times in data for event in [event_from_dict(fields)] * times)
