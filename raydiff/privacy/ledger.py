"""Who sent what, and what it costs: epsilon is a fold over recorded events, never over a configuration.

Two adversaries, two views of one ledger. `server` sees every upload. `outsiders` see what is published: where
the server made a round's result private (central events), that stands for the round's uploads; else the
uploads' own events do, by post-processing.

Clients hold different records, so they compose in parallel (the worst one counts). What one client sends in
several rounds composes in sequence, and a published event concerns the records of every client.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raydiff.formats import rounding as bounds
from raydiff.privacy import accountants
from raydiff.privacy import tradeoff as losses
from raydiff.privacy.release import DiscreteGaussian, Event, NonPrivate, Nothing, event_from_dict, event_to_dict

_Group = tuple[str | None, str | None, str]
"""(unit, relation, trust); without unit and relation where nothing but unprotected values was sent."""

PUBLISHED = -1
"""The `client` of an entry that the server published."""
SETUP = -1
"""The `round` of an entry for what was learned from records before round 0, to set the experiment up."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One message, or one published result."""

    round: int
    client: int
    event: Event
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """An epsilon, and all that it needs to mean something."""

    epsilon: float
    delta: float
    accountant: str
    unit: str | None
    """example or client; None (as `relation`) where no Gaussian was recorded."""
    relation: str | None
    trust: str
    clients: int
    """How many clients it covers: the epsilon is the worst of theirs."""
    declared: tuple[str, ...] = ()
    """Fields that were sent in clear because they are public by declaration."""
    unprotected: tuple[str, ...] = ()
    """Why epsilon is infinite, in words: what was sent without protection, or what does not compose."""

    def __str__(self) -> str:
        if self.epsilon == math.inf:
            return f"epsilon inf (no guarantee: {', '.join(self.unprotected) or 'noise of scale 0'})"
        if self.unit is None or self.relation is None:
            return "epsilon 0 (nothing sent)"
        about = f"per {self.unit}, {self.relation.replace('_', '-')}, {self.trust} trust, delta {self.delta:g}"
        declared = f"; public by declaration: {', '.join(self.declared)}" if self.declared else ""
        return f"epsilon {bounds.up(self.epsilon)} ({about}, {self.accountant} accountant{declared})"


