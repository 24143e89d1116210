"""How much all that is released of the same records may reveal together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from raydiff.lookup import check_one_of
from raydiff.privacy import accountants
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

    def spent(self, charges: Iterable[Sequence[Event]]) -> Guarantee:
        """What these have spent together, of a record that fared worst in each.

        Raises Unsupported where no accountant has a theorem.
        """
        entries = (Entry(0, 0, event, 0) for events in charges for event in events)
        seen = Exposed(Ledger(tuple(entries)))
        return accountants.tightest(lambda name: seen.guarantee(self.delta, name))


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
