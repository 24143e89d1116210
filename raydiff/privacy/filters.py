"""Privacy of several trials on the same records: composition of fixed settings, and filters of adaptive ones.

`compose` is for trials whose settings were fixed beforehand. Where an analyst chooses the next settings by the last
trial, privacy losses of sampled Gaussians exceed delta twice over (arXiv 2602.06756, 2602.15815). A privacy filter
admits a trial while the sum of costs stays below a number fixed beforehand. Two have a theorem:

    Gaussian DP      mu^2, of sampled noise as if unsampled (Smith & Thakurta 2022, arXiv 2210.17520; Koskela, Tobaben &
                     Honkela 2023, arXiv 2209.15596); after a first trial with unsampled noise
    one Renyi order  the divergence, of unsampled noise order mu^2 / 2 (Feldman & Zrnic 2021, arXiv 2008.11193;
                     converted as in `renyi`); after one with sampled noise, but for replace_one, which has no theorem

The filter and its order must be fixed beforehand too: they follow from the first trial's settings, which depend on no
release. So the first trial alone may be judged by the tightest accountant, even where the filter has no room for it.
"""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

from raydiff.privacy import accountants, gaussian, grid, release, renyi
from raydiff.privacy.ledger import Entry, Exposure, Guarantee, Ledger
from raydiff.privacy.release import Event, Gaussian, NonPrivate, Nothing, Relation, Unit, definition
from raydiff.settings import Positive, settings

Order = float | None | Literal["first"]
"""Renyi order of a filter; None: Gaussian DP's filter; first: the one that the first trial determines."""
ROUNDING = 1e-9  # relative difference between two computations of the same noise


@settings(frozen=True, kw_only=True)
class Budget:
    """An epsilon that all trials on the same records share, with its privacy definition."""

    epsilon: Positive = 10.0
    """What they may spend together, once and for all."""
    unit: Unit = "example"
    """Unit of privacy; trials of another one are refused."""
    relation: Relation = "replace_one"
    """Neighbouring relation."""
    trust: Literal["local"] = "local"
    """Against the server. What a trusted server publishes is not known beforehand, so there is no other choice."""
    delta: accountants.Delta = 1e-5
    """The delta of this epsilon, whatever a method's delta."""

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:g} ({definition(self.unit, self.relation, self.trust)}, delta {self.delta:g})"

    def refuses(self, events: Iterable[Event]) -> str:
        """Return why these events can never be within the budget, or "" where they can."""
        for event in events:
            if isinstance(event, NonPrivate):
                return f"it sends {event.what} without protection"
            if isinstance(event, Gaussian) and event.std_over_sensitivity == 0:
                return "its noise has scale 0"
            if isinstance(event, Gaussian) and accountants.group_of(event) != (self.unit, self.relation, self.trust):
                about = definition(event.unit, event.relation, event.trust)
                return f"its guarantee is {about}, which does not compose with the budget's"
        return ""

    def order(self, first: Sequence[Event]) -> float | None:
        """Return the order at which the budget has room for most trials with these events; None: Gaussian DP."""
        noises = [e for e in first if isinstance(e, Gaussian) and e.std_over_sensitivity > 0]
        sampled = [e for e in noises if e.sampling_rate < 1]
        if any(e.relation == "replace_one" for e in sampled) or not (sampled or accountants.has_discrete(noises)):
            return None
        rooms = {order: self.epsilon - self.epsilon_of(0.0, order) for order in renyi.ORDERS}
        best = max(rooms, key=lambda order: rooms[order] / max(cost(tuple(noises), order), 1e-300))
        return best if rooms[best] > 0 else None

    def epsilon_of(self, total: float, order: float | None) -> float:
        """Return the epsilon that a sum of costs converts to, by the filter of this order."""
        if order is None:
            return grid.add_sampler_cost(lambda delta: gaussian.gaussian_epsilon(math.sqrt(total), delta), self.delta)
        return grid.add_sampler_cost(lambda delta: renyi.convert_to_epsilon(total, order - 1, delta), self.delta)

    def spent(self, charges: Iterable[Sequence[Event]], order: Order = "first") -> Guarantee:
        """Return the guarantee of a record that fared worst in each of these trials, by the filter of this order.

        A single trial is judged by the tightest accountant. Raises Unsupported where no theorem covers them.
        """
        exposures = (tuple(e for e in events if not isinstance(e, Nothing)) for events in charges)
        sent = list(filter(None, exposures))
        every = list(itertools.chain.from_iterable(sent))
        if len(sent) < 2 or not accountants.composable(every) or any(isinstance(e, NonPrivate) for e in every):
            exposure = Exposure(Ledger(tuple(Entry(0, 0, event, 0) for event in every)))
            return accountants.tightest(lambda name: exposure.guarantee(self.delta, name))
        order = self.order(sent[0]) if order == "first" else order
        total = max(0.0, self.epsilon_of(sum(cost(events, order) for events in sent), order))
        about = {**asdict(self), "epsilon": total, "accountant": "exact" if order is None else "rdp"}
        return Guarantee(**about, clients=1, declared=accountants.declared_by(every))


