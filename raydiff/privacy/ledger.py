"""Privacy ledger: one row per upload. Epsilon is computed from these rows, never from the configuration.

Two adversaries, two views of one ledger. `server` sees every upload. `outsiders` see what is published: where the
server made a round's result private (central events), that replaces the round's uploads; else the uploads' own events
count, by post-processing.

Clients hold different records, so they compose in parallel (the worst one counts). What one client sends in several
rounds composes in sequence, and a published event concerns the records of every client.
"""

import functools
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raydiff.formats import rounding
from raydiff.formats.json_files import dumps
from raydiff.privacy import accountants, release, tradeoff
from raydiff.privacy.release import DiscreteGaussian, Event, Gaussian, NonPrivate, Nothing, definition

_Group = tuple[str | None, str | None, str]
"""(unit, relation, trust model); no unit and relation where only unprotected values were sent."""

PUBLISHED = -1  # the `client` of an entry that the server published
SETUP = -1  # the `round` of an entry for what was learned from records before round 0


@dataclass(frozen=True, slots=True)
class Entry:
    """One message, or one published result."""

    round: int
    client: int
    event: Event
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """An epsilon with its privacy definition.

    Examples:
        >>> event = rd.PFDM(epsilon=10.0).upload_event(records=100, round_number=0)
        >>> ledger = rd.Ledger().with_uploads(0, [(1, event, 6400)])
        >>> guarantee = ledger.guarantee(1e-5, "exact")
        >>> guarantee.epsilon <= 10, guarantee.unit, guarantee.relation, guarantee.trust
        (True, 'example', 'replace_one', 'local')
    """

    epsilon: float
    """Of the client for which it is worst; inf: nothing is guaranteed."""
    delta: float
    """The delta that goes with it."""
    accountant: str
    """The bound by which it was computed."""
    unit: str | None
    """Whose presence is hidden, example or client; None (as `relation`) where no Gaussian was recorded."""
    relation: str | None
    """What neighbours are: replace_one, zero_out or add_remove."""
    trust: str
    """Whom it holds against: local, the server too; central, who sees what the server publishes; aggregate, a server
    that sees only sums."""
    clients: int
    """Number of clients that it covers."""
    declared: tuple[str, ...] = ()
    """Fields sent in clear because they are public by declaration."""
    unprotected: tuple[str, ...] = ()
    """Why epsilon is infinite."""
    caution: str = ""
    """About delta, if it is too large for so many units."""

    def among(self, count: int, units: str) -> "Guarantee":
        """Return this guarantee of one of `count` units, with a caution if delta is not below 1 / count.

        Releasing one unit in full, drawn at random, has that delta and epsilon 0.
        """
        if self.delta * count < 1:
            return self
        # Without the count: under add-remove the number of records is private.
        return replace(self, caution=f"delta is not below 1 / (number of {units})")

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Guarantee":
        """Return the guarantee whose `vars` were written as JSON."""
        texts = {name: tuple(fields[name]) for name in ("declared", "unprotected")}
        return cls(**{**fields, **texts, "epsilon": float(fields["epsilon"])})

    @property
    def definition(self) -> str | None:
        """Return the privacy definition: two epsilons of one definition compare.

        None where nothing was sent, or nothing is guaranteed or recorded.
        """
        if self.unit is None or self.relation is None or not self.epsilon < math.inf:
            return None
        return f"{definition(self.unit, self.relation, self.trust)}, delta {self.delta:g}"

    @property
    def details(self) -> str:
        """Return what does not matter for comparing: the accountant, what is public by declaration, the caution."""
        declared = f"public by declaration: {', '.join(self.declared)}" if self.declared else ""
        return "; ".join(filter(None, (f"{self.accountant} accountant", declared, self.caution)))

    @property
    def statement(self) -> str:
        """Return everything but the epsilon."""
        if self.definition is not None:
            return f"{self.definition}, {self.details}"
        if self.epsilon == math.inf:
            return f"no guarantee: {', '.join(self.unprotected) or 'noise of scale 0'}"
        return "nothing sent" if self.nothing_sent else "not recorded"

    @property
    def nothing_sent(self) -> bool:
        """Return whether epsilon is 0 since nothing was sent."""
        return self.epsilon == 0 and self.definition is None

    def __str__(self) -> str:
        return f"epsilon {rounding.up(self.epsilon)} ({self.statement})"