@dataclass(frozen=True)
class Ledger:
    """Entries in the order of their rounds. Immutable: `with_uploads` and `with_published` make a new one."""

    entries: tuple[Entry, ...] = ()

    def with_uploads(self, round: int, uploads: Iterable[tuple[int, Event, int]]) -> Ledger:
        """Add what clients sent in `round`: (client, event, bytes) of each.

        Raises ValueError for a client's second upload in that round, for an earlier round than the last, and for
        an event of central trust, which is the server's.
        """
        new, seen = [], self._seen_in(round)
        for client, event, nbytes in uploads:
            if client < 0:
                raise ValueError(f"client must be >= 0, got {client}")
            if not isinstance(event, Nothing) and event.trust == "central":
                raise ValueError(f"an upload's event must have local or aggregate trust, client {client}'s has central")
            if client in seen:
                raise ValueError(f"client {client} already has an upload in round {round}: resend the stored one")
            seen.add(client)
            new.append(Entry(round, client, _kept(event), nbytes))
        return Ledger((*self.entries, *new))

    def with_upload(self, round: int, client: int, event: Event, nbytes: int) -> Ledger:
        """`with_uploads` of one."""
        return self.with_uploads(round, [(client, event, nbytes)])

    def with_published(self, round: int, events: Iterable[Event]) -> Ledger:
        """Add what the server's result of `round` reveals: central events; none if the uploads' stand for it.

        Raises ValueError for other events, for a round already published and for an earlier round than the
        last.
        """
        new = tuple(Entry(round, PUBLISHED, e, 0) for e in events)
        if any(isinstance(e.event, Nothing) or e.event.trust != "central" for e in new):
            raise ValueError(f"what aggregate publishes must have events of central trust (round {round})")
        if new and PUBLISHED in self._seen_in(round):
            raise ValueError(f"round {round} is already published")
        return Ledger(self.entries + new)

    def with_setup(self, clients: Iterable[int], event: Event | None) -> Ledger:
        """Add, unless it is there, the event of what was learned from all these clients' records before round 0. What
        is published of a later round does not stand for it. Raises ValueError as `with_uploads`."""
        if event is None or (self.entries and self.entries[0].round == SETUP):
            return self
        before = Ledger().with_uploads(SETUP, [(client, event, 0) for client in clients])
        return Ledger((*before.entries, *self.entries))

    @property
    def server(self) -> Ledger:
        """What the server sees."""
        return Ledger(tuple(e for e in self.entries if e.client != PUBLISHED))

    @property
    def outsiders(self) -> Ledger:
        """What the published results reveal: uploads of a round with central events count as `Nothing`."""
        covered = {e.round for e in self.entries if e.client == PUBLISHED}

        def seen(e: Entry) -> Entry:
            return Entry(e.round, e.client, Nothing(), e.bytes) if e.client != PUBLISHED and e.round in covered else e

        return Ledger(tuple(seen(e) for e in self.entries))

    @property
    def bytes_up(self) -> int:
        """Bytes of all uploads."""
        return sum(e.bytes for e in self.entries)

    @property
    def bytes_by_client(self) -> dict[int, int]:
        """Bytes of each client's uploads."""
        sizes = {c: sum(e.bytes for e in entries) for c, entries in self._by_client().items()}
        return {c: size for c, size in sizes.items() if c != PUBLISHED}

    def guarantees(self, delta: float, accountant: str) -> list[Guarantee]:
        """`Exposed.guarantees` of all entries together."""
        return Exposed(self).guarantees(delta, accountant)

    def guarantee(self, delta: float, accountant: str) -> Guarantee:
        """`Exposed.guarantee` of all entries together."""
        return Exposed(self).guarantee(delta, accountant)

    def epsilon(self, delta: float, accountant: str) -> float:
        """The worst over both adversaries, of `Exposed.epsilon`."""
        spent = PrivacyOdometer(self)
        return max(view.epsilon(delta, accountant) for view in (spent.server, spent.outsiders))

    def mu(self, client: int | None = None) -> float:
        """mu of Gaussian DP of a client's records (None: the worst over clients), against the stronger adversary.

        Raises ValueError where their events do not compose, Unsupported for sampled and discrete ones.
        """
        one = self if client is None else Ledger(tuple(e for e in self.entries if e.client in (client, PUBLISHED)))
        spent = PrivacyOdometer(one)
        return max(spent.server.mu(), spent.outsiders.mu())

    def table(self, delta: float) -> list[dict[str, Any]]:
        """A row per client: its messages, their epsilon by every accountant (None: no theorem), its bytes.

        What the server published is the row of client -1; its epsilon is that of the published events alone.
        """
        return [_row(client, entries, delta) for client, entries in sorted(self._by_client().items())]

    def to_json(self) -> str:
        """All entries; `from_json` is the inverse. An event is written once, however many clients it is of: a round of
        10,000 clients takes 200 kB, and not 2 MB."""
        events = {e.event: event_to_dict(e.event) for e in self.entries}
        places = {event: place for place, event in enumerate(events)}
        rows = [(e.round, e.client, places[e.event], e.bytes) for e in self.entries]
        return json.dumps({"events": list(events.values()), "entries": rows})

    @classmethod
    def from_json(cls, text: str) -> Ledger:
        """Read back what `to_json` wrote."""
        tree = json.loads(text)
        events = [event_from_dict(event) for event in tree["events"]]
        return cls(tuple(Entry(number, client, events[place], size) for number, client, place, size in tree["entries"]))

    def _seen_in(self, round: int) -> set[int]:
        if self.entries and self.entries[-1].round > round:
            raise ValueError(f"round {round} is late: round {self.entries[-1].round} is already recorded")
        last = itertools.takewhile(lambda e: e.round == round, reversed(self.entries))
        return {e.client for e in last}

    def _by_client(self) -> dict[int, list[Entry]]:
        out: dict[int, list[Entry]] = {}
        for e in self.entries:
            out.setdefault(e.client, []).append(e)
        return out