@functools.lru_cache(maxsize=2**15)
def cost(events: tuple[Event, ...], order: float | None) -> float:
    """Return what a trial adds to the filter's sum: mu^2, or its Renyi divergence of this order."""
    plain = [replace(e, sampling_rate=1.0) if isinstance(e, Gaussian) else e for e in events]
    if order is None:
        return accountants.gaussian_dp_mu(plain) ** 2
    divergences = [order * accountants.renyi_mu([e]) ** 2 / 2 for e in plain]
    for i, e in enumerate(events):
        if isinstance(e, Gaussian) and e.sampling_rate < 1 and e.relation != "replace_one":
            each = renyi.sampled_divergences(e.sampling_rate, e.std_over_sensitivity)
            divergences[i] = min(divergences[i], e.steps * each[renyi.ORDERS.index(order)])  # sampling never hurts
    return sum(divergences)


def compose(ledgers: Iterable[Ledger]) -> Ledger:
    """Return one ledger (client 0) for several trials with settings fixed beforehand, of the unit that fared worst.

    An example is with one client of each trial, which may differ between trials: every trial counts with its worst
    client. The caller checks (`client_records.alike`) that the public records are the same, and for the unit client
    that each has the same records in every trial; it gives the same view of all. `bytes` are the trials' totals.
    """
    entries: list[Entry] = []
    for trial in ledgers:
        events = _worst_of(list(Exposure(trial).events())) or [Nothing()]
        for n, event in enumerate(events):
            entries.append(Entry(len(entries), 0, event, 0 if n else trial.bytes_up))
    return Ledger(tuple(entries))


def _worst_of(exposures: Sequence[Sequence[Event]]) -> list[Event]:
    """Events at least as revealing as any one client's: the worst of each group, and all unprotected ones."""
    bare = (e for e in itertools.chain.from_iterable(exposures) if isinstance(e, NonPrivate))
    worst: list[Event] = list(dict.fromkeys(bare))
    for group in accountants.groups_of(exposures):
        members = [accountants.of_group(events, group) for events in exposures]
        every = list(itertools.chain.from_iterable(members))
        if all(e.sampling_rate == 1 for e in every):
            strongest: list[Gaussian] = max(members, key=accountants.renyi_mu)
            worst += strongest
            continue
        bound = replace(  # No number orders sampled Gaussians, so take the worst of each parameter.
            every[0],
            std_over_sensitivity=min(e.std_over_sensitivity for e in every),
            sampling_rate=max(e.sampling_rate for e in every),
            steps=max(sum(e.steps for e in events) for events in members),
            declared=accountants.declared_by(every),
        )
        worst.append(bound)
    return worst


def worst(*ledgers: Ledger) -> tuple[Event, ...]:
    """Return the exposure of the client that fares worst in any of these ledgers."""
    exposures = itertools.chain.from_iterable(Exposure(ledger).events() for ledger in ledgers)
    return tuple(_worst_of(list(exposures)))


def covers(planned: Event, sent: Event) -> bool:
    """Whether `sent` reveals no more than `planned`, in every parameter, up to rounding."""
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


def events_to_json(events: Iterable[Event]) -> list[Any]:
    """Return a JSON-ready list of (event, count); `events_from_json` is the inverse."""
    return [[release.event_to_dict(event), times] for event, times in Counter(events).items()]


def events_from_json(data: Iterable[Any]) -> tuple[Event, ...]:
    """Return the events that `events_to_json` was given."""
    repeated = ([release.event_from_dict(fields)] * times for fields, times in data)
    return tuple(itertools.chain.from_iterable(repeated))