@dataclass(frozen=True)
class Ledger:
    """Entries in the order of their rounds. Immutable: `with_uploads` and `with_published` return a new one.

    Examples:
        >>> event = rd.FedAvg().upload_event(records=100, round_number=0)
        >>> ledger = rd.Ledger().with_uploads(0, [(1, event, 6400)])  # round 0, client 1, in clear, 6400 bytes
        >>> ledger.bytes_by_client, ledger.epsilon(1e-5, "exact")
        ({1: 6400}, inf)
    """

    entries: tuple[Entry, ...] = ()
    """One per message or published result."""

    def with_uploads(self, round: int, uploads: Iterable[tuple[int, Event, int]]) -> "Ledger":
        """Return the ledger with uploads (client, event, bytes) of `round`.

        Raises ValueError for a client's second upload, a round before the last, and an event of central trust.
        """
        new = []
        seen = self._seen_in(round)
        for client, event, nbytes in uploads:
            if client < 0:
                raise ValueError(f"client must be >= 0, got {client}")
            if not isinstance(event, Nothing) and event.trust == "central":
                raise ValueError(f"an upload's event must have local or aggregate trust, client {client}'s has central")
            if client in seen:
                raise ValueError(f"client {client} already has an upload in round {round}: resend the stored one")
            seen.add(client)
            new.append(Entry(round, client, _interned(event), nbytes))
        return Ledger((*self.entries, *new))

    def with_published(self, round: int, events: Iterable[Event]) -> "Ledger":
        """Return the ledger with the central events of the server's result; none if the uploads' events stand for it.

        Raises ValueError for other events, a round already published and a round before the last.
        """
        new = tuple(Entry(round, PUBLISHED, e, 0) for e in events)
        if any(isinstance(e.event, Nothing) or e.event.trust != "central" for e in new):
            raise ValueError(f"what aggregate publishes must have events of central trust (round {round})")
        if new and PUBLISHED in self._seen_in(round):
            raise ValueError(f"round {round} is already published")
        return Ledger(self.entries + new)

    def with_setup(self, clients: Iterable[int], event: Event | None) -> "Ledger":
        """Return the ledger with the event of what was learned before round 0, which no published result replaces."""
        if event is None or (self.entries and self.entries[0].round == SETUP):
            return self
        setup = Ledger().with_uploads(SETUP, [(client, event, 0) for client in clients])
        return Ledger((*setup.entries, *self.entries))

    @property
    def server(self) -> "Ledger":
        """What the server sees."""
        return Ledger(tuple(e for e in self.entries if e.client != PUBLISHED))

    @property
    def outsiders(self) -> "Ledger":
        """What the published results reveal: uploads of a round with central events count as `Nothing`."""
        covered = {e.round for e in self.entries if e.client == PUBLISHED}
        hidden = (e.client != PUBLISHED and e.round in covered for e in self.entries)
        return Ledger(tuple(replace(e, event=Nothing()) if h else e for e, h in zip(self.entries, hidden, strict=True)))

    @property
    def bytes_up(self) -> int:
        """Bytes of all uploads."""
        return sum(e.bytes for e in self.entries)

    @property
    def bytes_by_client(self) -> dict[int, int]:
        """Bytes of each client's uploads."""
        return {c: sum(e.bytes for e in sent) for c, sent in self._by_client().items() if c != PUBLISHED}

    def guarantees(self, delta: float, accountant: str) -> list[Guarantee]:
        """Return `Exposure.guarantees` of all entries."""
        return Exposure(self).guarantees(delta, accountant)

    def guarantee(self, delta: float, accountant: str) -> Guarantee:
        """Return `Exposure.guarantee` of all entries."""
        return Exposure(self).guarantee(delta, accountant)

    def epsilon(self, delta: float, accountant: str) -> float:
        """Return the larger `Exposure.epsilon` of both adversaries."""
        odometer = PrivacyOdometer(self)
        return max(view.epsilon(delta, accountant) for view in (odometer.server, odometer.outsiders))

    def table(self, delta: float) -> list[dict[str, Any]]:
        """Return a row per client (-1: the server): messages, epsilon by accountant (None: no theorem), bytes."""
        return [_row(client, entries, delta) for client, entries in sorted(self._by_client().items())]

    def to_json(self) -> str:
        """Return all entries as JSON, equal events once (10,000 clients: 200 kB instead of 2 MB)."""
        events = {e.event: release.event_to_dict(e.event) for e in self.entries}
        places = {event: place for place, event in enumerate(events)}
        rows = [(e.round, e.client, places[e.event], e.bytes) for e in self.entries]
        return dumps({"events": list(events.values()), "entries": rows})

    @classmethod
    def from_json(cls, text: str) -> "Ledger":
        """Return the ledger that `to_json` wrote."""
        tree = json.loads(text)
        events = [release.event_from_dict(event) for event in tree["events"]]
        return cls(tuple(Entry(number, client, events[place], size) for number, client, place, size in tree["entries"]))

    def _seen_in(self, round: int) -> set[int]:
        if self.entries and self.entries[-1].round > round:
            raise ValueError(f"round {round} is late: round {self.entries[-1].round} is already recorded")
        return {e.client for e in itertools.takewhile(lambda e: e.round == round, reversed(self.entries))}

    def _by_client(self) -> dict[int, list[Entry]]:
        out: dict[int, list[Entry]] = {}
        for e in self.entries:
            out.setdefault(e.client, []).append(e)
        return out