class PrivacyOdometer:
    """What a ledger's events cost, to either adversary (as `Ledger.server` and `outsiders` see them); it can follow a
    ledger that grows, and then counts only what is new."""

    def __init__(self, ledger: Ledger = Ledger()) -> None:
        self.server, self.outsiders = Exposed(), Exposed()
        self.bytes_up = 0
        self._rounds: set[int] = set()
        self._entries, self._last = 0, tuple[Entry, ...]()
        self.follow(ledger)

    def follow(self, ledger: Ledger) -> None:
        """Fold what the ledger has beyond what it had at the last call.

        Raises ValueError where it is not the same ledger, grown by whole rounds.
        """
        if ledger.entries[max(0, self._entries - 1) : self._entries] != self._last:
            raise ValueError("this ledger is not the one that was followed so far")
        new = Ledger(ledger.entries[self._entries :])
        rounds = {e.round for e in new.entries}
        if again := rounds & self._rounds:
            raise ValueError(f"round {min(again)} has been counted already: a ledger is followed by whole rounds")
        self.server.add(new.server)
        self.outsiders.add(new.outsiders)
        self.bytes_up += new.bytes_up
        self._rounds |= rounds
        self._entries, self._last = len(ledger.entries), ledger.entries[-1:]


class Exposed:
    """What each client's records are exposed to, to one adversary: how often to which event.

    Every epsilon that is said of a ledger, in a metric, an outcome or a table, is this fold's.
    """

    def __init__(self, ledger: Ledger = Ledger()) -> None:
        self._own: dict[int, Counter[Event]] = {}
        self._published: Counter[Event] = Counter()
        self.add(ledger)

    def add(self, ledger: Ledger) -> None:
        """More events: those of PUBLISHED concern the records of every client."""
        for e in ledger.entries:
            counted = self._published if e.client == PUBLISHED else self._own.setdefault(e.client, Counter())
            if not isinstance(e.event, Nothing):
                counted[e.event] += 1

    def events(self) -> dict[tuple[Event, ...], int]:
        """What clients are exposed to, and how many to the same: of thousands of clients it is mostly the same."""
        alike = Counter(tuple(own.items()) for own in self._own.values()) or Counter([()])
        everyone = _repeated(self._published.items())
        return {(*_repeated(own), *everyone): n for own, n in alike.items()}

    def guarantees(self, delta: float, accountant: str) -> list[Guarantee]:
        """One per (unit, relation, trust), side by side, for these are never composed; never empty.

        Something sent without protection makes every guarantee of its trust infinite. Raises ValueError for a
        bad delta or name, Unsupported where the accountant has no theorem.
        """
        exposures = self.events()
        protected = accountants.groups_of(exposures)
        bare = {e.trust for events in exposures for e in events if isinstance(e, NonPrivate)}
        only_bare = sorted(bare - {trust for _, _, trust in protected})
        groups: list[_Group] = [*protected, *((None, None, trust) for trust in only_bare)]
        nothing: list[_Group] = [(None, None, "local")]
        return [_guarantee(g, exposures, delta=delta, accountant=accountant) for g in groups or nothing]

    def guarantee(self, delta: float, accountant: str) -> Guarantee:
        """The one that holds for everything together, the worst over clients.

        Where there are several of `guarantees` there is none, for no theorem adds them up: epsilon is infinite, and
        the reason states each.
        """
        first, *others = found = self.guarantees(delta, accountant)
        if not others:
            return first
        apart = "; ".join(dict.fromkeys(map(str, found)))
        return Guarantee(
            epsilon=math.inf,
            delta=delta,
            accountant=accountant,
            unit=None,
            relation=None,
            trust=" and ".join(sorted({g.trust for g in found})),
            clients=sum(n for events, n in self.events().items() if events),
            declared=tuple(dict.fromkeys(d for g in found for d in g.declared)),
            unprotected=(f"{len(found)} kinds that do not compose into one number: {apart}",),
        )

    def epsilon(self, delta: float, accountant: str) -> float:
        """That of `guarantee`: 0.0 if nothing was sent."""
        return self.guarantee(delta, accountant).epsilon

    def mu(self) -> float:
        """mu of Gaussian DP of the client that fares worst.

        Raises ValueError where events do not compose, Unsupported for sampled and discrete ones.
        """
        return max(accountants.gaussian_dp_mu(events) for events in [*self.events(), ()])

    def auc_ceiling(self) -> float:
        """The largest membership AUC of any attack on the records of the client that fares worst.

        Raises ValueError where events do not compose.
        """
        return max(losses.auc_ceiling(events) for events in [*self.events(), ()])

    def tpr_ceiling(self, fpr: float) -> float:
        """Its largest true positive rate at that false one, as `auc_ceiling`."""
        return max(losses.tpr_ceiling(events, fpr) for events in [*self.events(), ()])