class PrivacyOdometer:
    """Running cost of a ledger to either adversary (`Ledger.server`, `outsiders`); `follow` adds new entries only."""

    def __init__(self, ledger: Ledger = Ledger()) -> None:
        self.server = Exposure()
        self.outsiders = Exposure()
        self.bytes_up = 0
        self._followed = Ledger()
        self._rounds = set[int]()
        self.follow(ledger)

    def follow(self, ledger: Ledger) -> None:
        """Add the entries since the last call. Raises ValueError unless they are whole rounds of the same ledger."""
        before = self._followed.entries
        if ledger.entries[max(0, len(before) - 1) : len(before)] != before[-1:]:
            raise ValueError("this ledger is not the one that was followed so far")
        new = Ledger(ledger.entries[len(before) :])
        rounds = {e.round for e in new.entries}
        if again := rounds & self._rounds:
            raise ValueError(f"round {min(again)} has been counted already: a ledger is followed by whole rounds")
        self.server.add(new.server)
        self.outsiders.add(new.outsiders)
        self.bytes_up += new.bytes_up
        self._rounds |= rounds
        self._followed = ledger


class Exposure:
    """Exposure of each client's records to one adversary: counts of events. Every epsilon is computed from it."""

    def __init__(self, ledger: Ledger = Ledger()) -> None:
        self._by_client: dict[int, Counter[Event]] = {}
        self._published: Counter[Event] = Counter()
        self.add(ledger)

    def add(self, ledger: Ledger) -> None:
        """Add events; those of PUBLISHED concern the records of every client."""
        for e in ledger.entries:
            counts = self._published if e.client == PUBLISHED else self._by_client.setdefault(e.client, Counter())
            if not isinstance(e.event, Nothing):
                counts[e.event] += 1

    def events(self) -> dict[tuple[Event, ...], int]:
        """Return events -> the number of clients exposed to exactly these."""
        alike = Counter(tuple(counts.items()) for counts in self._by_client.values()) or Counter([()])
        everyone = _repeated(self._published.items())
        return {(*_repeated(counts), *everyone): n for counts, n in alike.items()}

    def guarantees(self, delta: float, accountant: str) -> list[Guarantee]:
        """Return one guarantee per (unit, relation, trust model), which never compose; at least one.

        Something sent without protection makes every guarantee of its trust model infinite. Raises as the accountant.
        """
        exposures = self.events()
        groups: list[_Group] = [*accountants.groups_of(exposures)]
        bare = {e.trust for e in itertools.chain.from_iterable(exposures) if isinstance(e, NonPrivate)}
        groups += [(None, None, trust) for trust in sorted(bare - {trust for _, _, trust in groups})]
        return [_guarantee(g, exposures, delta, accountant) for g in groups or [(None, None, "local")]]

    def guarantee(self, delta: float, accountant: str) -> Guarantee:
        """Return the guarantee for everything together; of several `guarantees` an infinite one that states each."""
        every = self.guarantees(delta, accountant)
        if len(every) == 1:
            return every[0]
        apart = "; ".join(dict.fromkeys(map(str, every)))
        return replace(
            every[0],
            epsilon=math.inf,
            unit=None,
            relation=None,
            trust=" and ".join(sorted({g.trust for g in every})),
            clients=sum(n for events, n in self.events().items() if events),
            declared=tuple(dict.fromkeys(itertools.chain.from_iterable(g.declared for g in every))),
            unprotected=(f"{len(every)} privacy definitions that do not compose into one number: {apart}",),
        )

    def epsilon(self, delta: float, accountant: str) -> float:
        """Return the epsilon of `guarantee`."""
        return self.guarantee(delta, accountant).epsilon

    def mu(self) -> float:
        """Return mu of Gaussian DP of the worst client (`accountants.gaussian_dp_mu`)."""
        return max(accountants.gaussian_dp_mu(events) for events in [*self.events(), ()])

    def auc_ceiling(self) -> float:
        """Return the largest membership AUC of any attack on the worst client (`tradeoff.auc_ceiling`)."""
        return max(tradeoff.auc_ceiling(events) for events in [*self.events(), ()])

    def tpr_ceiling(self, fpr: float) -> float:
        """Return its largest true positive rate at that false one."""
        return max(tradeoff.tpr_ceiling(events, fpr) for events in [*self.events(), ()])


def _repeated(counts: Iterable[tuple[Event, int]]) -> list[Event]:
    """Each event as often as counted, but unprotected ones once: the first leaves no guarantee."""
    repeated = ([e] if isinstance(e, NonPrivate) else [e] * times for e, times in counts)
    return list(itertools.chain.from_iterable(repeated))


@functools.lru_cache(maxsize=1024)
def _interned(event: Event) -> Event:
    """One object for all equal events: most clients' are equal in most rounds."""
    return event


def _guarantee(group: _Group, exposures: Mapping[tuple[Event, ...], int], delta: float, accountant: str) -> Guarantee:
    unit, relation, trust = group
    members: Counter[tuple[Event, ...]] = Counter()
    for events, clients in exposures.items():
        bare = (e for e in events if isinstance(e, NonPrivate) and e.trust == trust)
        members[(*accountants.of_group(events, group), *bare)] += clients
    every = list(itertools.chain.from_iterable(members))
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
    counts = Counter(e.event for e in entries if not isinstance(e.event, Nothing))
    exposure = Exposure(Ledger(tuple(entries)))
    row: dict[str, Any] = {
        "client": client,
        "rounds": len({e.round for e in entries if not isinstance(e.event, Nothing)} - {SETUP}),
        "events": "; ".join(f"{n} x {_describe(event)}" for event, n in counts.items()) or "nothing sent",
    }
    for name in accountants.ACCOUNTANTS:
        try:
            row[f"epsilon_{name}"] = exposure.epsilon(delta, name)
        except accountants.Unsupported:
            row[f"epsilon_{name}"] = None
    return {**row, "bytes": sum(e.bytes for e in entries)}


def _describe(event: NonPrivate | Gaussian) -> str:
    if isinstance(event, NonPrivate):
        return event.what
    sampled = f", Poisson sampling {event.sampling_rate:g}" if event.sampling_rate < 1 else ""
    steps = f", {event.steps} steps" if event.steps > 1 else ""
    about = definition(event.unit, event.relation, event.trust) + sampled + steps
    noise = "discrete Gaussian noise" if isinstance(event, DiscreteGaussian) else "Gaussian noise"
    return f"{noise} {event.std_over_sensitivity:.4g} x sensitivity ({about})"