def _repeated(counted: Iterable[tuple[Event, int]]) -> list[Event]:
    """Each as often as it was counted, but what is unprotected once: no guarantee is left to it the first time."""
    return [e for e, times in counted for _ in range(1 if isinstance(e, NonPrivate) else times)]


@functools.lru_cache(maxsize=1024)
def _kept(event: Event) -> Event:
    """One object for all equal events: most clients' are equal in most rounds."""
    return event


def _guarantee(
    group: _Group, exposures: Mapping[tuple[Event, ...], int], *, delta: float, accountant: str
) -> Guarantee:
    unit, relation, trust = group
    members: Counter[tuple[Event, ...]] = Counter()
    for events, clients in exposures.items():
        bare = (e for e in events if isinstance(e, NonPrivate) and e.trust == trust)
        members[(*accountants.of_group(events, group), *bare)] += clients
    every = [e for events in members for e in events]
    return Guarantee(
        epsilon=max(accountants.epsilon_of(events, delta, accountant) for events in [*members, ()]),
        delta=delta,
        accountant=accountant,
        unit=unit,
        relation=relation,
        trust=trust,
        clients=sum(n for events, n in members.items() if events),
        declared=accountants.declared_by(every),
        unprotected=tuple(dict.fromkeys(e.what for e in every if isinstance(e, NonPrivate))),
    )


def _row(client: int, entries: Sequence[Entry], delta: float) -> dict[str, Any]:
    events = [e.event for e in entries if not isinstance(e.event, Nothing)]
    seen = Exposed(Ledger(tuple(entries)))
    row: dict[str, Any] = {
        "client": client,
        "rounds": len({e.round for e in entries if not isinstance(e.event, Nothing)} - {SETUP}),
        "events": "; ".join(f"{n} x {_words(e)}" for e, n in Counter(events).items()) or "nothing sent",
    }
    for name in accountants.ACCOUNTANTS:
        try:
            row[f"epsilon_{name}"] = seen.epsilon(delta, name)
        except accountants.Unsupported:
            row[f"epsilon_{name}"] = None
    return {**row, "bytes": sum(e.bytes for e in entries)}


def _words(event: Event) -> str:
    if isinstance(event, NonPrivate):
        return event.what
    if isinstance(event, Nothing):
        return "nothing"
    sampled = f", Poisson sampling {event.sampling_rate:g}" if event.sampling_rate < 1 else ""
    steps = f", {event.steps} steps" if event.steps > 1 else ""
    about = f"per {event.unit}, {event.relation.replace('_', '-')}, {event.trust} trust"
    noise = "discrete Gaussian noise" if isinstance(event, DiscreteGaussian) else "Gaussian noise"
    return f"{noise} {event.std_over_sensitivity:.4g} x sensitivity ({about}{sampled}{steps})"
